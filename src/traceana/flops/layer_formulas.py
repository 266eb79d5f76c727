"""The cost of a model's layer from its type and shapes, without a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isqrt, prod
from typing import Final

import msgspec

from traceana.flops import convolution, normalization, pooling
from traceana.flops.attention import Attention
from traceana.flops.attention import forward as attention_forward
from traceana.flops.convolution import Convolution
from traceana.flops.cost import Cost, Operand, Part, Refusal, Shape, UncountableError, compulsory
from traceana.flops.elementwise import ELEMENTWISE
from traceana.flops.matmul import bias_grad, matmul
from traceana.flops.reduction import softmax, softmax_backward


class Layer(msgspec.Struct, frozen=True):
    """A layer of a manifest and the shapes of one call.

    ``type`` is the class in PyTorch (``Conv2d``) or Keras (``Dense``). Activations are [N, C, …],
    ``parameters`` as in PyTorch: [K, C/g, R, S] ([C, K/g, R, S] of a transposed convolution) and
    [out, in]. ``neighbours`` is the number of channels of a local response normalization. A
    ``first`` layer has no gradient of its input. ``size`` is the bytes of an element.
    """

    type: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: Mapping[str, Shape] = msgspec.field(default_factory=dict)
    kernel: Shape | None = None
    groups: int | None = None
    neighbours: int | None = None
    training: bool = True
    first: bool = False
    size: int | None = 4

    @property
    def elements(self) -> int:
        """The elements of the first input."""
        return prod(self.inputs[0])

    @property
    def weight(self) -> Shape | None:
        """The parameter of that name, else the first matrix or filter, else the first one."""
        shapes = list(self.parameters.values())
        if "weight" in self.parameters:
            return self.parameters["weight"]
        return next((one for one in shapes if len(one) > 1), shapes[0] if shapes else None)

    @property
    def bias(self) -> bool:
        """Whether a weight has a vector beside it."""
        shapes = self.parameters.values()
        return any(len(one) > 1 for one in shapes) and any(len(one) == 1 for one in shapes)


Costs = tuple[Cost, ...]


def layer_costs(layer: Layer, *, backward: bool = False) -> Costs | Refusal:
    """Return the parts of the layer's work: forward, and with ``backward`` its gradients.

    A ``Refusal`` is returned for a type without a formula and for shapes that do not match it.
    """
    kind = layer.type.lower().replace("_", "")
    count = next((count for types, count in _LAYERS.items() if re.fullmatch(types, kind)), None)
    if count is None:
        return Refusal("no FLOP formula for this layer type")
    try:
        costs = count(layer)
    except UncountableError as error:
        return Refusal(str(error))
    except (IndexError, KeyError):
        return Refusal("shapes of the layer unknown")
    forward = tuple(one for one in costs if one.part == "forward")
    if backward and costs and len(forward) == len(costs):
        return Refusal("no FLOP formula for the gradients of this layer type")
    return costs if backward else forward


def _convolution(layer: Layer) -> Costs:
    entering, leaving, weight = layer.inputs[0], layer.outputs[0], layer.weight
    window = layer.kernel
    if window is None:
        if weight is None or not 3 <= len(weight) <= 5:
            raise UncountableError("no convolution weight")
        window = weight[2:]
    if len(entering) != len(window) + 2 or len(leaving) != len(window) + 2:
        raise UncountableError("rank mismatch of input, output and weight")
    conv = Convolution(
        batch=entering[0],
        in_channels=entering[1],
        out_channels=leaving[1],
        window=window,
        output=leaving[2:],
        input=entering[2:],
        groups=layer.groups or 1,
        transposed="transpose" in layer.type.lower(),
    )
    if weight is not None and conv.weights != prod(weight):
        raise UncountableError("weight shape does not match the channels")
    return (
        convolution.forward(conv, layer.size, layer.bias),
        *([] if layer.first else [convolution.dgrad(conv, layer.size)]),
        convolution.wgrad(conv, layer.size),
        *([convolution.bias_grad(conv, layer.size)] if layer.bias else []),
    )


def _separable(layer: Layer) -> Costs:
    """A depthwise convolution, and one of 1 x 1 behind it."""
    entering, leaving, kernel = layer.inputs[0], layer.outputs[0], layer.kernel or ()
    between = (leaving[0], layer.parameters["weight"][0], *leaving[2:])
    parts = (
        ("Conv", entering, between, kernel, entering[1]),
        ("Conv", between, leaving, (1,) * len(kernel), 1),
    )
    return tuple(
        cost
        for kind, read, written, window, groups in parts
        for cost in _convolution(Layer(kind, (read,), (written,), {}, window, groups))
    )


def _linear(layer: Layer) -> Costs:
    entering, leaving, weight = layer.inputs[0], layer.outputs[0], layer.weight
    rows, size = prod(entering[:-1]), layer.size
    if weight is not None:
        # Several axes may be contracted: inputs are rows x k, outputs rows x n, weights k x n.
        square = prod(entering) * prod(leaving)
        rows = isqrt(square // (prod(weight) or 1))
        if rows * rows * prod(weight) != square:
            raise UncountableError("weight shape does not match input and output")
    k, n = prod(entering) // rows, prod(leaving) // rows
    return (
        matmul(rows, n, k, size, addend=n if layer.bias else 0, kind="linear"),
        *([] if layer.first else [matmul(rows, k, n, size, kind="linear", part="dgrad")]),
        matmul(n, k, rows, size, kind="linear", part="wgrad"),
        *([bias_grad(rows, n, size)] if layer.bias else []),
    )


def _attention(layer: Layer) -> Costs:
    """The projections and the products of attention."""
    query = layer.inputs[0]
    # Keras takes (query, value, key), and value may serve as key. They have equal lengths, and
    # only the length is used here.
    key = layer.inputs[1] if len(layer.inputs) > 1 else query
    batch, queries, keys = query[0], query[-2], key[-2]
    rows = {"query": queries, "key": keys, "value": keys, "out": queries}
    weights = {part: layer.parameters[f"{part}.weight"][:2] for part in rows}
    extents = Attention(
        batch=batch,
        heads=1,
        key_heads=1,
        queries=queries,
        keys=keys,
        width=weights["query"][0],
        value_width=weights["value"][0],
    )
    return (
        *(matmul(batch * rows[part], n, k, layer.size) for part, (n, k) in weights.items()),
        attention_forward(extents, layer.size),
    )


def _recurrent(layer: Layer) -> Costs:
    """The products of the weights with the input and the state."""
    positions = prod(layer.inputs[0][:-1])
    matrices = [shape for shape in layer.parameters.values() if len(shape) == 2]
    return tuple(matmul(positions, n, k, layer.size) for n, k in matrices)


def _normalization(layer: Layer) -> Costs:
    shape, size = layer.inputs[0], layer.size
    weight = 0 if layer.weight is None else prod(layer.weight)
    if layer.type.lower().startswith("rms"):
        x = normalization.Normalized(layer.elements, weight, 0, size, size)
        return (normalization.root_mean_square(x),)
    if "batch" in layer.type.lower():
        channels = shape[1] if len(shape) > 1 else 0
        x = normalization.Normalized(layer.elements, weight, channels, size, size)
        way = normalization.training if layer.training else normalization.inference
        back = normalization.batch_backward(x, "batch_norm", layer.training)
        return (way(x, "batch_norm"), back)
    rows, kind = (layer.elements // weight if weight else prod(shape[:-1])), "layer_norm"
    of_row: int | None = size
    if not layer.type.lower().startswith("layer"):
        # How many groups of channels have a mean is not in a manifest.
        kind, of_row = layer.type.lower().removesuffix("norm") + "_norm", None
    x = normalization.Normalized(layer.elements, weight, rows, size, of_row)
    return (normalization.training(x, kind), normalization.layer_backward(x, kind))


def _local_response(layer: Layer) -> Costs:
    if layer.neighbours is None:
        raise UncountableError("LRN size unknown")
    extents = layer.elements, layer.neighbours, layer.size
    return (
        normalization.local_response(*extents),
        normalization.local_response_backward(*extents),
    )


def _pool(layer: Layer) -> Costs:
    inputs, outputs, size = layer.elements, prod(layer.outputs[0]), layer.size
    kind = layer.type.lower()
    largest = "max" in kind
    if kind.startswith(("adaptive", "global")):
        if largest:
            return (pooling.adaptive_maximum(inputs, outputs, size, index_size=None),)
        return (
            pooling.adaptive_average(inputs, outputs, size),
            pooling.adaptive_average_backward(inputs, outputs, size),
        )
    if layer.kernel is None:
        raise UncountableError("pooling window unknown")
    window = prod(layer.kernel)
    if largest:
        return (
            pooling.maximum(inputs, outputs, window, size),
            pooling.maximum_backward(inputs, outputs, size, index_size=None),
        )
    return (
        pooling.average(inputs, outputs, window, size),
        pooling.average_backward(inputs, outputs, window, size),
    )


def _softmax(layer: Layer) -> Costs:
    log, size = layer.type.lower().startswith("log"), layer.size
    return (
        softmax(layer.elements, size, size, log=log),
        softmax_backward(layer.elements, size, log=log),
    )


def _elementwise(layer: Layer) -> Costs:
    kind = layer.type.lower().replace("_", "")
    name, times, elements = _ELEMENTWISE.get(kind, kind), 1, layer.elements
    if kind in _COMBINING:
        # The inputs are combined pairwise.
        times, elements = len(layer.inputs) - 1, prod(layer.outputs[0])
    parts: list[tuple[str, Part, int]] = [(name, "forward", 2)]
    if f"{name}_backward" in ELEMENTWISE:
        parts.append((f"{name}_backward", "backward", 3))
    image = Operand(elements, layer.size)
    return tuple(
        Cost(
            ELEMENTWISE[one].kind,
            part,
            times * ELEMENTWISE[one].operations * elements,
            compulsory(*(image,) * operands),
            ELEMENTWISE[one].formula,
        )
        for one, part, operands in parts
    )


_COMBINING: Final = ("add", "subtract", "multiply")
_ELEMENTWISE: Final = {
    **{"leakyrelu": "leaky_relu", "swish": "silu", "relu6": "hardtanh"},
    **{"add": "add", "subtract": "sub", "multiply": "mul"},
}
"""Operations on elements by layer type, where the names differ."""

_LAYERS: Final[Mapping[str, Callable[[Layer], Costs]]] = {
    r"(lazy)?conv(transpose)?([123]d)?(transpose)?": _convolution,
    r"separableconv([123]d)?": _separable,
    r"linear|dense": _linear,
    r"multiheadattention": _attention,
    r"(lstm|gru|rnn)(cell)?": _recurrent,
    r"(sync)?batchnorm([123]d)?|batchnormalization": _normalization,
    r"(layer|group|rms)(norm|normalization)|instancenorm([123]d)?": _normalization,
    r"localresponsenorm|lrn": _local_response,
    r"(adaptive|global)?(max|avg|average)pool(ing)?([123]d)?": _pool,
    r"(log)?softmax": _softmax,
    r"relu6?|leakyrelu|elu|gelu|silu|swish|mish|sigmoid|tanh|softplus|dropout": _elementwise,
    r"hard(sigmoid|swish|tanh)": _elementwise,
    "|".join(_COMBINING): _elementwise,
    r"flatten|unflatten|identity|embedding|zeropad[123]d|pixelshuffle|pixelunshuffle": lambda _: (),
    r"channelshuffle|concatenate|reshape|permute|inputlayer": lambda _: (),
}
"""Formulas by layer type, in lower case; the last ones only move elements."""
