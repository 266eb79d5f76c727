"""Operations on each element: arithmetic, activations, and copies and look-ups, which have none.

An arithmetic operation, a comparison or an elementary function (exp, log, tanh, erf, square root,
power, reciprocal) of one element is one operation; constants are folded.
"""

from __future__ import annotations

from math import prod
from typing import Final, Literal

import msgspec

from traceana.flops.call import (
    Call,
    Cost,
    Operand,
    Part,
    UncountableError,
    broadcast,
    compulsory,
    element_size,
    floating,
    promoted,
)
from traceana.flops.registry import declare, function

Result = Literal["same", "floating", "bool"]


class Elementwise(msgspec.Struct, frozen=True):
    """One elementwise function: its kind, operations per element, and the type of its result."""

    name: str
    kind: str
    operations: int
    expression: str
    result: Result = "same"

    @property
    def formula(self) -> str:
        """The id of its formula."""
        return f"elementwise.{self.name}"


_TABLE: Final = (
    # Arithmetic.
    Elementwise("add", "elementwise", 1, "a + b (two where alpha is given and not 1)"),
    Elementwise("sub", "elementwise", 1, "a - b (two where alpha is given and not 1)"),
    Elementwise("mul", "elementwise", 1, "a · b"),
    Elementwise("div", "elementwise", 1, "a / b", "floating"),
    Elementwise("negate", "elementwise", 1, "-a"),
    Elementwise("absolute", "elementwise", 1, "|a|"),
    Elementwise("square", "elementwise", 1, "a · a"),
    Elementwise("extremum", "elementwise", 1, "max(a, b), min(a, b)"),
    Elementwise("round", "elementwise", 1, "⌊a⌋, ⌈a⌉, sign and rounding"),
    Elementwise("addcmul", "elementwise", 3, "a + v · b · c"),
    Elementwise("addcdiv", "elementwise", 3, "a + v · b / c"),
    Elementwise("lerp", "elementwise", 3, "a + w · (b - a)"),
    Elementwise("squared_difference", "elementwise", 2, "(a - b)²"),
    Elementwise("power", "elementwise", 1, "aᵇ"),
    Elementwise("elementary", "elementwise", 1, "exp, log, √, 1/√, 1/a, sin, cos, erf", "floating"),
    Elementwise("compare", "elementwise", 1, "a < b, a = b, is NaN, not, and, or", "bool"),
    Elementwise("select", "elementwise", 0, "a where a condition holds, else b: no arithmetic"),
    # Activations.
    Elementwise("relu", "activation", 1, "max(x, 0)"),
    Elementwise("relu_backward", "activation", 1, "dy where x > 0"),
    Elementwise("relu6", "activation", 2, "min(max(x, 0), 6)"),
    Elementwise("clamp", "activation", 2, "min(max(x, a), b); one where one bound is given"),
    Elementwise("leaky_relu", "activation", 2, "x where x > 0, else s · x"),
    Elementwise("leaky_relu_backward", "activation", 2, "dy where x > 0, else s · dy"),
    Elementwise("prelu", "activation", 2, "x where x > 0, else w · x"),
    Elementwise("prelu_backward", "activation", 3, "dx: compare, w · dy; dw: x · dy"),
    Elementwise("elu", "activation", 4, "x where x > 0, else alpha · (exp(x) - 1)"),
    Elementwise("elu_backward", "activation", 3, "dy where x > 0, else dy · (y + alpha)"),
    Elementwise("sigmoid", "activation", 4, "1 / (1 + exp(-x))", "floating"),
    Elementwise("sigmoid_backward", "activation", 3, "dy · y · (1 - y)"),
    Elementwise("tanh", "activation", 1, "tanh(x)", "floating"),
    Elementwise("tanh_backward", "activation", 3, "dy · (1 - y · y)"),
    Elementwise("silu", "activation", 5, "x · sigma(x)"),
    Elementwise(
        "silu_backward", "activation", 9, "dy · sigma · (1 + x · (1 - sigma)), sigma again"
    ),
    Elementwise("gelu", "activation", 5, "x/2 · (1 + erf(x/√2)); Hendrycks and Gimpel (2016)"),
    Elementwise("gelu_tanh", "activation", 9, "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))"),
    Elementwise("gelu_backward", "activation", 11, "dy · (Φ(x) + x · φ(x)): Φ 4, φ 4, and 3"),
    Elementwise("softplus", "activation", 3, "log(1 + exp(x))"),
    Elementwise("softplus_backward", "activation", 4, "dy · exp(x) / (1 + exp(x))"),
    Elementwise("mish", "activation", 5, "x · tanh(log(1 + exp(x)))"),
    Elementwise("hardtanh", "activation", 2, "min(max(x, a), b)"),
    Elementwise("hardtanh_backward", "activation", 2, "dy where a < x < b"),
    Elementwise("hardswish", "activation", 5, "x · min(max(x + 3, 0), 6) / 6"),
    Elementwise("hardswish_backward", "activation", 5, "dy · (x/3 + ½) within (-3, 3)"),
    Elementwise("hardsigmoid", "activation", 4, "min(max(x + 3, 0), 6) / 6"),
    Elementwise("hardsigmoid_backward", "activation", 3, "dy / 6 within (-3, 3)"),
    Elementwise("bias_add", "bias", 1, "x + b of the channel"),
    Elementwise("dropout", "dropout", 2, "x · mask · 1/(1 - p); drawing the mask is not counted"),
    Elementwise("dropout_backward", "dropout", 2, "dy · mask · 1/(1 - p)"),
)

