"""PyTorch's operators on lists of tensors (``_foreach_add_``), as optimizers use them."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand
from traceana.flops.neutral.functions import FUNCTIONS
from traceana.flops.neutral.pointwise import per_element
from traceana.flops.registry import operator

_FUNCTION_OF: Final[dict[str, str]] = {
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


@operator(*(f"aten::_foreach_{plain}{end}" for plain in _FUNCTION_OF for end in ("", "_")))
def foreach(call: Call) -> tuple[Cost, ...]:
    """Lists of tensors of equal shapes; their type is not recorded, so bytes are not known."""
    plain = call.name.removeprefix("aten::_foreach_").removesuffix("_")
    function = FUNCTIONS[_FUNCTION_OF[plain]]
    elements = sum(prod(shape) for shape in call.tensor_list(0))
    operations = function.operations
    # _foreach_add(a, b, alpha): a - lr · b
    if function.name in ("add", "sub") and len(call.scalars) > 2 and call.scalars[2]:
        operations += call.number(2) != 1.0
    unknown = Operand(elements, None)
    return (per_element(function.formula, "elementwise", elements, operations, unknown),)
