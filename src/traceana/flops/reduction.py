"""Reductions, softmax and losses: operators with fewer results than elements."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call, Cost, Operand, UncountableError, broadcast, compulsory
from traceana.flops.registry import declare, function

# Reductions.

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


@function("sum", "mean", "norm", "scan")
def reduce(call: Call) -> tuple[Cost, ...]:
    """A tensor, the reduced dimensions, whether they are kept as 1."""
    elements, image = call.elements("x"), call.operand("x")
    operations, written, name = elements, image, SCAN
    if call.formula == "norm":
        # The few written bytes are not counted.
        operations, written, name = 2 * elements, None, NORM
    elif call.formula != "scan":
        results = _results(call)
        written, name = Operand(results, call.size("x")), SUM
        if call.formula == "mean":
            if results is None:
                raise UncountableError("reduction dimensions not recorded")
            operations, name = elements + results, MEAN
    return (Cost("reduction", "forward", operations, compulsory(image, written), name),)


def _results(call: Call) -> int | None:
    """Return the number of results; ``None`` where the dimensions were not recorded.

    Without dimensions (the form with one input and a type) there is one result.
    """
    shape = call.shape("x")
    given = len(call.scalars) > 1 and bool(call.scalars[1])
    if len(call.shapes) <= 2 and not given:
        return 1
    if not given:
        return None
    dimensions = call.integers("dims")
    if not dimensions:
        return 1
    rank = max(len(shape), 1)
    if any(not -rank <= dimension < rank for dimension in dimensions):
        raise UncountableError("reduction dimension out of range")
    gone = {dimension % rank for dimension in dimensions}
    return prod(extent for place, extent in enumerate(shape) if place not in gone)


# Softmax and its logarithm.


SOFTMAX = declare(
    "softmax.forward",
    """5 per element, also for the logarithm: maximum, subtraction, exponential, sum, division.

    exp(x - max) / Σexp(x - max); the logarithm subtracts log Σ instead of dividing.
    Reads the input, writes the output.
    """,
)
SOFTMAX_BACKWARD = declare(
    "softmax.backward",
    """4 per element: y·(dy - Σdy·y), or for the logarithm dy - exp(y)·Σdy.

    Product, sum, difference, product; for the logarithm sum, exponential, product, difference.
    Reads dy and y, writes dx.
    """,
)
CROSS_ENTROPY = declare(
    "softmax.cross_entropy",
    """9 · N · K, or 6 · N · K + 2 · N where labels are classes: -Σt·log p and its gradient p - t.

    log p: 5. p: an exponential. t·log p, summed: 2, and p - t: 1; where the labels are classes
    each of the two is one operation per sample. Reads N·K logits and the labels; writes N losses
    and N·K gradients.
    """,
)


@function("softmax", "log_softmax")
def softmax(call: Call) -> tuple[Cost, ...]:
    """A tensor."""
    image, flops = call.operand("x"), 5 * call.elements("x")
    return (Cost(call.formula, "forward", flops, compulsory(image, image), SOFTMAX),)


@function("softmax_backward", "log_softmax_backward")
def softmax_backward(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, output."""
    image, flops = call.operand("y"), 4 * call.elements("y")
    kind = call.formula.removesuffix("_backward")
    return (Cost(kind, "backward", flops, compulsory(image, image, image), SOFTMAX_BACKWARD),)


@function("cross_entropy", "sparse_cross_entropy")
def cross_entropy(call: Call) -> tuple[Cost, ...]:
    """Logits [N, classes] and labels: classes, or a distribution over them; loss and gradient."""
    samples, classes = call.shape("x", 2)
    logits, sparse = samples * classes, call.formula == "sparse_cross_entropy"
    flops = 6 * logits + 2 * samples if sparse else 9 * logits
    image, losses = call.operand("x"), Operand(samples, call.size("x"))
    moved = compulsory(image, call.operand("labels"), losses, image)
    return (Cost("loss", "forward", flops, moved, CROSS_ENTROPY),)


# Losses.

_LOSSES: Final[dict[str, tuple[int, str]]] = {
    "l1_loss": (2, "|x - t|"),
    "mse_loss": (2, "(x - t)²"),
    "smooth_l1_loss": (5, "d = |x - t|; ½d²/beta where d < beta, else d - ½beta"),
    "huber_loss": (5, "d = |x - t|; ½d² where d < δ, else δ·(d - ½δ)"),
    "binary_cross_entropy": (7, "(t - 1)·log(1 - x) - t·log x, 1 - x by a negation"),
    "binary_cross_entropy_with_logits": (9, "(1 - t)·x - (min(x, 0) - log(1 + exp(-|x|)))"),
    "kl_div": (4, "t·(log t - x), zero where t is"),
}
_GRADIENTS: Final[dict[str, tuple[int, str]]] = {
    "mse_loss_backward": (3, "(2/n)·(x - t)·dy"),
    "smooth_l1_loss_backward": (4, "difference, its bounds ±beta, times dy/n"),
    "huber_loss_backward": (4, "difference, its bounds ±δ, times dy/n"),
    "binary_cross_entropy_backward": (6, "dy·(x - t) / max((1 - x)·x, ε)"),
}
_KEPT: Final = 0  # at::Reduction::None

for _name, (_count, _expression) in _LOSSES.items():
    declare(
        f"loss.{_name}",
        f"{_count} per element, and 1 to sum them: {_expression}.\n\n"
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


@function(*_LOSSES, *_GRADIENTS)
def loss(call: Call) -> tuple[Cost, ...]:
    """Prediction, target, and the reduction; of a gradient also that of the loss."""
    name, size = f"loss.{call.formula}", call.size("x")
    if call.formula in _GRADIENTS:
        elements, (each, _) = call.elements("x"), _GRADIENTS[call.formula]
        read = (call.operand(operand) for operand in ("dy", "x", "target"))
        moved = compulsory(*read, Operand(elements, size))
        return (Cost("loss", "backward", elements * each, moved, name),)
    elements = prod(broadcast(call.shape("x"), call.shape("target")))
    if not call.scalars:
        raise UncountableError("loss reduction mode not recorded")
    summed = call.integer("reduction") != _KEPT
    written = Operand(1 if summed else elements, size)
    moved = compulsory(call.operand("x"), call.operand("target"), written)
    return (Cost("loss", "forward", elements * (_LOSSES[call.formula][0] + summed), moved, name),)


@function("nll_loss", "nll_loss_backward")
def nll(call: Call) -> tuple[Cost, ...]:
    """Log-probabilities and classes, or the loss's gradient before them."""
    samples, classes = call.elements("classes"), call.operand("classes")
    if call.formula == "nll_loss":
        moved = compulsory(classes, Operand(samples + 1, call.size("x")))
        return (Cost("loss", "forward", samples, moved, NLL),)
    return (
        Cost("loss", "backward", samples, compulsory(classes, call.operand("x")), NLL_BACKWARD),
    )
