"""Layers of a PyTorch module, by hooks in one forward pass over fake tensors.

Modules alone are layers: what a ``forward`` does by functions (``torch.flatten``) is not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from traceana.describe.finish import finished, model_inputs
from traceana.describe.inputs import Call
from traceana.describe.manifest import Layout, Manifest, manifest
from traceana.describe.pytorch_layers import batch_first, details, is_layer
from traceana.describe.recording import Recorded, Recording
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
    recording, inputs = _dry_run(model, call, tensors)
    layers = tuple(
        finished(recorded, position, details(recorded, types))
        for position, recorded in enumerate(recording.layers)
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
) -> tuple[Recording, list[torch.Tensor]]:
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


def _run(model: nn.Module, call: Call) -> tuple[Recording, list[torch.Tensor]]:
    inputs = _zeros(model, call)
    recording = Recording()
    with _hooks(model, recording), torch.no_grad():
        arguments, named = call.arguments(inputs)
        model(*arguments, **named)
    return recording, inputs


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
def _hooks(model: nn.Module, recording: Recording) -> Iterator[None]:
    # In evaluation a TransformerEncoderLayer otherwise computes without calling its modules.
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    handles = [
        module.register_forward_hook(_recorder(recording, path), with_kwargs=True)
        for path, module in _layers(model, "", set())
    ]
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for handle in handles:
            handle.remove()


def _layers(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost modules that are layers; a shared one under its first path."""
    if id(module) in seen:
        return
    seen.add(id(module))
    if is_layer(module):
        yield path or type(module).__name__, module
        return
    for name, child in module.named_children():
        yield from _layers(child, f"{path}.{name}" if path else name, seen)


def _recorder(recording: Recording, path: str) -> Callable[..., None]:
    def record(module: nn.Module, arguments: Any, named: Any, output: Any) -> None:
        inputs = [batch_first(module, t.shape) for t in _tensors((arguments, named))]
        outputs = list(_tensors(output))
        recording.add(
            Recorded(
                key=id(module),
                path=path,
                layer=module,
                inputs=inputs,
                outputs=[batch_first(module, tensor.shape) for tensor in outputs],
                axes="channels_first",
                layout=_layout(outputs),
            )
        )

    return record


def _layout(tensors: list[torch.Tensor]) -> Layout:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for tensor in tensors:
        last = formats.get(tensor.ndim)
        if last is not None and not tensor.is_contiguous():
            return "channels_last" if tensor.is_contiguous(memory_format=last) else "channels_first"
    return "channels_first"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
