"""The input, weight and output of each layer, from the recorded shapes of its operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from traceana.flops.call import Call, Shape, UncountableError
from traceana.trace import per_trace
from traceana.vocabulary.operators import WEIGHTED, of_kinds, operator_row

if TYPE_CHECKING:
    from traceana.trace import Trace

_NO_TENSOR: Final = r"^\[\s*(\]|\[\s*\])"
"""Recorded shapes that are empty or begin with a scalar."""


class Operands(NamedTuple):
    """The shapes of a layer's first input, its weight and its output.

    ``weight`` is the operand in the weight's position, also in a product of two activations;
    ``parameter`` is true where it cannot be an activation. ``memory_format`` is that of the input,
    PyTorch's ``contiguous`` or ``channels_last``. None: unknown.
    """

    input: Shape | None
    weight: Shape | None
    output: Shape | None = None
    parameter: bool = False
    memory_format: str | None = None


@per_trace
def operands(trace: Trace) -> dict[int, Operands]:
    """Return the operands of each row of ``layers``.

    The input is from the layer's first outermost forward operator, the weight from its first
    convolution, product, normalization or embedding. Operators without a tensor of at least one
    dimension as first input, such as the batch counter of a normalization, do not count. A layer
    that first computes its weight (``weight_norm``, ``spectral_norm``, a standardized weight) has
    the operands of the convolution or product with that weight. In a compiled program the layer's
    first convolution or product counts (:func:`_of_instructions`).
    """
    layers = trace.tables.layers["role"].cast(pl.String) == "layer"
    name = pl.col("name").cast(pl.String)
    named = (
        trace.tables.ops.filter(
            layers.gather(trace.tables.ops["layer"]).fill_null(False)
            & ~pl.col("input_shapes").str.contains(_NO_TENSOR)
            & (pl.col("direction") == "forward").fill_null(True)
        )
        .sort("depth", "start", maintain_order=True)
        .select(
            *("layer", name, "input_shapes", "input_strides"),
            name.str.contains(of_kinds(*WEIGHTED)).alias("weighted"),
            name.str.contains(of_kinds("convolution", "linear")).alias("applies"),
        )
    )
    operands_of = _of_instructions(trace)
    for row, operator, text, strides in _first(named):
        shape = _shape(operator, text, 0)
        operands_of[row] = Operands(
            shape, None, memory_format=_memory_format(shape, operator, text, strides)
        )
    for row, operator, text, _ in _first(named.filter("weighted")):
        weight = _shape(operator, text, 1)
        # A matrix of two dimensions is a weight: activations of a batch have three.
        parameter = operator_row(operator).kind not in ("batched_mm", "attention", "recurrent") or (
            weight and len(weight) == 2
        )
        operands_of[row] = operands_of[row]._replace(weight=weight, parameter=bool(parameter))
    for row, operator, text, strides in _first(named.filter("applies")):
        shape, weight, first = (
            *(_shape(operator, text, which) for which in (0, 1)),
            operands_of[row].input,
        )
        # Whether the layer's first operand is the weight that it computes.
        has_shapes = weight is not None and first is not None and shape is not None
        if has_shapes and prod(first or ()) == prod(weight or ()) != prod(shape or ()):
            kind = _memory_format(shape, operator, text, strides)
            operands_of[row] = Operands(shape, weight, None, parameter=True, memory_format=kind)
    return operands_of


def _first(ops: pl.DataFrame) -> Iterator[tuple[int, str, str, str | None]]:
    first = ops.unique("layer", keep="first", maintain_order=True)
    return first.select("layer", "name", "input_shapes", "input_strides").iter_rows()


def _memory_format(shape: Shape | None, operator: str, shapes: str, text: str | None) -> str | None:
    """Return the memory format of images, None where the strides fit both formats or neither.

    For one channel, or one pixel, both formats have the same strides.
    """
    if shape is None or len(shape) not in (4, 5) or text is None:
        return None
    strides = _shape(operator, shapes, 0, strides=text)
    if strides is None or len(strides) != len(shape):
        return None
    axes = {
        "contiguous": range(len(shape)),
        "channels_last": (0, *range(2, len(shape)), 1),
    }
    fits = []
    for name, order in axes.items():
        # Dense in memory in this order, the last axis contiguous.
        size, dense = 1, True
        for axis in reversed(tuple(order)):
            dense &= shape[axis] == 1 or strides[axis] == size
            size *= shape[axis]
        fits += [name] if dense else []
    return fits[0] if len(fits) == 1 else None


def _shape(operator: str, text: str, which: int, strides: str | None = None) -> Shape | None:
    """Return the shape, or the ``strides``, of the input (0) or the weight (1) of a call."""
    try:
        call = Call.decode(operator, text)
        # TorchScript records further inputs before the operator's own.
        row = operator_row(operator)
        beyond = max(len(call.shapes) - (row.inputs or len(call.shapes)), 0)
        sized = call if strides is None else Call.decode(operator, strides)
        return sized.shape(beyond + (row.weight if which else row.input))
    except UncountableError:
        return None


_PRODUCT: Final = (pl.col("opcode").cast(pl.String).is_in(["convolution", "dot"])) | (
    pl.col("target").cast(pl.String).str.contains(r"^__(?:cudnn\$convForward|cublas\$|onednn\$)")
)
_OF_CONVOLUTION: Final = re.compile(r"conv_general_dilated\w*$")
"""End of the scope of a convolution, also where XLA converted it to a product."""


def _of_instructions(trace: Trace) -> dict[int, Operands]:
    """Return by row of ``layers`` the operands of its first forward convolution or product.

    Shapes are batch, channels, spatial axes.

    It may be inside a fusion, a call or a loop. A convolution that XLA converted to a product has a
    weight, but no input and output: batch and positions are one axis in the product.
    """
    if trace.tables.instructions.is_empty():
        return {}
    from traceana.flops.hlo import as_written, decoded_instruction

    ran = (
        trace.tables.ops.filter(
            pl.col("layer").is_not_null()
            & pl.col("instruction").is_not_null()
            & (pl.col("direction") == "forward").fill_null(True)
        )
        .select("instruction", "layer")
        .unique("instruction", keep="first", maintain_order=True)
    )
    layers = trace.tables.layers["role"].cast(pl.String) == "layer"
    layer_of = dict(ran.filter(layers.gather(ran["layer"])).iter_rows())
    parents = trace.tables.instructions["parent"].to_list()
    chosen = trace.tables.instructions.with_row_index("row").filter(_PRODUCT.fill_null(False))
    operands_of: dict[int, Operands] = {}
    columns = ("scope", "target", "input_shapes", "output_shape", "output_type", "attributes")
    for row, scope, target, *texts in chosen.select(
        "row", *(pl.col(name).cast(pl.String) for name in columns)
    ).iter_rows():
        # The layer of the instruction, or of its innermost parent with one. Parents come before
        # their children; any other order could loop forever.
        at: int | None = row
        while at is not None and at not in layer_of:
            above = parents[at]
            at = above if above is not None and above < at else None
        layer = None if at is None else layer_of[at]
        if layer is None or layer in operands_of:
            continue
        try:
            of = as_written(decoded_instruction(target or "", *texts))
        except UncountableError:
            continue
        if (to := of.attributes.dimension_numbers) is not None:
            shape = _arranged(of.left, to.input_batch, to.input_feature, to.input_spatial)
            given = _arranged(of.output, to.output_batch, to.output_feature, to.output_spatial)
            operands_of[layer] = Operands(shape, of.right, given)
        elif _OF_CONVOLUTION.search(scope or ""):
            operands_of[layer] = Operands(None, of.right, None)
        else:
            operands_of[layer] = Operands(of.left, of.right, of.output)
    return operands_of


def _arranged(shape: Shape, batch: int, feature: int, spatial: list[int]) -> Shape | None:
    axes = (batch, feature, *spatial)
    if sorted(axes) != list(range(len(shape))):
        return None
    return tuple(shape[axis] for axis in axes)
