"""PyTorch's elementwise operators: arithmetic, comparisons, activations and their gradients."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, Part
from traceana.flops.neutral.broadcast import broadcast
from traceana.flops.neutral.functions import FUNCTIONS, Function
from traceana.flops.neutral.pointwise import per_element
from traceana.flops.registry import operator
from traceana.flops.types import element_size, floating, promoted
from traceana.flops.words import words

# Function by operator, without namespace; each is registered with and without the trailing "_"
# of the form that works in place.
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
        words("exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan erf erfc"),
        "elementary",
    ),
    **dict.fromkeys(
        words(
            "eq ne lt le gt ge isnan isinf isneginf logical_not logical_and logical_or logical_xor "
            "bitwise_not bitwise_and bitwise_or bitwise_xor"
        ),
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
    for name in words(
        "leaky_relu leaky_relu_backward elu elu_backward sigmoid sigmoid_backward tanh "
        "tanh_backward silu silu_backward softplus softplus_backward mish hardtanh "
        "hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward "
        "gelu_backward"
    )
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
    """A tensor and two bounds, either of which may be missing."""
    bounds = sum(1 for text in call.scalars[1:3] if text) if call.scalars else 2
    # Bounds that are tensors have no text.
    return (_cost(call, FUNCTIONS["clamp"], bounds or 2),)


@operator("aten::gelu", "aten::gelu_")
def gelu(call: Call) -> tuple[Cost, ...]:
    """A tensor, and the way of approximation: that by tanh takes more where it is recorded."""
    by_tanh = len(call.scalars) > 1 and "tanh" in call.scalars[1]
    return (_cost(call, FUNCTIONS["gelu_tanh" if by_tanh else "gelu"]),)


@operator("aten::native_dropout", "aten::_fused_dropout")
def dropout(call: Call) -> tuple[Cost, ...]:
    """A tensor; the result and a mask of a byte an element are written."""
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
    # A tensor of no dimensions does not widen the others.
    deciding = [one for one in tensors if call.shape(one)] or list(tensors)
    if any(one >= len(call.types) for one in deciding):
        return None
    name = promoted(call.types[one] for one in deciding)
    if name is None:
        return None
    return element_size(floating(name) if function.result == "floating" else name)


def _scaled(call: Call) -> bool:
    """Tell whether alpha, the last scalar of add and sub, was recorded and is not 1."""
    if len(call.scalars) < 3 or not call.scalars[2]:
        return False
    return call.number(2) != 1.0
