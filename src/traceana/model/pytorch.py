"""Layers of a PyTorch module, by hooks in one forward pass over fake tensors.

Functions that a ``forward`` calls (``F.scaled_dot_product_attention``, a residual sum) are counted
in a row of the innermost module. Functions that only move data (``torch.flatten``) are not counted.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from types import TracebackType
from typing import Any, Final

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from traceana.errors import InvalidInputError
from traceana.flops.call import Call, Entry, Refusal
from traceana.flops.registry import NO_FORMULA, cost, total_flops
from traceana.model.manifest_rows import Details, finished, model_inputs
from traceana.model.recorded_calls import (
    ModelCall,
    Pads,
    Recorded,
    per_axis,
    same_pads,
    total_padding,
)
from traceana.runs.layer_manifest import Layout, Manifest, Shape, manifest
from traceana.vocabulary.operators import operator_row, without_work


def describe_pytorch(
    model: nn.Module, call: ModelCall, name: str | None, types: Mapping[str, str]
) -> Manifest:
    """Return the manifest of ``model`` in its present mode; see :func:`traceana.describe`."""
    model = _unwrapped(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidInputError(
            "TorchScript modules do not run hooks: describe the module before scripting it"
        )
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    if any(map(is_lazy, tensors.values())):
        raise InvalidInputError("the model has lazy parameters: call it once, then describe it")
    recorded, inputs = _dry_run(model, call, tensors)
    layers = tuple(
        finished(layer, position, details(layer, types)) for position, layer in enumerate(recorded)
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
            module: nn.Module = model
            return module


def _dry_run(
    model: nn.Module, call: ModelCall, tensors: Mapping[int, torch.Tensor]
) -> tuple[list[Recorded], list[torch.Tensor]]:
    """Return the layers and inputs of a forward pass of a copy of ``model`` on fake tensors.

    A model that does not run on fake tensors runs on zeros, with a warning.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        memo: dict[int, Any] = {key: mode.from_tensor(t) for key, t in tensors.items()}
        fake_model = copy.deepcopy(model, memo)
        with mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(fake_model, call)
    except Exception as error:  # noqa: BLE001  # the run below decides
        failed = _first_line(error)
    try:
        with _state_restored(model):
            layers_and_inputs = _run(model, call)
    except Exception as error:  # a model's forward may raise anything
        shapes = ", ".join(map(str, call.shapes))
        raise InvalidInputError(
            f"the model does not run on inputs of shape {shapes}: {_first_line(error)}; give the "
            "shape and dtype that its forward takes"
        ) from error
    warnings.warn(
        f"traceana.describe ran the model itself on zeros: it does not run on fake tensors "
        f"({failed})",
        RuntimeWarning,
        stacklevel=4,
    )
    return layers_and_inputs


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _run(model: nn.Module, call: ModelCall) -> tuple[list[Recorded], list[torch.Tensor]]:
    """Return the layers and inputs of a forward pass of ``model`` on zeros."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(0))
    inputs = [
        torch.zeros(
            shape,
            dtype=parameter.dtype if dtype is None else getattr(torch, dtype),
            device=parameter.device,
        )
        for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
    ]
    counts = _OperatorCounts(model)
    with _without_fast_path(), torch.no_grad(), counts:
        arguments, named = call.arguments(inputs)
        model(*arguments, **named)
    return counts.layers(), inputs


@contextmanager
def _state_restored(model: nn.Module) -> Iterator[None]:
    """Restore buffers and random state at the end."""
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
def _without_fast_path() -> Iterator[None]:
    """Disable the fast path of TransformerEncoderLayer, which does not call its submodules."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


class _Row(msgspec.Struct):
    """One module: its calls, and the operators that it calls outside of its submodules."""

    path: str
    module: nn.Module
    layer: bool
    calls: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = msgspec.field(
        default_factory=list
    )
    layout: Layout = "channels_first"
    flops: int = 0
    multiplied: int = 0
    unknown: bool = False
    order: list[int] = msgspec.field(default_factory=list)
    products: list[tuple[int, int, int]] = msgspec.field(default_factory=list)