ELEMENTWISE: Final[dict[str, Elementwise]] = {row.name: row for row in _TABLE}

for _one in _TABLE:
    _times = {
        0: "No operation",
        1: "1 operation",
    }.get(_one.operations, f"{_one.operations} operations")
    declare(
        _one.formula,
        f"{_times} per element: {_one.expression}.\n\nReads each operand, writes the result.",
    )


@function(*ELEMENTWISE)
def elementwise(call: Call) -> tuple[Cost, ...]:
    """All tensors, broadcast together; the result is of their common type, or of bool."""
    of = ELEMENTWISE[call.formula]
    operations = of.operations
    if of.name == "clamp" and call.scalars:
        # Bounds that are tensors have no text.
        operations = sum(1 for text in call.scalars[1:3] if text) or operations
    if of.name == "gelu" and call.scalars[1:2] and "tanh" in call.scalars[1]:
        of = ELEMENTWISE["gelu_tanh"]
        operations = of.operations
    # a + alpha · b, also of optimizers.
    alpha = call.position("alpha")
    if 0 <= alpha < len(call.scalars) and call.scalars[alpha]:
        operations += call.number("alpha") != 1.0
    part: Part = "backward" if of.name.endswith("_backward") else "forward"
    if "list" in call.at:
        # The type of a list's tensors is not recorded, so bytes are unknown.
        elements = sum(map(prod, call.tensor_list("list")))
        return (Cost("elementwise", part, elements * operations, None, of.formula),)
    tensors = call.tensors()
    shapes = [call.shape(position) for position in tensors] or [call.shape(0)]
    elements = prod(shapes[0] if of.name == "bias_add" else broadcast(*shapes))
    written = Operand(elements, _result_size(call, of, tensors))
    moved = compulsory(*map(call.operand, tensors), written)
    return (Cost(of.kind, part, elements * operations, moved, of.formula),)


def _result_size(call: Call, of: Elementwise, tensors: tuple[int, ...]) -> int | None:
    if of.result == "bool":
        return 1
    if not call.types:
        return None
    if call.name.endswith("_") and not call.name.endswith("__"):
        return call.size(0)
    if "condition" in call.at:
        tensors = tensors[1:] or tensors
    # A tensor without dimensions does not widen the others.
    deciding = [tensor for tensor in tensors if call.shape(tensor)] or list(tensors)
    if any(tensor >= len(call.types) for tensor in deciding):
        return None
    name = promoted(call.types[tensor] for tensor in deciding)
    if name is None:
        return None
    return element_size(floating(name) if of.result == "floating" else name)


