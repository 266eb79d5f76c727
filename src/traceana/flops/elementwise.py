"""Elementwise functions: their expressions, operations per element, and operators.

An arithmetic operation, a comparison or an elementary function (exp, log, tanh, erf, square root,
power, reciprocal) of one element is one operation; constants are folded.
"""

from __future__ import annotations

from math import prod
from typing import Final, Literal

import msgspec

from traceana.flops.call import Call, element_size, floating, promoted
from traceana.flops.cost import Cost, Operand, Part, UncountableError, broadcast, per_element
from traceana.flops.matmul import bias_grad
from traceana.flops.registry import declare, operator

Result = Literal["same", "floating", "bool"]


class Function(msgspec.Struct, frozen=True):
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
    Function("dropout", "dropout", 2, "x · mask · 1/(1 - p); drawing the mask is not counted"),
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
        f"{_times} per element: {_one.expression}.\n\nReads each operand, writes the result.",
    )


# Function by operator, without namespace; each is registered with and without the trailing "_"
# of the in-place form.
_FUNCTION_OF: Final[dict[str, str]] = {
    **dict.fromkeys(("add",), "add"),
    **dict.fromkeys(("sub", "rsub"), "sub"),
    **dict.fromkeys(("mul", "multiply"), "mul"),
    **dict.fromkeys(("div", "true_divide", "divide", "floor_divide", "remainder", "fmod"), "div"),
    **dict.fromkeys(("neg", "negative"), "negate"),
    "abs": "absolute",
    "square": "square",
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), "extremum"),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign", "sgn"), "round"),
    "addcmul": "addcmul",
    "addcdiv": "addcdiv",
    "lerp": "lerp",
    "pow": "power",
    **dict.fromkeys(
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan erf erfc".split(),
        "elementary",
    ),
    **dict.fromkeys(
        (
            "eq ne lt le gt ge isnan isinf isneginf logical_not logical_and logical_or logical_xor "
            "bitwise_not bitwise_and bitwise_or bitwise_xor"
        ).split(),
        "compare",
    ),
    **dict.fromkeys(("where", "masked_fill", "nan_to_num", "triu", "tril"), "select"),
    "relu": "relu",
    "threshold": "relu",
    "relu6": "relu6",
    **dict.fromkeys(("clamp_min", "clamp_max"), "relu"),
    "threshold_backward": "relu_backward",
    "_prelu_kernel": "prelu",
    "_prelu_kernel_backward": "prelu_backward",
    "native_dropout_backward": "dropout_backward",
}
_FUNCTION_OF.update(
    (name, name)
    for name in (
        "leaky_relu leaky_relu_backward elu elu_backward sigmoid sigmoid_backward tanh "
        "tanh_backward silu silu_backward softplus softplus_backward mish hardtanh "
        "hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward "
        "gelu_backward"
    ).split()
)

_KEEPS_ITS_NAME: Final = frozenset({"_prelu_kernel", "_prelu_kernel_backward"})


def _names(plain: str) -> tuple[str, ...]:
    if plain.endswith("_backward") or plain in _KEEPS_ITS_NAME:
        return (f"aten::{plain}",)
    return f"aten::{plain}", f"aten::{plain}_"


@operator(*(name for plain in _FUNCTION_OF for name in _names(plain)))
def elementwise(call: Call) -> tuple[Cost, ...]:
    """All tensors, broadcast together; the result is of their common type, or of bool."""
    plain = call.name.removeprefix("aten::")
    function = FUNCTIONS[_FUNCTION_OF.get(plain) or _FUNCTION_OF[plain.removesuffix("_")]]
    operations = function.operations
    if function.name in ("add", "sub") and _scaled(call):
        operations += 1
    return (_cost(call, function, operations),)


@operator("aten::clamp", "aten::clamp_")
def clamp(call: Call) -> tuple[Cost, ...]:
    """A tensor and two bounds; either may be missing."""
    bounds = sum(1 for text in call.scalars[1:3] if text) if call.scalars else 2
    # Bounds that are tensors have no text.
    return (_cost(call, FUNCTIONS["clamp"], bounds or 2),)


@operator("aten::gelu", "aten::gelu_")
def gelu(call: Call) -> tuple[Cost, ...]:
    """A tensor, and the approximation: tanh, where recorded, needs more operations."""
    by_tanh = len(call.scalars) > 1 and "tanh" in call.scalars[1]
    return (_cost(call, FUNCTIONS["gelu_tanh" if by_tanh else "gelu"]),)


