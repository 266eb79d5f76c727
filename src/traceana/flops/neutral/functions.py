"""Elementwise functions: what each computes and how many operations an element that takes.

An arithmetic operation, a comparison or an elementary function (exp, log, tanh, erf, square root,
power, reciprocal) of one element is one operation; constants are folded beforehand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from traceana.flops.registry import declare

Result = Literal["same", "floating", "bool"]


@dataclass(frozen=True, slots=True)
class Function:
    """One elementwise function: its kind, operations an element, and the type of its result."""

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
    Function("add", "elementwise", 1, "a + b (two where alpha is given and not 1)"),
    Function("sub", "elementwise", 1, "a - b (two where alpha is given and not 1)"),
    Function("mul", "elementwise", 1, "a · b"),
    Function("div", "elementwise", 1, "a / b", "floating"),
    Function("negate", "elementwise", 1, "-a"),
    Function("absolute", "elementwise", 1, "|a|"),
    Function("square", "elementwise", 1, "a · a"),
    Function("extremum", "elementwise", 1, "max(a, b), min(a, b)"),
    Function("round", "elementwise", 1, "⌊a⌋, ⌈a⌉, sign and rounding"),
    Function("addcmul", "elementwise", 3, "a + v · b · c"),
    Function("addcdiv", "elementwise", 3, "a + v · b / c"),
    Function("lerp", "elementwise", 3, "a + w · (b - a)"),
    Function("squared_difference", "elementwise", 2, "(a - b)²"),
    Function("power", "elementwise", 1, "aᵇ"),
    Function("elementary", "elementwise", 1, "exp, log, √, 1/√, 1/a, sin, cos, erf", "floating"),
    Function("compare", "elementwise", 1, "a < b, a = b, is NaN, not, and, or", "bool"),
    Function("select", "elementwise", 0, "a where a condition holds, else b: no arithmetic"),
    # Activations.
    Function("relu", "activation", 1, "max(x, 0)"),
    Function("relu_backward", "activation", 1, "dy where x > 0"),
    Function("relu6", "activation", 2, "min(max(x, 0), 6)"),
    Function("clamp", "activation", 2, "min(max(x, a), b); one where one bound is given"),
    Function("leaky_relu", "activation", 2, "x where x > 0, else s · x"),
    Function("leaky_relu_backward", "activation", 2, "dy where x > 0, else s · dy"),
    Function("prelu", "activation", 2, "x where x > 0, else w · x"),
    Function("prelu_backward", "activation", 3, "dx: compare, w · dy; dw: x · dy"),
    Function("elu", "activation", 4, "x where x > 0, else alpha · (exp(x) - 1)"),
    Function("elu_backward", "activation", 3, "dy where x > 0, else dy · (y + alpha)"),
    Function("sigmoid", "activation", 4, "1 / (1 + exp(-x))", "floating"),
    Function("sigmoid_backward", "activation", 3, "dy · y · (1 - y)"),
    Function("tanh", "activation", 1, "tanh(x)", "floating"),
    Function("tanh_backward", "activation", 3, "dy · (1 - y · y)"),
    Function("silu", "activation", 5, "x · sigma(x)"),
    Function("silu_backward", "activation", 9, "dy · sigma · (1 + x · (1 - sigma)), sigma again"),
    Function("gelu", "activation", 5, "x/2 · (1 + erf(x/√2)); Hendrycks and Gimpel (2016)"),
    Function("gelu_tanh", "activation", 9, "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 · x³)))"),
    Function("gelu_backward", "activation", 11, "dy · (Φ(x) + x · φ(x)): Φ 4, φ 4, and 3"),
    Function("softplus", "activation", 3, "log(1 + exp(x))"),
    Function("softplus_backward", "activation", 4, "dy · exp(x) / (1 + exp(x))"),
    Function("mish", "activation", 5, "x · tanh(log(1 + exp(x)))"),
    Function("hardtanh", "activation", 2, "min(max(x, a), b)"),
    Function("hardtanh_backward", "activation", 2, "dy where a < x < b"),
    Function("hardswish", "activation", 5, "x · min(max(x + 3, 0), 6) / 6"),
    Function("hardswish_backward", "activation", 5, "dy · (x/3 + ½) within (-3, 3)"),
    Function("hardsigmoid", "activation", 4, "min(max(x + 3, 0), 6) / 6"),
    Function("hardsigmoid_backward", "activation", 3, "dy / 6 within (-3, 3)"),
    Function("bias_add", "bias", 1, "x + b of the channel"),
    Function("dropout", "dropout", 2, "x · mask · 1/(1 - p); drawing the mask is no operation"),
    Function("dropout_backward", "dropout", 2, "dy · mask · 1/(1 - p)"),
)

FUNCTIONS: Final[dict[str, Function]] = {one.name: one for one in _TABLE}

for _one in _TABLE:
    _times = {
        0: "No operation",
        1: "1 operation",
    }.get(_one.operations, f"{_one.operations} operations")
    declare(
        _one.formula,
        f"{_times} an element: {_one.expression}.\n\nReads each operand, writes the result.",
    )
