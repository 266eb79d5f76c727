"""Operators that only move data: copies, fills, table look-ups."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, UncountableError, compulsory
from traceana.flops.registry import declare, operator

COPY: Final = declare(
    "memory.copy",
    """No operation: elements are read and written, with type conversion if needed.""",
)
FILL: Final = declare(
    "memory.fill",
    """No operation: elements are written, with one value or random values.""",
)
LOOKUP: Final = declare(
    "memory.lookup",
    """No operation: the elements of the result are read from a table, and the indices.""",
)
SCATTER: Final = declare(
    "memory.scatter_add",
    """1 per element: each element of the gradient (or source) is added to the row of its index.

    Reads the source and the indices, writes the whole of the table's gradient.
    """,
)


@operator("aten::copy_")
def copy(call: Call) -> tuple[Cost, ...]:
    """Destination, source (broadcast to it)."""
    return (Cost("copy", "forward", 0, compulsory(call.operand(0), call.operand(1)), COPY),)


@operator("aten::cat", "aten::_cat", "aten::concat", "aten::stack")
def cat(call: Call) -> tuple[Cost, ...]:
    """A list of tensors; the element's size is not recorded, so bytes are unknown."""
    elements = sum(prod(shape) for shape in call.tensor_list(0))
    return (Cost("copy", "forward", 0, compulsory(Operand(2 * elements, None)), COPY),)


@operator("aten::constant_pad_nd")
def pad(call: Call) -> tuple[Cost, ...]:
    """Input, and the padding before and after each dimension, the last first."""
    extents = list(call.shape(0))
    margins = call.integers(1)
    if len(margins) % 2 or len(margins) > 2 * len(extents):
        raise UncountableError("padding rank mismatch")
    for place in range(len(margins) // 2):
        extents[-1 - place] += margins[2 * place] + margins[2 * place + 1]
    if min(extents, default=0) < 0:
        raise UncountableError("negative padding larger than the input")
    written = Operand.of(tuple(extents), call.size(0))
    return (Cost("copy", "forward", 0, compulsory(call.operand(0), written), COPY),)


@operator("aten::fill_", "aten::zero_", "aten::bernoulli_", "aten::normal_", "aten::uniform_")
def fill(call: Call) -> tuple[Cost, ...]:
    """A tensor, which is written."""
    if not call.has(0):
        raise UncountableError("input 0: no shape")
    return (Cost("fill", "forward", 0, compulsory(call.operand(0)), FILL),)


@operator("aten::arange", "aten::linspace", "aten::randperm", "aten::eye", "aten::tril_indices")
def made(_: Call) -> tuple[Cost, ...]:
    """Only numbers: the shape of the result is not recorded, so bytes are unknown."""
    return (Cost("fill", "forward", 0, None, FILL),)


@operator("aten::embedding")
def embedding(call: Call) -> tuple[Cost, ...]:
    """A table [rows, width] and indices: a row per index."""
    (_, width), indices = call.shape(0, 2), call.elements(1)
    rows = Operand(indices * width, call.size(0))
    return (Cost("embedding", "forward", 0, compulsory(call.operand(1), rows, rows), LOOKUP),)


@operator("aten::embedding_dense_backward")
def embedding_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient […, width], indices, the number of rows."""
    gradient = call.shape(0)
    if not gradient:
        raise UncountableError("input 0: unexpected rank 0")
    width = gradient[-1]
    table = Operand(call.extents(2, 1)[0] * width if call.scalars else None, call.size(0))
    moved = compulsory(call.operand(0), call.operand(1), table)
    return (Cost("embedding", "wgrad", prod(gradient), moved, SCATTER),)


@operator("aten::index_select")
def index_select(call: Call) -> tuple[Cost, ...]:
    """A tensor, a dimension, indices."""
    shape, indices = call.shape(0), call.elements(2)
    place = call.integer(1) if call.scalars else None
    rank = max(len(shape), 1)
    if place is not None and not -rank <= place < rank:
        raise UncountableError("dimension out of range")
    others = None
    if place is not None:
        others = prod(extent for at, extent in enumerate(shape) if at != place % rank)
    result = Operand(None if others is None else indices * others, call.size(0))
    return (Cost("indexing", "forward", 0, compulsory(call.operand(2), result, result), LOOKUP),)


@operator("aten::gather")
def gather(call: Call) -> tuple[Cost, ...]:
    """A tensor, a dimension, indices: an element per index."""
    result = Operand(call.elements(2), call.size(0))
    return (Cost("indexing", "forward", 0, compulsory(call.operand(2), result, result), LOOKUP),)


@operator("Cast")
def tf_cast(call: Call) -> tuple[Cost, ...]:
    """A tensor; the type of the result is an attribute, so bytes are unknown."""
    written = Operand(call.elements(0), None)
    return (Cost("copy", "forward", 0, compulsory(call.operand(0), written), COPY),)


@operator("Transpose", "_MklTranspose")
def tf_transpose(call: Call) -> tuple[Cost, ...]:
    """A tensor and the order of its dimensions."""
    image = Operand.of(call.shape(0), call.size(0))
    return (Cost("copy", "forward", 0, compulsory(image, image), COPY),)
