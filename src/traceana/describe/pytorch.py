"""Layers of a PyTorch module, by hooks in one forward pass over fake tensors.

What a ``forward`` computes by functions (``F.scaled_dot_product_attention``, a residual sum) is a
layer at the innermost module; what it only moves (``torch.flatten``) is none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from traceana.describe.finish import finished, model_inputs
from traceana.describe.inputs import Call
from traceana.describe.manifest import Manifest, manifest
from traceana.describe.pytorch_layers import details
from traceana.describe.pytorch_operators import Watch
from traceana.describe.recording import Recorded
from traceana.errors import BadModelError


def describe_pytorch(
    model: nn.Module, call: Call, name: str | None, types: Mapping[str, str]
) -> Manifest:
    """Describe ``model`` as it is, in training or evaluation; see :func:`traceana.describe`."""
    model = _unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise BadModelError("TorchScript runs no hooks: describe the module before scripting it")
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    if any(map(is_lazy, tensors.values())):
        raise BadModelError("the model has lazy parameters: call it once, then describe it")
    recorded, inputs = _dry_run(model, call, tensors)
    layers = tuple(
        finished(one, position, details(one, types)) for position, one in enumerate(recorded)
    )
    return manifest(
        network=name or type(model).__name__,
        framework="PyTorch",
        inputs=model_inputs(
            call,
            [str(tensor.dtype).removeprefix("torch.") for tensor in inputs],
            layers,
            "channels_first",
        ),
        layers=layers,
        parameter_count=sum(parameter.numel() for parameter in model.parameters()),
    )


def _unwrapped(model: Any) -> nn.Module:
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        else:
            found: nn.Module = model
            return found


def _dry_run(
    model: nn.Module, call: Call, tensors: Mapping[int, torch.Tensor]
) -> tuple[list[Recorded], list[torch.Tensor]]:
    """Run a copy of ``model`` whose tensors are shapes; if it needs numbers, the model itself."""
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        memo: dict[int, Any] = {key: mode.from_tensor(t) for key, t in tensors.items()}
        twin = copy.deepcopy(model, memo)
        with mode:
            return _run(twin, call)
    except Exception:  # noqa: BLE001  # whatever stops it, the run below decides
        pass
    try:
        with _kept(model):
            return _run(model, call)
    except Exception as error:  # a model's forward may raise anything
        shapes = ", ".join(map(str, call.shapes))
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadModelError(
            f"the model does not run on inputs of shape {shapes}: {reason}; give the shape and "
            "dtype that its forward takes"
        ) from error


def _run(model: nn.Module, call: Call) -> tuple[list[Recorded], list[torch.Tensor]]:
    inputs = _zeros(model, call)
    watch = Watch(model)
    with _every_module_called(), torch.no_grad(), watch:
        arguments, named = call.arguments(inputs)
        model(*arguments, **named)
    return watch.layers(), inputs


def _zeros(model: nn.Module, call: Call) -> list[torch.Tensor]:
    of_model = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    return [
        torch.zeros(
            shape,
            dtype=of_model.dtype if dtype is None else getattr(torch, dtype),
            device=of_model.device,
        )
        for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
    ]


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Give back buffers and random numbers as they were."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, values in before:
                buffer.copy_(values)


@contextmanager
def _every_module_called() -> Iterator[None]:
    """In evaluation a TransformerEncoderLayer otherwise computes without calling its modules."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
