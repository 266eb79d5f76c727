"""What the modules of a PyTorch model call and compute, seen at ATen's operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from traceana.describe.manifest import Layout
from traceana.describe.pytorch_layers import batch_first, is_layer
from traceana.describe.recording import Recorded
from traceana.flops.call import Call, Entry
from traceana.flops.cost import Refusal
from traceana.flops.passive import PASSIVE
from traceana.flops.registry import NO_FORMULA, cost, total_flops


@dataclass(slots=True)
class _Row:
    """One module: its calls, and what its own operators compute beside those of its modules."""

    path: str
    module: nn.Module
    layer: bool
    calls: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = field(default_factory=list)
    layout: Layout = "channels_first"
    flops: int = 0
    multiplied: int = 0
    unknown: bool = False
    order: list[int] = field(default_factory=list)
    products: list[tuple[int, int, int]] = field(default_factory=list)


class Watch(TorchDispatchMode):  # type: ignore[misc]  # not checked: an extra
    """Counts every operator of a forward pass at the innermost module that is being called.

    A shared module is known by its first path. Within a layer no modules are told apart.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch ``model`` from entering to leaving the context."""
        super().__init__()
        self._rows = {id(module): row for module, row in _modules(model, "", set())}
        self._open: list[_Row] = []
        self._last: _Row | None = None
        self._sequence = 0
        self._handles: list[Any] = []

    def __enter__(self) -> Watch:
        """Put the hooks in place."""
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
        """Take the hooks away."""
        super().__exit__(kind, error, at)
        for handle in self._handles:
            handle.remove()

    def layers(self) -> list[Recorded]:
        """Return the layers in order of their first work."""
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
        if call.name in PASSIVE:
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
                one.flops for one in costs if one.formula.partition(".")[0] in _MULTIPLIES
            )
            row.products += _product(call)
        if not row.layer:
            self._runs(row)


def _modules(module: nn.Module, path: str, seen: set[int]) -> Iterator[tuple[nn.Module, _Row]]:
    """Yield the modules down to the layers, a shared one under its first path."""
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
    """Return (made, taken) features of a module that multiplies by its matrix and does no more."""
    matrices = [tuple(one.shape) for one in row.module.parameters(recurse=False) if one.ndim == 2]
    if not row.layer or len(matrices) != 1 or len(row.products) != len(row.calls):
        return None
    (_, taken, made) = row.products[0]
    alone = row.flops == sum(2 * prod(product) for product in row.products)
    return (made, taken) if alone and sorted(matrices[0]) == sorted((taken, made)) else None


def _product(call: Call) -> list[tuple[int, int, int]]:
    """Return (rows, taken, made) of the product of two matrices, nothing of another operator."""
    at = _PRODUCTS.get(call.name)
    if at is None:
        return []
    rows, taken = call.shape(at)
    return [(rows, taken, call.shape(at + 1)[1])]


_MULTIPLIES: Final = ("matmul", "attention")
_PRODUCTS: Final = {"aten::mm": 0, "aten::addmm": 1}


def _computes(call: Call, result: Any) -> bool:
    """Tell whether an operator without a formula computes: with numbers that are no integers.

    Filling, copying and picking elements computes nothing.
    """
    made = [tensor for tensor in _tensors(result) if tensor.is_floating_point()]
    given = [one for one in call.types if "float" in one or "complex" in one]
    return bool(made and given) and call.name.removeprefix("aten::").rstrip("_") not in _MOVES


_MOVES: Final = frozenset(
    (
        *("bernoulli", "copy", "fill", "flip", "gather", "index", "index_select", "masked_fill"),
        *("masked_scatter", "repeat", "repeat_interleave", "roll", "rot90", "scatter", "sort"),
        *("take", "tril", "triu", "where", "zero", "cat", "stack", "topk", "constant_pad_nd"),
        *("index_put", "_index_put_impl", "slice_scatter", "select_scatter", "unfold_copy"),
        *("embedding", "normal", "uniform", "random", "exponential", "lift_fresh_copy"),
        *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "pixel_shuffle"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d", "pixel_unshuffle"),
    )
)
"""Operators that move or fill elements."""


def _call(function: Any, arguments: Any, named: Mapping[str, Any], result: Any) -> Call:
    declared = function._schema.arguments  # no other way to the order of inputs
    values = [
        arguments[i] if i < len(arguments) else named.get(one.name, one.default_value)
        for i, one in enumerate(declared)
    ]
    made = next(_tensors(result), None)
    return Call(
        name=function._schema.name,
        shapes=tuple(_entry(value) for value in values),
        types=tuple(_type(value) for value in values),
        scalars=tuple(_text(value) for value in values),
        output=None if made is None else tuple(made.shape),
    )


def _entry(value: Any) -> Entry:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list) and value and isinstance(value[0], torch.Tensor):
        return tuple(tuple(one.shape) for one in value if isinstance(one, torch.Tensor))
    return ()


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    if isinstance(value, tuple | list) and value and isinstance(value[0], torch.Tensor):
        return "TensorList"
    return "" if value is None else "Scalar"


def _text(value: Any) -> str:
    """Return a scalar input as torch.profiler writes it."""
    if value is None or isinstance(value, torch.Tensor):
        return ""
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


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
