"""Reductions, softmax and losses: operators with fewer results than elements."""

from __future__ import annotations

from math import prod
from typing import Final

import msgspec

from traceana.flops.call import Call
from traceana.flops.cost import Cost, Operand, UncountableError, broadcast, compulsory, per_element
from traceana.flops.registry import declare, formula, operator

# Reductions, by PyTorch's operators.

SUM = declare(
    "reduction.sum",
    """1 per element: each is added to, or compared with, the result so far.

    n operations per result, not n - 1, as for matrix products. Reads the input, writes the results.
    """,
)
MEAN = declare(
    "reduction.mean",
    """1 per element and 1 per result: a sum and a division.

    Reads the input, writes the results.
    """,
)
NORM = declare(
    "reduction.norm",
    """2 per element: the square (or power) is computed and accumulated.

    The root of each result is left out. Reads the input, writes the results.
    """,
)
SCAN = declare(
    "reduction.scan",
    """1 per element: each result is the previous one plus an element.

    Reads the input, writes the same number of results.
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
    """A tensor, the reduced dimensions, whether they are kept as 1."""
    elements = call.elements(0)
    results = _results(call)
    cost = per_element(
        SUM, "reduction", elements, 1, call.operand(0), Operand(results, call.size(0))
    )
    return (cost,)


@operator("aten::mean")
def mean(call: Call) -> tuple[Cost, ...]:
    """A tensor, the reduced dimensions, whether they are kept as 1."""
    elements, results = call.elements(0), _results(call)
    if results is None:
        raise UncountableError("reduction dimensions not recorded")
    written = Operand(results, call.size(0))
    cost = per_element(MEAN, "reduction", elements + results, 1, call.operand(0), written)
    return (cost,)


@operator("aten::linalg_vector_norm", "aten::norm")
def norm(call: Call) -> tuple[Cost, ...]:
    """A tensor; the few written bytes are not counted."""
    return (per_element(NORM, "reduction", call.elements(0), 2, call.operand(0)),)


@operator("aten::cumsum", "aten::cumsum_", "aten::cumprod")
def scan(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    image = call.operand(0)
    return (per_element(SCAN, "reduction", call.elements(0), 1, image, image),)


@operator("aten::softmax", "aten::_softmax", "aten::_safe_softmax")
def aten_softmax(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    return (softmax(call.elements(0), call.size(0), call.size(0)),)


@operator("aten::log_softmax", "aten::_log_softmax")
def aten_log_softmax(call: Call) -> tuple[Cost, ...]:
    """A tensor and a dimension."""
    return (softmax(call.elements(0), call.size(0), call.size(0), log=True),)


@operator("aten::_softmax_backward_data")
def aten_softmax_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, output, dimension."""
    return (softmax_backward(call.elements(1), call.size(1)),)


@operator("aten::_log_softmax_backward_data")
def aten_log_softmax_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, output, dimension."""
    return (softmax_backward(call.elements(1), call.size(1), log=True),)


def _results(call: Call) -> int | None:
    """Return the number of results; ``None`` where the dimensions were not recorded.

    Without dimensions (the form with one input and a type) there is one result.
    """
    shape = call.shape(0)
    if len(call.shapes) <= 2 and (len(call.shapes) == 1 or not _given(call, 1)):
        return 1
    if len(call.scalars) < 2 or not call.scalars[1]:
        return None
    dimensions = call.integers(1)
    if not dimensions:
        return 1
    rank = max(len(shape), 1)
    if any(not -rank <= one < rank for one in dimensions):
        raise UncountableError("reduction dimension out of range")
    gone = {one % rank for one in dimensions}
    return prod(extent for place, extent in enumerate(shape) if place not in gone)


def _given(call: Call, position: int) -> bool:
    return position < len(call.scalars) and bool(call.scalars[position])


# Softmax and its logarithm.


@formula("softmax.forward")
def softmax(elements: int, size: int | None, output_size: int | None, *, log: bool = False) -> Cost:
    """5 per element, also for the logarithm: maximum, subtraction, exponential, sum, division.

    exp(x - max) / Σexp(x - max); the logarithm subtracts log Σ instead of dividing.
    Reads the input, writes the output.
    """
    moved = compulsory(Operand(elements, size), Operand(elements, output_size))
    kind = "log_softmax" if log else "softmax"
    return Cost(kind, "forward", 5 * elements, moved, "softmax.forward")


@formula("softmax.backward")
def softmax_backward(elements: int, size: int | None, *, log: bool = False) -> Cost:
    """4 per element: y·(dy - Σdy·y), or for the logarithm dy - exp(y)·Σdy.

    Product, sum, difference, product; for the logarithm sum, exponential, product, difference.
    Reads dy and y, writes dx.
    """
    image = Operand(elements, size)
    kind = "log_softmax" if log else "softmax"
    moved = compulsory(image, image, image)
    return Cost(kind, "backward", 4 * elements, moved, "softmax.backward")


@formula("softmax.cross_entropy")
def softmax_cross_entropy(
    samples: int, classes: int, size: int | None, labels: Operand | None, *, sparse: bool
) -> Cost:
    """9 · N · K, or 6 · N · K + 2 · N where labels are classes: -Σt·log p and its gradient p - t.

    log p: 5. p: an exponential. t·log p, summed: 2, and p - t: 1; where the labels are classes
    each of the two is one operation per sample. Reads N·K logits and the labels; writes N losses
    and N·K gradients.
    """
    logits = samples * classes
    flops = 6 * logits + 2 * samples if sparse else 9 * logits
    image = Operand(logits, size)
    moved = compulsory(image, labels, Operand(samples, size), image)
    return Cost("loss", "forward", flops, moved, "softmax.cross_entropy")


@operator("Softmax", "LogSoftmax")
def tf_softmax(call: Call) -> tuple[Cost, ...]:
    """A tensor."""
    log = call.name == "LogSoftmax"
    return (softmax(call.elements(0), call.size(0), call.size(0), log=log),)


@operator("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def tf_cross_entropy(call: Call) -> tuple[Cost, ...]:
    """Logits [N, classes] and labels: classes, or a distribution over them; loss and gradient."""
    samples, classes = call.shape(0, 2)
    sparse = call.name.startswith("Sparse")
    return (softmax_cross_entropy(samples, classes, call.size(0), call.operand(1), sparse=sparse),)


# Losses, by PyTorch's operators.


class Loss(msgspec.Struct, frozen=True):
    """An elementwise loss: operations per element, and the position of its reduction."""

    operations: int
    expression: str
    reduction: int


_LOSSES: Final[dict[str, Loss]] = {
    "l1_loss": Loss(2, "|x - t|", 2),
    "mse_loss": Loss(2, "(x - t)²", 2),
    "smooth_l1_loss": Loss(5, "d = |x - t|; ½d²/beta where d < beta, else d - ½beta", 2),
    "huber_loss": Loss(5, "d = |x - t|; ½d² where d < δ, else δ·(d - ½δ)", 2),
    "binary_cross_entropy": Loss(7, "(t - 1)·log(1 - x) - t·log x, 1 - x by a negation", 3),
    "binary_cross_entropy_with_logits": Loss(9, "(1 - t)·x - (min(x, 0) - log(1 + exp(-|x|)))", 4),
    "kl_div": Loss(4, "t·(log t - x), zero where t is", 2),
}
_GRADIENTS: Final[dict[str, tuple[int, str]]] = {
    "mse_loss_backward": (3, "(2/n)·(x - t)·dy"),
    "smooth_l1_loss_backward": (4, "difference, its bounds ±beta, times dy/n"),
    "huber_loss_backward": (4, "difference, its bounds ±δ, times dy/n"),
    "binary_cross_entropy_backward": (6, "dy·(x - t) / max((1 - x)·x, ε)"),
}
_KEPT: Final = 0  # at::Reduction::None

for _name, _loss in _LOSSES.items():
    declare(
        f"loss.{_name}",
        f"{_loss.operations} per element, and 1 to sum them: {_loss.expression}.\n\n"
        "With reduction none the results are written. Reads x and t.",
    )
for _name, (_count, _expression) in _GRADIENTS.items():
    declare(
        f"loss.{_name}",
        f"{_count} per element: {_expression}.\n\nReads x, t and dy; writes dx.",
    )
NLL = declare(
    "loss.nll",
    """1 per sample: the log-probability of its class is summed.

    Reads the classes and one log-probability each; writes the loss.
    """,
)
NLL_BACKWARD = declare(
    "loss.nll_backward",
    """1 per sample: -dy/n is written at its class, zero elsewhere.

    Reads the classes; writes the gradient of all log-probabilities.
    """,
)


@operator(*(f"aten::{name}" for name in _LOSSES))
def loss(call: Call) -> tuple[Cost, ...]:
    """Prediction, target, and the reduction."""
    name = call.name.removeprefix("aten::")
    one = _LOSSES[name]
    elements = prod(broadcast(call.shape(0), call.shape(1)))
    if not call.scalars:
        raise UncountableError("loss reduction mode not recorded")
    summed = call.integer(one.reduction) != _KEPT
    moved = compulsory(
        call.operand(0), call.operand(1), Operand(1 if summed else elements, call.size(0))
    )
    flops = elements * (one.operations + summed)
    return (Cost("loss", "forward", flops, moved, f"loss.{name}"),)


@operator(*(f"aten::{name}" for name in _GRADIENTS))
def loss_backward(call: Call) -> tuple[Cost, ...]:
    """The loss's gradient, prediction, target."""
    name = call.name.removeprefix("aten::")
    elements = call.elements(1)
    flops = elements * _GRADIENTS[name][0]
    moved = compulsory(
        call.operand(0), call.operand(1), call.operand(2), Operand(elements, call.size(1))
    )
    return (Cost("loss", "backward", flops, moved, f"loss.{name}"),)


@operator("aten::nll_loss", "aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll(call: Call) -> tuple[Cost, ...]:
    """Log-probabilities, classes."""
    samples = call.elements(1)
    moved = compulsory(call.operand(1), Operand(samples + 1, call.size(0)))
    return (Cost("loss", "forward", samples, moved, NLL),)


@operator("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_backward(call: Call) -> tuple[Cost, ...]:
    """The loss's gradient, log-probabilities, classes."""
    moved = compulsory(call.operand(2), call.operand(1))
    return (Cost("loss", "backward", call.elements(2), moved, NLL_BACKWARD),)
