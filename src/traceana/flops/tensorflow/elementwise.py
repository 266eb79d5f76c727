"""TensorFlow's elementwise operators: bias, activations, arithmetic."""

from __future__ import annotations

from math import prod
from typing import Final

from traceana.flops.call import Call
from traceana.flops.model import Cost, Operand, Part, UncountableError
from traceana.flops.neutral.broadcast import broadcast
from traceana.flops.neutral.functions import FUNCTIONS
from traceana.flops.neutral.matmul import bias_grad
from traceana.flops.neutral.pointwise import per_element
from traceana.flops.registry import operator

_FUNCTION_OF: Final[dict[str, str]] = {
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


@operator(*_FUNCTION_OF)
def elementwise(call: Call) -> tuple[Cost, ...]:
    """All tensors, broadcast together; of BiasAdd an image and its channels' biases."""
    function = FUNCTIONS[_FUNCTION_OF[call.name]]
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
def bias_add_gradient(call: Call) -> tuple[Cost, ...]:
    """The output's gradient, its channels last."""
    gradient = call.shape(0)
    if not gradient:
        raise UncountableError("input 0 has 0 dimensions")
    return (bias_grad(prod(gradient[:-1]), gradient[-1], call.size(0)),)
