"""The manifest's row of a layer, from its recorded calls: shapes, padding, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt, prod
from typing import Final

import msgspec

from traceana.flops import attention, convolution, normalization, pooling
from traceana.flops.call import Call
from traceana.flops.cost import Cost, Refusal, UncountableError
from traceana.flops.matmul import matmul
from traceana.flops.reduction import softmax
from traceana.flops.registry import cost, total_flops
from traceana.model.manifest import Input, Layer, Layout, Shape
from traceana.model.recorded_calls import (
    ModelCall,
    Pads,
    Recorded,
    channels_first,
    effective_padding,
    layout_of,
)


class Details(msgspec.Struct, frozen=True):
    """A layer's type and arguments, in the manifest's terms.

    ``parameters`` have PyTorch's shapes: (K, C / groups, R, S) and (out, in). ``neighbours`` is
    the number of channels over which LRN sums. ``flops`` are those of one call if no formula
    applies. With ``by_operators`` FLOPs are counted by operator, not by formula.
    """

    type: str
    framework_type: str
    kernel: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    padding: Pads | None = None
    dilation: tuple[int, ...] | None = None
    groups: int | None = None
    parameters: Mapping[str, Shape] = msgspec.field(default_factory=dict)
    neighbours: int | None = None
    flops: int | None = None
    by_operators: bool = False


def finished(recorded: Recorded, position: int, found: Details) -> Layer:
    """Return the manifest's row of a layer: shapes in one convention, effective padding, FLOPs."""
    calls = [
        LayerCall(
            tuple(channels_first(shape, found.type, recorded.axes) for shape in inputs),
            tuple(channels_first(shape, found.type, recorded.axes) for shape in outputs),
        )
        for inputs, outputs in recorded.calls
    ]
    first = calls[0]
    type_ = "Flatten" if _flattens(first, found) else found.type
    counts = [_flops(type_, call, found) for call in calls]
    known = [count for count in counts if count is not None]
    total = sum(known) * recorded.times if len(known) == len(counts) else recorded.flops
    return Layer(
        path=recorded.path,
        type=type_,
        framework_type=found.framework_type,
        position=position,
        calls=len(calls) * recorded.times,
        inputs=first.inputs,
        outputs=first.outputs,
        layout=layout_of((*first.inputs, *first.outputs), type_, recorded.layout),
        kernel=found.kernel,
        stride=found.stride,
        padding=_pads(found, first),
        dilation=found.dilation,
        groups=found.groups,
        parameters=dict(found.parameters),
        parameter_count=sum(prod(shape) for shape in found.parameters.values()),
        flops=recorded.flops if found.by_operators else total,
        order=tuple(recorded.order) if len(recorded.order) > 1 else (),
        input_gradient=recorded.input_gradient,
    )


def _flops(type_: str, call: LayerCall, found: Details) -> int | None:
    if found.flops is not None:
        return found.flops
    return flops(type_, call, found.parameters, found.kernel, found.groups, found.neighbours)


def _flattens(call: LayerCall, found: Details) -> bool:
    """Return whether a layer of a custom class is a Flatten."""
    if found.parameters or len(call.inputs) != 1 or len(call.outputs) != 1:
        return False
    (in_shape,), (out_shape,) = call.inputs, call.outputs
    return len(in_shape) > 2 and out_shape == (in_shape[0], prod(in_shape[1:]))


def _pads(found: Details, call: LayerCall) -> Pads | None:
    if found.kernel is None or found.stride is None or found.padding is None:
        return found.padding
    in_shape, out_shape = call.inputs[0], call.outputs[0]
    images = len(in_shape) == len(out_shape) == len(found.kernel) + 2
    if not images or found.type.startswith("ConvTranspose"):
        return found.padding
    dilation = found.dilation or (1,) * len(found.kernel)
    return effective_padding(
        in_shape, out_shape, found.kernel, found.stride, found.padding, dilation
    )


def model_inputs(
    call: ModelCall, dtypes: Sequence[str], layers: Sequence[Layer], axes: Layout
) -> tuple[Input, ...]:
    """Return the model's inputs in the manifest's convention.

    They are images if the first layer has images of this rank; ``axes`` is their order of axes.
    """
    layout = next((layer.layout for layer in layers if layer.layout is not None), None)
    kind = layers[0].type if layers else ""
    return tuple(
        Input(
            shape=channels_first(shape, kind, axes),
            dtype=dtype,
            layout=None if layout is None else layout_of([shape], kind, layout),
            name=name,
        )
        for shape, dtype, name in zip(call.shapes, dtypes, call.names, strict=True)
    )


Parameters = Mapping[str, Shape]


