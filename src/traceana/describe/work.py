"""Floating-point operations of one call of a layer, by the formulas of :mod:`traceana.flops`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt, prod
from typing import Final

from traceana.describe.manifest import Shape
from traceana.flops import attention, convolution, normalization, pooling
from traceana.flops.call import Call
from traceana.flops.cost import Cost, Refusal, UncountableError
from traceana.flops.matmul import matmul
from traceana.flops.reduction import softmax
from traceana.flops.registry import cost, total_flops

Parameters = Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one call took and gave: shapes in the manifest's convention."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


_NOTHING: Final = (
    *("Flatten", "Unflatten", "Identity", "Embedding", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"),
    *("PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Concatenate", "Reshape", "Permute"),
)
"""Types that move elements and compute nothing."""

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
"""Types that are one operator of ATen an element, whose formula counts them."""

_COMBINING: Final = {"Add": "aten::add", "Subtract": "aten::sub", "Multiply": "aten::mul"}
"""Types that combine their inputs two by two."""


def flops(
    type_: str,
    call: LayerCall,
    parameters: Parameters,
    kernel: Shape | None,
    groups: int | None,
    neighbours: int | None,
) -> int | None:
    """Return the operations of one forward call, None where they are not known.

    ``parameters`` are shaped as PyTorch has them. Batch normalization counts with the statistics of
    the batch, as in training; of a recurrent layer only its matrix products count, and of an
    attention its projections and products.
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
    given, made = call.inputs[0], call.outputs[0]
    elements = prod(given)
    if type_.startswith("Conv") and kernel is not None:
        return (_convolution(type_, given, made, kernel, groups or 1),)
    if type_.startswith("SeparableConv") and kernel is not None:
        inner = parameters["weight"][0]
        between = (made[0], inner, *made[2:])
        one = (1,) * len(kernel)
        return (
            _convolution("Conv", given, between, kernel, given[1]),
            _convolution("Conv", between, made, one, 1),
        )
    if type_ == "Linear":
        return (_linear(given, made, parameters.get("weight")),)
    if type_ == "MultiheadAttention":
        return _attention(call, parameters)
    if type_ in ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"):
        matrices = [shape for shape in parameters.values() if len(shape) == 2]
        return tuple(matmul(prod(given[:-1]), rows, columns, None) for rows, columns in matrices)
    if type_.startswith(("BatchNorm", "SyncBatchNorm", "InstanceNorm", "GroupNorm", "LayerNorm")):
        normalized = normalization.Normalized(elements, len(parameters), 0, None, None)
        return (normalization.training(normalized, type_),)
    if type_ == "RMSNorm":
        normalized = normalization.Normalized(elements, len(parameters), 0, None, None)
        return (normalization.root_mean_square(normalized),)
    if type_ == "LRN" and neighbours is not None:
        return (normalization.local_response(elements, neighbours, None),)
    if type_.startswith("MaxPool") and kernel is not None:
        return (pooling.maximum(elements, prod(made), prod(kernel), None),)
    if type_.startswith("AvgPool") and kernel is not None:
        return (pooling.average(elements, prod(made), prod(kernel), None),)
    if type_.startswith("AdaptiveAvgPool"):
        return (pooling.adaptive_average(elements, prod(made), None),)
    if type_.startswith("AdaptiveMaxPool"):
        return (pooling.adaptive_maximum(elements, prod(made), None, index_size=None),)
    if type_ in ("Softmax", "LogSoftmax"):
        return (softmax(elements, None, None, log=type_ == "LogSoftmax"),)
    if type_ in _COMBINING:
        found = cost(Call(_COMBINING[type_], (made, made), ("float", "float")))
        return None if isinstance(found, Refusal) else found * (len(call.inputs) - 1)
    if type_ in _POINTWISE:
        found = cost(Call(_POINTWISE[type_], (given,), ("float",)))
        return None if isinstance(found, Refusal) else found
    return None


def _convolution(type_: str, given: Shape, made: Shape, kernel: Shape, groups: int) -> Cost:
    return convolution.forward(
        convolution.Convolution(
            batch=given[0],
            in_channels=given[1],
            out_channels=made[1],
            window=kernel,
            output=made[2:],
            input=given[2:],
            groups=groups,
            transposed=type_.startswith("ConvTranspose"),
        ),
        None,
    )


def _linear(given: Shape, made: Shape, weight: Shape | None) -> Cost:
    rows = prod(given[:-1])
    if weight is not None:
        # Several axes may be contracted or made: rows x k inputs, rows x n outputs, k x n weights.
        rows = isqrt(prod(given) * prod(made) // prod(weight))
        if rows * rows * prod(weight) != prod(given) * prod(made):
            raise UncountableError("inputs, outputs and weights do not go together")
    return matmul(rows, prod(made) // rows, prod(given) // rows, None)


def _attention(call: LayerCall, parameters: Parameters) -> tuple[Cost, ...]:
    query = call.inputs[0]
    # Keras takes (query, value, key) and the last two may be one: only their lengths count here.
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
