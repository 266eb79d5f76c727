"""The cost of a model's layer from its type and shapes in a manifest, without a trace."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import msgspec

from traceana.flops import convolution, normalization, pooling
from traceana.flops.convolution import Convolution
from traceana.flops.cost import Cost, Operand, Refusal, Shape, UncountableError, per_element
from traceana.flops.elementwise import FUNCTIONS
from traceana.flops.matmul import bias_grad, matmul
from traceana.flops.reduction import softmax, softmax_backward


class Layer(msgspec.Struct, frozen=True):
    """A layer of a manifest.

    ``type`` is the class in PyTorch (``Conv2d``), Keras (``Conv2D``, ``Dense``) or Flax (``Conv``).
    Shapes are whole, batch included. With ``channels_last`` images are [N, …, C] and weights
    [R, S, C/g, K] (of a transposed convolution [R, S, K/g, C]; of a dense layer [C, K]), else
    [N, C, …] and [K, C/g, R, S] ([C, K/g, R, S]; [K, C]). ``window`` is the pooling window, or the
    number of channels of a local response normalization. ``size`` is the bytes of an element.
    """

    type: str
    input: Shape
    output: Shape
    weight: Shape | None = None
    bias: bool = False
    groups: int = 1
    window: Shape | None = None
    channels_last: bool = False
    training: bool = True
    first: bool = False
    size: int | None = 4


Costs = tuple[Cost, ...]


def layer_costs(layer: Layer, *, backward: bool = False) -> Costs | Refusal:
    """Return the parts of the layer's work: forward, and with ``backward`` its gradients.

    A ``first`` layer has no gradient of its input. A ``Refusal`` is returned for a type without a
    formula and for shapes that do not match it.
    """
    kind = layer.type.lower().replace("_", "")
    try:
        for names, formula in _LAYERS.items():
            if kind in names:
                return formula(layer, backward)
        if kind in _FREE:
            return ()
        if kind in _ACTIVATIONS:
            return _activation(layer, backward, _ACTIVATIONS[kind])
    except UncountableError as error:
        return Refusal(str(error))
    return Refusal("no FLOP formula for this layer type")


def _read(layer: Layer) -> Convolution:
    transposed = "transpose" in layer.type.lower()
    if layer.weight is None or not 3 <= len(layer.weight) <= 5:
        raise UncountableError("no convolution weight")
    rank = len(layer.weight) - 2
    if len(layer.input) != rank + 2 or len(layer.output) != rank + 2:
        raise UncountableError("rank mismatch of input, output and weight")
    image = slice(1, -1) if layer.channels_last else slice(2, None)
    channel = -1 if layer.channels_last else 1
    window = layer.weight[:-2] if layer.channels_last else layer.weight[2:]
    conv = Convolution(
        batch=layer.input[0],
        in_channels=layer.input[channel],
        out_channels=layer.output[channel],
        window=window,
        output=layer.output[image],
        input=layer.input[image],
        groups=layer.groups,
        transposed=transposed,
    )
    if conv.weights != prod(layer.weight):
        raise UncountableError("weight shape does not match the channels")
    return conv


def _convolution(layer: Layer, backward: bool) -> Costs:
    conv, size = _read(layer), layer.size
    costs = [convolution.forward(conv, size, layer.bias)]
    if backward:
        costs += [] if layer.first else [convolution.dgrad(conv, size)]
        costs.append(convolution.wgrad(conv, size))
        costs += [convolution.bias_grad(conv, size)] if layer.bias else []
    return tuple(costs)


def _linear(layer: Layer, backward: bool) -> Costs:
    if layer.weight is None or len(layer.weight) != 2 or not layer.input or not layer.output:
        raise UncountableError("no GEMM weight")
    k, n, rows, size = layer.input[-1], layer.output[-1], prod(layer.input[:-1]), layer.size
    if sorted(layer.weight) != sorted((n, k)) or prod(layer.output[:-1]) != rows:
        raise UncountableError("weight shape does not match input and output")
    addend = n if layer.bias else 0
    costs = [matmul(rows, n, k, size, addend=addend, kind="linear")]
    if backward:
        if not layer.first:
            costs.append(matmul(rows, k, n, size, kind="linear", part="dgrad"))
        costs.append(matmul(n, k, rows, size, kind="linear", part="wgrad"))
        costs += [bias_grad(rows, n, size)] if layer.bias else []
    return tuple(costs)


def _batch_norm(layer: Layer, backward: bool) -> Costs:
    channels = layer.input[-1 if layer.channels_last else 1] if len(layer.input) > 1 else 0
    weight = 0 if layer.weight is None else prod(layer.weight)
    x = normalization.Normalized(prod(layer.input), weight, channels, layer.size, layer.size)
    way = normalization.training if layer.training else normalization.inference
    forward = way(x, "batch_norm")
    if not backward:
        return (forward,)
    return forward, normalization.batch_backward(x, "batch_norm", layer.training)


def _layer_norm(layer: Layer, backward: bool) -> Costs:
    weight = 0 if layer.weight is None else prod(layer.weight)
    rows = prod(layer.input) // weight if weight else prod(layer.input[:-1])
    x = normalization.Normalized(prod(layer.input), weight, rows, layer.size, layer.size)
    forward = normalization.training(x, "layer_norm")
    return (forward, normalization.layer_backward(x, "layer_norm")) if backward else (forward,)


def _local_response(layer: Layer, backward: bool) -> Costs:
    if layer.window is None or len(layer.window) != 1:
        raise UncountableError("LRN size unknown")
    extents = prod(layer.input), layer.window[0], layer.size
    forward = normalization.local_response(*extents)
    return (forward, normalization.local_response_backward(*extents)) if backward else (forward,)


def _max_pool(layer: Layer, backward: bool) -> Costs:
    inputs, outputs, window = _pool(layer)
    forward = pooling.maximum(inputs, outputs, window, layer.size)
    back = pooling.maximum_backward(inputs, outputs, layer.size, index_size=None)
    return (forward, back) if backward else (forward,)


def _average_pool(layer: Layer, backward: bool) -> Costs:
    inputs, outputs, window = _pool(layer)
    forward = pooling.average(inputs, outputs, window, layer.size)
    back = pooling.average_backward(inputs, outputs, window, layer.size)
    return (forward, back) if backward else (forward,)


def _pool(layer: Layer) -> tuple[int, int, int]:
    if layer.window is None:
        raise UncountableError("pooling window unknown")
    return prod(layer.input), prod(layer.output), prod(layer.window)


def _adaptive_average(layer: Layer, backward: bool) -> Costs:
    inputs, outputs = prod(layer.input), prod(layer.output)
    forward = pooling.adaptive_average(inputs, outputs, layer.size)
    back = pooling.adaptive_average_backward(inputs, outputs, layer.size)
    return (forward, back) if backward else (forward,)


def _softmax(layer: Layer, backward: bool) -> Costs:
    log, elements = layer.type.lower().startswith("log"), prod(layer.input)
    forward = softmax(elements, layer.size, layer.size, log=log)
    back = softmax_backward(elements, layer.size, log=log)
    return (forward, back) if backward else (forward,)


def _activation(layer: Layer, backward: bool, name: str) -> Costs:
    elements = prod(layer.input)
    image = Operand(elements, layer.size)
    function = FUNCTIONS[name]
    kind = function.kind
    forward = per_element(function.formula, kind, elements, function.operations, image, image)
    if not backward:
        return (forward,)
    back = FUNCTIONS[f"{name}_backward"]
    return forward, per_element(
        back.formula, kind, elements, back.operations, image, image, image, part="backward"
    )


_LAYERS: Final[dict[frozenset[str], Callable[[Layer, bool], Costs]]] = {
    frozenset(
        (
            "conv conv1d conv2d conv3d convtranspose convtranspose1d convtranspose2d "
            "convtranspose3d conv1dtranspose conv2dtranspose conv3dtranspose"
        ).split()
    ): _convolution,
    frozenset("linear dense".split()): _linear,
    frozenset(
        "batchnorm batchnorm1d batchnorm2d batchnorm3d batchnormalization".split()
    ): _batch_norm,
    frozenset("layernorm layernormalization".split()): _layer_norm,
    frozenset("localresponsenorm lrn".split()): _local_response,
    frozenset(
        "maxpool maxpool1d maxpool2d maxpool3d maxpooling1d maxpooling2d maxpooling3d".split()
    ): _max_pool,
    frozenset(
        (
            "avgpool avgpool1d avgpool2d avgpool3d averagepooling1d averagepooling2d "
            "averagepooling3d"
        ).split()
    ): _average_pool,
    frozenset(
        (
            "adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d globalavgpool "
            "globalaveragepooling1d globalaveragepooling2d globalaveragepooling3d"
        ).split()
    ): _adaptive_average,
    frozenset("softmax logsoftmax".split()): _softmax,
}
_FREE: Final = frozenset("flatten identity reshape permute inputlayer".split())
_ACTIVATIONS: Final[dict[str, str]] = {
    "leakyrelu": "leaky_relu",
    "swish": "silu",
    **{
        name: name
        for name in (
            "relu elu sigmoid tanh silu gelu softplus hardtanh hardswish hardsigmoid dropout"
        ).split()
    },
}