class LayerCall(msgspec.Struct, frozen=True):
    """The inputs and outputs of one call: shapes in the manifest's convention."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


_NOTHING: Final = (
    *("Flatten", "Unflatten", "Identity", "Embedding", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"),
    *("PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Concatenate", "Reshape", "Permute"),
)
"""Types that move elements without FLOPs."""

_POINTWISE: Final = {
    "ReLU": "aten::relu",
    "ReLU6": "aten::hardtanh",
    "LeakyReLU": "aten::leaky_relu",
    "ELU": "aten::elu",
    "GELU": "aten::gelu",
    "SiLU": "aten::silu",
    "Mish": "aten::mish",
    "Sigmoid": "aten::sigmoid",
    "Hardsigmoid": "aten::hardsigmoid",
    "Hardswish": "aten::hardswish",
    "Tanh": "aten::tanh",
    "Hardtanh": "aten::hardtanh",
    "Softplus": "aten::softplus",
    "Dropout": "aten::native_dropout",
}
"""Elementwise types, by the ATen operator whose formula counts them."""

_COMBINING: Final = {"Add": "aten::add", "Subtract": "aten::sub", "Multiply": "aten::mul"}
"""Types that combine their inputs pairwise."""


def flops(
    type_: str,
    call: LayerCall,
    parameters: Parameters,
    kernel: Shape | None,
    groups: int | None,
    neighbours: int | None,
) -> int | None:
    """Return the FLOPs of one forward call, None if unknown.

    ``parameters`` have PyTorch's shapes. Batch normalization counts with the statistics of
    the batch, as in training; a recurrent layer counts its GEMMs only, attention its
    projections and batched GEMMs.
    """
    if type_ in _NOTHING:
        return 0
    try:
        costs = _costs(type_, call, parameters, kernel, groups, neighbours)
    except (UncountableError, IndexError, KeyError):
        return None
    return None if costs is None else total_flops(costs)


def _costs(
    type_: str,
    call: LayerCall,
    parameters: Parameters,
    kernel: Shape | None,
    groups: int | None,
    neighbours: int | None,
) -> tuple[Cost, ...] | None:
    in_shape, out_shape = call.inputs[0], call.outputs[0]
    elements = prod(in_shape)
    if type_.startswith("Conv") and kernel is not None:
        return (_convolution(type_, in_shape, out_shape, kernel, groups or 1),)
    if type_.startswith("SeparableConv") and kernel is not None:
        inner = parameters["weight"][0]
        between = (out_shape[0], inner, *out_shape[2:])
        one = (1,) * len(kernel)
        return (
            _convolution("Conv", in_shape, between, kernel, in_shape[1]),
            _convolution("Conv", between, out_shape, one, 1),
        )
    if type_ == "Linear":
        return (_linear(in_shape, out_shape, parameters.get("weight")),)
    if type_ == "MultiheadAttention":
        return _attention(call, parameters)
    if type_ in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"):
        matrices = [shape for shape in parameters.values() if len(shape) == 2]
        return tuple(matmul(prod(in_shape[:-1]), rows, columns, None) for rows, columns in matrices)
    if type_.startswith(("BatchNorm", "SyncBatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm")):
        normalized = normalization.Normalized(elements, len(parameters), 0, None, None)
        return (normalization.training(normalized, type_),)
    if type_ == "RMSNorm":
        normalized = normalization.Normalized(elements, len(parameters), 0, None, None)
        return (normalization.root_mean_square(normalized),)
    if type_ == "LRN" and neighbours is not None:
        return (normalization.local_response(elements, neighbours, None),)
    if type_.startswith("MaxPool") and kernel is not None:
        return (pooling.maximum(elements, prod(out_shape), prod(kernel), None),)
    if type_.startswith("AvgPool") and kernel is not None:
        return (pooling.average(elements, prod(out_shape), prod(kernel), None),)
    if type_.startswith("AdaptiveAvgPool"):
        return (pooling.adaptive_average(elements, prod(out_shape), None),)
    if type_.startswith("AdaptiveMaxPool"):
        return (pooling.adaptive_maximum(elements, prod(out_shape), None, index_size=None),)
    if type_ in ("Softmax", "LogSoftmax"):
        return (softmax(elements, None, None, log=type_ == "LogSoftmax"),)
    if type_ in _COMBINING:
        found = cost(Call(_COMBINING[type_], (out_shape, out_shape), ("float", "float")))
        return None if isinstance(found, Refusal) else found * (len(call.inputs) - 1)
    if type_ in _POINTWISE:
        found = cost(Call(_POINTWISE[type_], (in_shape,), ("float",)))
        return None if isinstance(found, Refusal) else found
    return None


def _convolution(type_: str, in_shape: Shape, out_shape: Shape, kernel: Shape, groups: int) -> Cost:
    return convolution.forward(
        convolution.Convolution(
            batch=in_shape[0],
            in_channels=in_shape[1],
            out_channels=out_shape[1],
            window=kernel,
            output=out_shape[2:],
            input=in_shape[2:],
            groups=groups,
            transposed=type_.startswith("ConvTranspose"),
        ),
        None,
    )


def _linear(in_shape: Shape, out_shape: Shape, weight: Shape | None) -> Cost:
    rows = prod(in_shape[:-1])
    if weight is not None:
        # Several axes may be contracted: inputs are rows x k, outputs rows x n, weights k x n.
        rows = isqrt(prod(in_shape) * prod(out_shape) // prod(weight))
        if rows * rows * prod(weight) != prod(in_shape) * prod(out_shape):
            raise UncountableError("inputs, outputs and weights do not match")
    return matmul(rows, prod(out_shape) // rows, prod(in_shape) // rows, None)


def _attention(call: LayerCall, parameters: Parameters) -> tuple[Cost, ...]:
    query = call.inputs[0]
    # Keras takes (query, value, key), and value may serve as key. They have equal lengths, and
    # only the length is used here.
    key = call.inputs[1] if len(call.inputs) > 1 else query
    batch, queries, keys = query[0], query[-2], key[-2]
    rows = {"query": queries, "key": keys, "value": keys, "out": queries}
    weights = {part: parameters[f"{part}.weight"] for part in rows}
    projections = tuple(
        matmul(batch * rows[part], out, into, None) for part, (out, into) in weights.items()
    )
    extents = attention.Attention(
        batch=batch,
        heads=1,
        key_heads=1,
        queries=queries,
        keys=keys,
        width=weights["query"][0],
        value_width=weights["value"][0],
    )
    return (*projections, attention.forward(extents, None))