@operator("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: Call) -> tuple[Cost, ...]:
    """A tensor; the result and a mask of a byte per element are written."""
    elements = call.elements(0)
    image = call.operand(0)
    function = FUNCTIONS["dropout"]
    mask = Operand(elements, 1)
    cost = per_element(
        function.formula, "dropout", elements, function.operations, image, image, mask
    )
    return (cost,)


def _cost(call: Call, function: Function, operations: int | None = None) -> Cost:
    tensors = call.tensors()
    shapes = [call.shape(position) for position in tensors] or [call.shape(0)]
    elements = prod(broadcast(*shapes))
    part: Part = "backward" if function.name.endswith("_backward") else "forward"
    return per_element(
        function.formula,
        function.kind,
        elements,
        function.operations if operations is None else operations,
        *(call.operand(position) for position in tensors),
        Operand(elements, _result_size(call, function, tensors)),
        part=part,
    )


def _result_size(call: Call, function: Function, tensors: tuple[int, ...]) -> int | None:
    if function.result == "bool":
        return 1
    if not call.types:
        return None
    if call.name.endswith("_") and not call.name.endswith("__"):
        return call.size(0)
    if call.name == "aten::where":
        tensors = tensors[1:] or tensors
    # A tensor without dimensions does not widen the others.
    deciding = [one for one in tensors if call.shape(one)] or list(tensors)
    if any(one >= len(call.types) for one in deciding):
        return None
    name = promoted(call.types[one] for one in deciding)
    if name is None:
        return None
    return element_size(floating(name) if function.result == "floating" else name)


def _scaled(call: Call) -> bool:
    """Return whether alpha, the last scalar of add and sub, was recorded and is not 1."""
    if len(call.scalars) < 3 or not call.scalars[2]:
        return False
    return call.number(2) != 1.0


_FOREACH_FUNCTION_OF: Final[dict[str, str]] = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "neg": "negate",
    "abs": "absolute",
    "sqrt": "elementary",
    "exp": "elementary",
    "reciprocal": "elementary",
    "pow": "power",
    "lerp": "lerp",
    "addcmul": "addcmul",
    "addcdiv": "addcdiv",
    "maximum": "extremum",
    "zero": "select",
    "copy": "select",
}


@operator(*(f"aten::_foreach_{plain}{end}" for plain in _FOREACH_FUNCTION_OF for end in ("", "_")))
def foreach(call: Call) -> tuple[Cost, ...]:
    """Lists of tensors of equal shapes; their type is not recorded, so bytes are unknown."""
    plain = call.name.removeprefix("aten::_foreach_").removesuffix("_")
    function = FUNCTIONS[_FOREACH_FUNCTION_OF[plain]]
    elements = sum(prod(shape) for shape in call.tensor_list(0))
    operations = function.operations
    # _foreach_add(a, b, alpha): a - lr · b
    if function.name in ("add", "sub") and len(call.scalars) > 2 and call.scalars[2]:
        operations += call.number(2) != 1.0
    unknown = Operand(elements, None)
    return (per_element(function.formula, "elementwise", elements, operations, unknown),)


_TF_FUNCTION_OF: Final[dict[str, str]] = {
    "Relu": "relu",
    "ReluGrad": "relu_backward",
    "Relu6": "relu6",
    "Elu": "elu",
    "EluGrad": "elu_backward",
    "Selu": "elu",
    "LeakyRelu": "leaky_relu",
    "LeakyReluGrad": "leaky_relu_backward",
    "Sigmoid": "sigmoid",
    "SigmoidGrad": "sigmoid_backward",
    "Tanh": "tanh",
    "TanhGrad": "tanh_backward",
    "Softplus": "softplus",
    "BiasAdd": "bias_add",
    "BiasAddV1": "bias_add",
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "Div": "div",
    "Neg": "negate",
    "Abs": "absolute",
    "Square": "square",
    "SquaredDifference": "squared_difference",
    "Maximum": "extremum",
    "Minimum": "extremum",
    "Pow": "power",
    **dict.fromkeys(("Exp", "Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Erf"), "elementary"),
    **dict.fromkeys(
        ("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"), "compare"
    ),
    "SelectV2": "select",
}


@operator(*_TF_FUNCTION_OF)
def tf_elementwise(call: Call) -> tuple[Cost, ...]:
    """All tensors, broadcast together; for BiasAdd an image and its channels' biases."""
    function = FUNCTIONS[_TF_FUNCTION_OF[call.name]]
    tensors = call.tensors()
    shapes = [call.shape(position) for position in tensors] or [call.shape(0)]
    shape = shapes[0] if function.name == "bias_add" else broadcast(*shapes)
    elements = prod(shape)
    written = 1 if function.result == "bool" else call.size(tensors[-1] if tensors else 0)
    part: Part = "backward" if function.name.endswith("_backward") else "forward"
    cost = per_element(
        function.formula,
        function.kind,
        elements,
        function.operations,
        *(call.operand(position) for position in tensors),
        Operand(elements, written),
        part=part,
    )
    return (cost,)


@operator("BiasAddGrad")
def tf_bias_add_gradient(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, its channels last."""
    gradient = call.shape(0)
    if not gradient:
        raise UncountableError("input 0: unexpected rank 0")
    return (bias_grad(prod(gradient[:-1]), gradient[-1], call.size(0)),)
