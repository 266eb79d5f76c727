"""Named ranges around every layer, forward and backward, for profilers that record no modules.

The texts are ``forward: PATH`` and ``backward: PATH`` with the module's path (``conv1``): one range
has direction and layer, on any thread of the backward pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import nn

from workloads.options import OptionError, Ranges
from workloads.pytorch.build import DescribedNetwork


class Marker(Protocol):
    """Opens and closes ranges, innermost last, on the calling thread."""

    def push(self, text: str) -> None:
        """Open a range."""
        ...

    def pop(self) -> None:
        """Close the innermost open range."""
        ...


class NoMarker:
    """Records nothing."""

    def push(self, text: str) -> None:
        """Do nothing."""

    def pop(self) -> None:
        """Do nothing."""


class RecordFunctionMarker:
    """Ranges as ``user_annotation`` events of torch.profiler."""

    def __init__(self) -> None:
        self._open: list[torch.profiler.record_function] = []

    def push(self, text: str) -> None:
        """Open a range."""
        self._open.append(torch.profiler.record_function(text))
        self._open[-1].__enter__()

    def pop(self) -> None:
        """Close the innermost open range."""
        self._open.pop().__exit__(None, None, None)


class NvtxMarker:
    """NVTX push/pop ranges, by the ``nvtx`` package or by PyTorch's binding (CUDA builds).

    The package comes first: its version can be chosen to match the installed nsys, while PyTorch's
    binding has the NVTX version of its build.
    """

    def __init__(self) -> None:
        self._push: Callable[[str], object]
        self._pop: Callable[[], object]
        try:
            nvtx = importlib.import_module("nvtx")
        except ImportError as error:
            if torch.version.cuda is None:
                raise OptionError(
                    "--ranges nvtx needs the nvtx package or a CUDA build of PyTorch: "
                    "pip install nvtx"
                ) from error
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
            return
        self._push, self._pop = nvtx.push_range, nvtx.pop_range

    def push(self, text: str) -> None:
        """Open a range."""
        self._push(text)

    def pop(self) -> None:
        """Close the innermost open range."""
        self._pop()


def make_marker(ranges: Ranges) -> Marker:
    """Return the marker for ``ranges``; raises :class:`OptionError` when its library is missing."""
    match ranges:
        case Ranges.NONE:
            return NoMarker()
        case Ranges.RECORD_FUNCTION:
            return RecordFunctionMarker()
        case Ranges.NVTX:
            return NvtxMarker()


@contextmanager
def range_(marker: Marker, text: str) -> Iterator[None]:
    """Open a range around the ``with`` block."""
    marker.push(text)
    try:
        yield
    finally:
        marker.pop()


def mark_forward(model: DescribedNetwork, marker: Marker) -> None:
    """Add hooks with which ``marker`` records every layer's forward pass."""
    for path, module in model.named_children():
        module.register_forward_pre_hook(_pusher(marker, f"forward: {path}"))
        module.register_forward_hook(_popper(marker))


def mark_backward(model: DescribedNetwork, marker: Marker, *, first_data_gradient: bool) -> None:
    """Add hooks with which ``marker`` records every layer's backward pass.

    A backward range opens when the gradient of the layer's output is complete and closes when that
    of its input is. The input of a layer without weights before it has no gradient: the range
    closes when the gradients of all parameters have been accumulated. A layer without parameters
    and without an input gradient has no backward pass and no range. With ``first_data_gradient``
    all inputs have gradients.
    """
    without = frozenset[str]() if first_data_gradient else model.network.fed_by_images
    for path, module in model.named_children():
        if path not in without:
            module.register_full_backward_pre_hook(_pusher(marker, f"backward: {path}"))
            module.register_full_backward_hook(_popper(marker))
        elif parameters := list(module.parameters()):
            _mark_parameters(f"backward: {path}", module, parameters, marker)


def _mark_parameters(
    text: str, module: nn.Module, parameters: list[nn.Parameter], marker: Marker
) -> None:
    waiting = len(parameters)

    def accumulated(_: torch.Tensor) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            waiting = len(parameters)
            marker.pop()

    def watch_output(_module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        output.register_hook(_pusher(marker, text))

    module.register_forward_hook(watch_output)
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(accumulated)


def _pusher(marker: Marker, text: str) -> Callable[..., None]:
    def push(*_: object) -> None:
        marker.push(text)

    return push


def _popper(marker: Marker) -> Callable[..., None]:
    def pop(*_: object) -> None:
        marker.pop()

    return pop
