"""The cost of a model's layer from its type and shapes, without a trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isqrt, prod
from typing import Final

import msgspec
from msgspec.structs import replace

from traceana.flops import attention
from traceana.flops.call import (
    Call,
    Cost,
    Refusal,
    Shape,
    UncountableError,
)
from traceana.flops.matmul import matmul
from traceana.flops.registry import functions

SIZE: Final = 4
"""Bytes of an element: float32."""


class Layer(msgspec.Struct, frozen=True):
    """A layer of a manifest and the shapes of one call.

    ``type`` is the class in PyTorch (``Conv2d``) or Keras (``Dense``). Activations are [N, C, …],
    ``parameters`` as in PyTorch: [K, C/g, R, S] ([C, K/g, R, S] of a transposed convolution) and
    [out, in]. ``neighbours`` is the number of channels of a local response normalization. A
    ``first`` layer has no gradient of its input. Elements are of :data:`SIZE` bytes.
    """

    type: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    parameters: Mapping[str, Shape] = msgspec.field(default_factory=dict)
    kernel: Shape | None = None
    groups: int | None = None
    neighbours: int | None = None
    first: bool = False

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
        return next((shape for shape in shapes if len(shape) > 1), shapes[0] if shapes else None)

    @property
    def bias(self) -> bool:
        """Whether a weight has a vector beside it."""
        shapes = self.parameters.values()
        return any(len(shape) > 1 for shape in shapes) and any(len(shape) == 1 for shape in shapes)


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
    forward = tuple(cost for cost in costs if cost.part == "forward")
    if backward and costs and len(forward) == len(costs):
        return Refusal("no FLOP formula for the gradients of this layer type")
    return costs if backward else forward


def _count(
    function: str,
    operands: Mapping[str, Shape],
    *,
    output: Shape | None = None,
    wanted: tuple[bool, ...] | None = None,
    window: Shape | None = None,
) -> Costs:
    """Return what a ``function`` of the registry counts of these operands, as of an operator."""
    call = Call(
        "",
        tuple(operands.values()),
        ("float",) * len(operands),
        output=output,
        wanted=wanted,
        window=window,
        formula=function,
        at={name: place for place, name in enumerate(operands)},
    )
    return functions()[function](call)


def _convolution(layer: Layer) -> Costs:
    x, y, weight = layer.inputs[0], layer.outputs[0], layer.weight
    window = layer.kernel
    if window is None:
        if weight is None or not 3 <= len(weight) <= 5:
            raise UncountableError("no convolution weight")
        window = weight[2:]
    if len(x) != len(window) + 2 or len(y) != len(window) + 2:
        raise UncountableError("rank mismatch of input, output and weight")
    transposed = "transpose" in layer.type.lower()
    first, second = (x[1], y[1]) if transposed else (y[1], x[1])
    a_group, rest = divmod(second, layer.groups or 1)
    w = (first, a_group, *window)
    if rest or (weight is not None and prod(w) != prod(weight)):
        raise UncountableError("weight shape does not match the channels")
    function = "convolution_transpose" if transposed else "convolution"
    bias = {"bias": (y[1],)} if layer.bias else {}
    wanted = (not layer.first, True, layer.bias)
    return (
        *_count(function, {"x": x, "w": w, **bias}, output=y),
        *_count(f"{function}_backward", {"x": x, "w": w, "dy": y}, wanted=wanted),
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
    rows = prod(entering[:-1])
    if weight is not None:
        # Several axes may be contracted: inputs are rows x k, outputs rows x n, weights k x n.
        square = prod(entering) * prod(leaving)
        rows = isqrt(square // (prod(weight) or 1))
        if rows * rows * prod(weight) != square:
            raise UncountableError("weight shape does not match input and output")
    k, n = prod(entering) // rows, prod(leaving) // rows
    x, w, y = (rows, k), (n, k), (rows, n)
    bias = {"bias": (n,)} if layer.bias else {}
    wanted = (not layer.first, True, layer.bias)
    return (
        *_count("linear", {"x": x, "w": w, **bias}),
        *_count("linear_backward", {"x": x, "w": w, "dy": y}, wanted=wanted),
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
    extents = attention.Attention(
        batch=batch,
        heads=1,
        key_heads=1,
        queries=queries,
        keys=keys,
        width=weights["query"][0],
        value_width=weights["value"][0],
    )
    return (
        *(matmul(batch * rows[part], n, k, SIZE) for part, (n, k) in weights.items()),
        attention.count(extents, SIZE),
    )


def _recurrent(layer: Layer) -> Costs:
    """The products of the weights with the input and the state."""
    positions = prod(layer.inputs[0][:-1])
    matrices = [shape for shape in layer.parameters.values() if len(shape) == 2]
    return tuple(matmul(positions, n, k, SIZE) for n, k in matrices)


def _normalization(layer: Layer) -> Costs:
    kind, x = layer.type.lower(), layer.inputs[0]
    operands = {"x": x} if layer.weight is None else {"x": x, "w": layer.weight}
    if kind.startswith("rms"):
        return _count("rms_norm", operands)
    if "batch" in kind:
        forward = _count("batch_norm_training", operands)
        return (*forward, *_count("batch_norm_backward", operands))
    rows = layer.elements // prod(layer.weight) if layer.weight else prod(x[:-1])
    operands["means"] = (rows,)
    costs = *_count("layer_norm", operands), *_count("layer_norm_backward", operands)
    if kind.startswith("layer"):
        return costs
    # How many groups of channels have a mean is not in a manifest.
    kind = kind.removesuffix("norm") + "_norm"
    return tuple(replace(cost, kind=kind, bytes=None) for cost in costs)


def _local_response(layer: Layer) -> Costs:
    x, window = layer.inputs[0], None if layer.neighbours is None else (layer.neighbours,)
    return (
        *_count("local_response_norm", {"x": x}, window=window),
        *_count("local_response_norm_backward", {"x": x}, window=window),
    )


def _pool(layer: Layer) -> Costs:
    x, y, kind = layer.inputs[0], layer.outputs[0], layer.type.lower()
    function = "max_pool" if "max" in kind else "avg_pool"
    if kind.startswith(("adaptive", "global")):
        if "max" in kind:
            # The size of the indices is not in a manifest.
            costs = _count("adaptive_max_pool", {"x": x}, output=y)
            return tuple(replace(cost, bytes=None) for cost in costs)
        function = f"adaptive_{function}"
    elif layer.kernel is None:
        raise UncountableError("pooling window unknown")
    return (
        *_count(function, {"x": x}, output=y, window=layer.kernel),
        *_count(f"{function}_backward", {"x": x, "dy": y}, window=layer.kernel),
    )


def _softmax(layer: Layer) -> Costs:
    function = "log_softmax" if layer.type.lower().startswith("log") else "softmax"
    x = layer.inputs[0]
    return (*_count(function, {"x": x}), *_count(f"{function}_backward", {"y": x}))


def _elementwise(layer: Layer) -> Costs:
    kind, x = layer.type.lower().replace("_", ""), layer.inputs[0]
    function = _ELEMENTWISE.get(kind, kind)
    if kind in _COMBINING:
        # The inputs are combined pairwise.
        (cost,) = _count(function, {"x": layer.outputs[0]})
        return (replace(cost, flops=(len(layer.inputs) - 1) * cost.flops),)
    gradient = f"{function}_backward"
    back = _count(gradient, {"dy": x, "x": x}) if gradient in functions() else ()
    return (*_count(function, {"x": x}), *back)


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
