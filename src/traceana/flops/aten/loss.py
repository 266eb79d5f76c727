"""PyTorch's losses and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, UncountableError, compulsory
from traceana.flops.neutral.broadcast import broadcast
from traceana.flops.registry import declare, operator


@dataclass(frozen=True, slots=True)
class Loss:
    """An elementwise loss: operations an element, and where its reduction stands."""

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
        f"{_loss.operations} an element, and 1 to sum them: {_loss.expression}.\n\n"
        "Where nothing is summed (reduction none) the results are written. Reads x and t.",
    )
for _name, (_count, _expression) in _GRADIENTS.items():
    declare(
        f"loss.{_name}",
        f"{_count} an element: {_expression}.\n\nReads x, t and dy; writes dx.",
    )
NLL = declare(
    "loss.nll",
    """1 a sample: the log-probability of its class is taken and summed.

    Reads the classes and one log-probability each; writes the loss.
    """,
)
NLL_BACKWARD = declare(
    "loss.nll_backward",
    """1 a sample: -dy/n is written at its class, zero elsewhere.

    Reads the classes; writes the gradient of all log-probabilities.
    """,
)


@operator(*(f"aten::{name}" for name in _LOSSES))
def loss(call: Call) -> tuple[Cost, ...]:
    """Prediction, target, and the way of reduction."""
    name = call.name.removeprefix("aten::")
    one = _LOSSES[name]
    elements = prod(broadcast(call.shape(0), call.shape(1)))
    if not call.scalars:
        raise UncountableError("the way of reduction was not recorded")
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