@function("dropout_with_mask")
def dropout(call: Call) -> tuple[Cost, ...]:
    """A tensor; the result and a mask of a byte per element are written."""
    of, elements, image = ELEMENTWISE["dropout"], call.elements("x"), call.operand("x")
    moved = compulsory(image, image, Operand(elements, 1))
    return (Cost("dropout", "forward", elements * of.operations, moved, of.formula),)


# Copies, fills and look-ups.

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


@function("copy")
def copy(call: Call) -> tuple[Cost, ...]:
    """Destination, source (broadcast to it)."""
    return _moved("copy", COPY, call.operand("y"), call.operand("x"))


@function("concatenate")
def concatenate(call: Call) -> tuple[Cost, ...]:
    """A list of tensors; the element's size is not recorded, so bytes are unknown."""
    return _moved("copy", COPY, Operand(2 * sum(map(prod, call.tensor_list("list"))), None))


@function("pad")
def pad(call: Call) -> tuple[Cost, ...]:
    """Input, and the padding before and after each dimension, the last first."""
    extents = list(call.shape("x"))
    margins = call.integers("margins")
    if len(margins) % 2 or len(margins) > 2 * len(extents):
        raise UncountableError("padding rank mismatch")
    for place in range(len(margins) // 2):
        extents[-1 - place] += margins[2 * place] + margins[2 * place + 1]
    if min(extents, default=0) < 0:
        raise UncountableError("negative padding larger than the input")
    return _moved("copy", COPY, call.operand("x"), Operand(prod(extents), call.size("x")))


@function("fill", "generate")
def fill(call: Call) -> tuple[Cost, ...]:
    """A tensor, which is written; of ``generate`` neither shape nor type is recorded."""
    filled = Operand(call.elements("x"), call.size("x")) if "x" in call.at else Operand(None, None)
    return _moved("fill", FILL, filled)


@function("embedding")
def embedding(call: Call) -> tuple[Cost, ...]:
    """A table [rows, width] and indices: a row per index."""
    (_, width), indices = call.shape("w", 2), call.elements("x")
    rows = Operand(indices * width, call.size("w"))
    return _moved("embedding", LOOKUP, call.operand("x"), rows, rows)


@function("embedding_backward")
def embedding_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient […, width], indices, the number of rows."""
    gradient = call.shape("dy")
    if not gradient:
        raise UncountableError("input 0: unexpected rank 0")
    rows = call.extents("rows", 1)[0] if call.scalars else None
    table = Operand(None if rows is None else rows * gradient[-1], call.size("dy"))
    moved = compulsory(call.operand("dy"), call.operand("x"), table)
    return (Cost("embedding", "wgrad", prod(gradient), moved, SCATTER),)


@function("index_select", "gather")
def index_select(call: Call) -> tuple[Cost, ...]:
    """A tensor, a dimension, indices: the elements of each index, of ``gather`` one."""
    indices = call.elements("indices")
    others: int | None = 1
    if call.formula == "index_select":
        shape, place = call.shape("x"), call.integer("dim") if call.scalars else None
        rank = max(len(shape), 1)
        if place is not None and not -rank <= place < rank:
            raise UncountableError("dimension out of range")
        others = None
        if place is not None:
            others = prod(extent for at, extent in enumerate(shape) if at != place % rank)
    result = Operand(None if others is None else indices * others, call.size("x"))
    return _moved("indexing", LOOKUP, call.operand("indices"), result, result)


@function("cast", "transpose")
def cast(call: Call) -> tuple[Cost, ...]:
    """A tensor; to which type it is cast is an attribute, so bytes are then unknown."""
    elements, size = call.elements("x"), call.size("x")
    written = Operand(elements, size if call.formula == "transpose" else None)
    return _moved("copy", COPY, Operand(elements, size), written)


def _moved(kind: str, formula: str, *operands: Operand | None) -> tuple[Cost, ...]:
    return (Cost(kind, "forward", 0, compulsory(*operands), formula),)
