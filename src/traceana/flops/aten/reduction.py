"""PyTorch's reductions and softmax."""

from __future__ import annotations

from math import prod

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, UncountableError
from traceana.flops.neutral.pointwise import per_element
from traceana.flops.neutral.softmax import softmax, softmax_backward
from traceana.flops.registry import declare, operator

SUM = declare(
    "reduction.sum",
    """1 an element: each is added, or compared, to what stands for its result.

    n operations and not n - 1 a result, as for products of matrices. Reads the input, writes the
    results.
    """,
)
MEAN = declare(
    "reduction.mean",
    """1 an element and 1 a result: a sum and a division.

    Reads the input, writes the results.
    """,
)
NORM = declare(
    "reduction.norm",
    """2 an element: the square (or power) is taken and accumulated.

    The root of each result is left out. Reads the input, writes the results.
    """,
)
SCAN = declare(
    "reduction.scan",
    """1 an element: each result is the one before and an element more.

    Reads the input, writes as many results.
    """,
)


@operator(
    "aten::sum",
    "aten::prod",
    "aten::max",
    "aten::min",
    "aten::amax",
    "aten::amin",
    "aten::argmax",
    "aten::argmin",
    "aten::any",
    "aten::all",
)
def reduce(call: Call) -> tuple[Cost, ...]:
    """A tensor, the dimensions that go, whether they stay as 1."""
    elements = call.elements(0)
    results = _results(call)
    cost = per_element(
        SUM, "reduction", elements, 1, call.operand(0), Operand(results, call.size(0))
    )
    return (cost,)


@operator("aten::mean")
def mean(call: Call) -> tuple[Cost, ...]:
    """A tensor, the dimensions that go, whether they stay as 1."""
    elements, results = call.elements(0), _results(call)
    if results is None:
        raise UncountableError("the dimensions of the reduction were not recorded")
    written = Operand(results, call.size(0))
    cost = per_element(MEAN, "reduction", elements + results, 1, call.operand(0), written)
    return (cost,)


@operator("aten::linalg_vector_norm", "aten::norm")
def norm(call: Call) -> tuple[Cost, ...]:
    """A tensor; what is written is little and not counted."""
    return (per_element(NORM, "reduction", call.elements(0), 2, call.operand(0)),)


@operator("aten::cumsum", "aten::cumsum_", "aten::cumprod")
def scan(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    image = call.operand(0)
    return (per_element(SCAN, "reduction", call.elements(0), 1, image, image),)


@operator("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
def soft(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    return (softmax(call.elements(0), call.size(0), call.size(0)),)


@operator("aten::log_softmax", "aten::_log_softmax")
def log_soft(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    return (softmax(call.elements(0), call.size(0), call.size(0), log=True),)


@operator("aten::_softmax_backward_data")
def soft_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, output, dimension."""
    return (softmax_backward(call.elements(1), call.size(1)),)


@operator("aten::_log_softmax_backward_data")
def log_soft_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, output, dimension."""
    return (softmax_backward(call.elements(1), call.size(1), log=True),)


def _results(call: Call) -> int | None:
    """Return how many results there are; ``None`` where the dimensions were not recorded.

    Without dimensions (the form of one input and a type) everything becomes one.
    """
    shape = call.shape(0)
    if len(call.shapes) <= 2 and (len(call.shapes) == 1 or not _given(call, 1)):
        return 1
    if not call.scalars or not call.scalars[1]:
        return None
    dimensions = call.integers(1)
    if not dimensions:
        return 1
    rank = max(len(shape), 1)
    if any(not -rank <= one < rank for one in dimensions):
        raise UncountableError("a dimension of the reduction is not of the tensor")
    gone = {one % rank for one in dimensions}
    return prod(extent for place, extent in enumerate(shape) if place not in gone)


def _given(call: Call, position: int) -> bool:
    return position < len(call.scalars) and bool(call.scalars[position])