class _OperatorCounts(TorchDispatchMode):  # type: ignore[misc]  # not checked: an extra
    """Counts the operators of a forward pass by innermost module.

    A shared module has its first path. Modules inside a layer belong to the layer.
    """

    def __init__(self, model: nn.Module) -> None:
        """Count the operators of ``model`` within the context."""
        super().__init__()
        self._rows = {id(module): row for module, row in _modules(model, "", set())}
        self._open: list[_Row] = []
        self._last: _Row | None = None
        self._sequence = 0
        self._handles: list[Any] = []

    def __enter__(self) -> _OperatorCounts:
        """Register the hooks."""
        for row in self._rows.values():
            self._handles += [
                row.module.register_forward_pre_hook(self._entered),
                row.module.register_forward_hook(self._left, with_kwargs=True, always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Remove the hooks."""
        super().__exit__(kind, error, at)
        for handle in self._handles:
            handle.remove()

    def layers(self) -> list[Recorded]:
        """Return the layers in order of their first operator."""
        ran = [row for row in self._rows.values() if row.order and row.calls]
        return [_recorded(row) for row in sorted(ran, key=lambda row: row.order[0])]

    def _entered(self, module: nn.Module, _: Any) -> None:
        row = self._rows[id(module)]
        self._open.append(row)
        if row.layer:
            self._runs(row)
            self._last = None

    def _left(self, module: nn.Module, arguments: Any, named: Any, output: Any) -> None:
        row = self._open.pop()
        if row.layer:
            self._last = None
        outputs = list(_tensors(output))
        if not row.calls:
            row.layout = _layout(outputs)
        row.calls.append(
            (
                [batch_first(module, tensor.shape) for tensor in _tensors((arguments, named))],
                [batch_first(module, tensor.shape) for tensor in outputs],
            )
        )

    def _runs(self, row: _Row) -> None:
        if row is not self._last:
            row.order.append(self._sequence)
            self._sequence += 1
            self._last = row

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        """Count the operator and run it."""
        result = function(*arguments, **(named or {}))
        if self._open:
            self._count(self._open[-1], function, arguments, named or {}, result)
        return result

    def _count(
        self, row: _Row, function: Any, arguments: Any, named: Mapping[str, Any], result: Any
    ) -> None:
        call = _call(function, arguments, named, result)
        if call.name in without_work():
            return
        costs = cost(call)
        if isinstance(costs, Refusal):
            if costs.reason == NO_FORMULA and not _computes(call, result):
                return
            row.unknown = True
        else:
            flops = total_flops(costs)
            if not flops:
                return
            row.flops += flops
            row.multiplied += sum(
                part.flops for part in costs if part.formula.partition(".")[0] in _MULTIPLIES
            )
            if call.name in ("aten::mm", "aten::addmm"):
                at = operator_row(call.name).input
                rows, in_features = call.shape(at)
                row.products.append((rows, in_features, call.shape(at + 1)[1]))
        if not row.layer:
            self._runs(row)


def _modules(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[nn.Module, _Row]]:
    """Yield the modules down to the layers; a shared module has its first path."""
    if id(module) in seen:
        return
    seen.add(id(module))
    layer = is_layer(module)
    yield module, _Row(path or type(module).__name__, module, layer)
    if not layer:
        for name, child in module.named_children():
            yield from _modules(child, f"{path}.{name}" if path else name, seen)


def _recorded(row: _Row) -> Recorded:
    (inputs, outputs), *later = row.calls
    attention = isinstance(row.module, nn.MultiheadAttention)
    computed = row.multiplied if attention else row.flops
    return Recorded(
        key=id(row.module),
        path=row.path,
        layer=row.module,
        inputs=inputs,
        outputs=outputs,
        axes="channels_first",
        layout=row.layout,
        later=later,
        flops=None if row.unknown else computed,
        product=_only_product(row),
        order=row.order,
    )


def _only_product(row: _Row) -> tuple[int, int] | None:
    """Return (out, in) features of a module that is a matrix product with its only matrix."""
    matrices = [
        tuple(parameter.shape)
        for parameter in row.module.parameters(recurse=False)
        if parameter.ndim == 2
    ]
    if not row.layer or len(matrices) != 1 or len(row.products) != len(row.calls):
        return None
    (_, in_features, out_features) = row.products[0]
    no_others = row.flops == sum(2 * prod(product) for product in row.products)
    fits_matrix = sorted(matrices[0]) == sorted((in_features, out_features))
    return (out_features, in_features) if no_others and fits_matrix else None


_MULTIPLIES: Final = ("matmul", "attention")


def _computes(call: Call, result: Any) -> bool:
    """Return whether an operator without a formula computes floating-point numbers.

    Filling, copying and gathering elements is not computing.
    """
    outputs = [tensor for tensor in _tensors(result) if tensor.is_floating_point()]
    inputs = [type_ for type_ in call.types if "float" in type_ or "complex" in type_]
    return bool(outputs and inputs) and operator_row(call.name).work not in ("copies", "moves")


def _call(function: Any, arguments: Any, named: Mapping[str, Any], result: Any) -> Call:
    declared = function._schema.arguments  # only the schema has the order of the inputs
    shapes: list[Entry] = []
    types: list[str] = []
    scalars: list[str] = []  # as torch.profiler writes them
    for i, argument in enumerate(declared):
        default = named.get(argument.name, argument.default_value)
        value = arguments[i] if i < len(arguments) else default
        shape: Entry = ()
        type_ = scalar = ""
        if isinstance(value, torch.Tensor):
            shape, type_ = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        elif isinstance(value, tuple | list):
            type_, scalar = "Scalar", str(list(value))
            if value and isinstance(value[0], torch.Tensor):
                tensors = (item for item in value if isinstance(item, torch.Tensor))
                shape, type_ = tuple(tuple(tensor.shape) for tensor in tensors), "TensorList"
        elif value is not None:
            type_, scalar = "Scalar", str(value)
        shapes.append(shape)
        types.append(type_)
        scalars.append(scalar)
    output = next(_tensors(result), None)
    return Call(
        name=function._schema.name,
        shapes=tuple(shapes),
        types=tuple(types),
        scalars=tuple(scalars),
        output=None if output is None else tuple(output.shape),
    )


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


_OWN: Final = "torch.nn.modules."
_CONTAINERS: Final = ("module", "container", "transformer")
_RENAMED: Final = {"LocalResponseNorm": "LRN"}


def is_layer(module: nn.Module) -> bool:
    """Return whether the module is a layer: one of PyTorch's own, or one without submodules.

    PyTorch's containers and transformer blocks consist of layers. ``MultiheadAttention``, with a
    submodule for the projection, is one layer.
    """
    return _own_type(module) is not None or next(module.children(), None) is None


def details(recorded: Recorded, types: Mapping[str, str]) -> Details:
    """Return type and arguments of a recorded module."""
    module: nn.Module = recorded.layer
    name = type(module).__name__
    given_type = types.get(name) or _own_type(module)
    # Modules inside a layer are part of it; modules inside other modules have their own rows.
    parameters = module.named_parameters(recurse=is_layer(module))
    shapes = {key: tuple(p.shape) for key, p in parameters}
    type_ = given_type or name
    if given_type is None and recorded.product is not None:
        type_ = "Linear"
        shapes = {
            key: recorded.product if len(shape) == 2 else shape for key, shape in shapes.items()
        }
    described = Details(
        type=type_,
        framework_type=f"{type(module).__module__}.{type(module).__qualname__}",
        parameters=_attention(shapes) if isinstance(module, nn.MultiheadAttention) else shapes,
        neighbours=module.size if isinstance(module, nn.LocalResponseNorm) else None,
        by_operators=given_type is None or isinstance(module, nn.MultiheadAttention),
    )
    in_shape, out_shape = recorded.inputs[0] if recorded.inputs else (), recorded.outputs[0]
    if isinstance(module, nn.modules.conv._ConvNd):
        return _convolution(described, module, in_shape)
    if type_.startswith(("MaxPool", "AvgPool", "LPPool")) and len(out_shape) == int(type_[-2]) + 2:
        return _pool(described, module, in_shape, out_shape)
    return described


def batch_first(module: nn.Module, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a tensor's shape with the batch first, also for time-first sequences."""
    sizes = tuple(int(size) for size in shape)
    kinds = (nn.MultiheadAttention, nn.RNNBase)
    if isinstance(module, kinds) and not module.batch_first and len(sizes) == 3:
        return (sizes[1], sizes[0], sizes[2])
    return sizes


def _own_type(module: nn.Module) -> str | None:
    for base in type(module).__mro__:
        if base.__module__.startswith(_OWN):
            if base.__module__.removeprefix(_OWN) in _CONTAINERS:
                return None
            # The attention's projection is a subclass of Linear.
            name = base.__name__.removeprefix("NonDynamicallyQuantizable")
            return _RENAMED.get(name, name)
    return None


def _convolution(described: Details, module: Any, in_shape: Shape) -> Details:
    axes = len(module.kernel_size)
    stride, dilation = tuple(module.stride), tuple(module.dilation)
    padding: Pads
    if module.padding == "same":
        sizes = in_shape[-axes:]
        windows = zip(sizes, module.kernel_size, stride, dilation, strict=True)
        padding = tuple(same_pads(*window) for window in windows)
    elif module.padding == "valid":
        padding = ((0, 0),) * axes
    else:
        padding = tuple((zeros, zeros) for zeros in module.padding)
    return Details(
        type=described.type,
        framework_type=described.framework_type,
        kernel=tuple(module.kernel_size),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=module.groups,
        parameters=described.parameters,
    )


def _pool(described: Details, module: Any, in_shape: Shape, out_shape: Shape) -> Details:
    axes = len(out_shape) - 2
    kernel = per_axis(module.kernel_size, axes)
    stride = per_axis(module.stride or module.kernel_size, axes)
    zeros = per_axis(getattr(module, "padding", 0), axes)
    dilation = per_axis(getattr(module, "dilation", 1), axes)
    padding: list[tuple[int, int]] = []
    windows = zip(in_shape[2:], out_shape[2:], kernel, stride, dilation, zeros, strict=True)
    for size, out, window, step, spread, before in windows:
        # With ceil_mode the last window may exceed the padding.
        beyond = total_padding(size, out, window, step, spread) - before
        padding.append((before, max(before, beyond)))
    return Details(
        type=described.type,
        framework_type=described.framework_type,
        kernel=kernel,
        stride=stride,
        padding=tuple(padding),
        dilation=dilation,
    )


def _attention(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return ``shapes`` with the joint projection of query, key and value split into three."""
    parts: dict[str, Shape] = {}
    for key, shape in shapes.items():
        kind = "bias" if key.endswith("bias") else "weight"
        if key in ("in_proj_weight", "in_proj_bias"):
            for part in ("query", "key", "value"):
                parts[f"{part}.{kind}"] = (shape[0] // 3, *shape[1:])
        elif key.endswith("_proj_weight"):
            part = {"q": "query", "k": "key", "v": "value"}[key[0]]
            parts[f"{part}.weight"] = shape
        elif key.startswith("out_proj."):
            parts[f"out.{kind}"] = shape
        else:
            parts[key] = shape
    return parts
