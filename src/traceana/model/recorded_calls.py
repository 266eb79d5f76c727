"""The calls of a model and its layers, in the form that all adapters record."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from traceana.errors import InvalidInputError
from traceana.runs.layer_manifest import Layout, Shape

_IMAGES: Final = re.compile(
    r"^(?:Lazy)?(?:Separable)?(?:Conv|ConvTranspose|MaxPool|AvgPool|LPPool|FractionalMaxPool|"
    r"AdaptiveAvgPool|AdaptiveMaxPool|MaxUnpool|BatchNorm|InstanceNorm|Dropout|ZeroPad|"
    r"ConstantPad|ReflectionPad|ReplicationPad|CircularPad|Crop)[123]d$|"
    r"^(?:LRN|GroupNorm|SyncBatchNorm|Flatten|Upsample|PixelShuffle|PixelUnshuffle)$"
)
"""Types whose inputs from rank 3 on are images: batch, channels, spatial axes."""

_FEATURES_LAST: Final = frozenset(
    (
        *("Linear", "Bilinear", "Matmul", "EinsumDense", "Embedding", "MultiheadAttention"),
        *("LayerNorm", "RMSNorm", "Softmax", "LSTM", "GRU", "RNN"),
    )
)
"""Types that every framework applies to the last axis, or to sequences with features last."""


def has_images(type_: str, rank: int) -> bool:
    """Return whether a tensor of ``rank`` at a layer of this type is an image.

    Layers for any tensor, such as activations, are assumed to have images from rank 4 on.
    """
    if _IMAGES.match(type_):
        return rank >= 3
    return type_ not in _FEATURES_LAST and rank >= 4


ACTIVATIONS: Final = {
    "relu": "ReLU",
    "relu6": "ReLU6",
    "leaky_relu": "LeakyReLU",
    "elu": "ELU",
    "selu": "SELU",
    "celu": "CELU",
    "gelu": "GELU",
    "silu": "SiLU",
    "swish": "SiLU",
    "mish": "Mish",
    "sigmoid": "Sigmoid",
    "hard_sigmoid": "Hardsigmoid",
    "hard_silu": "Hardswish",
    "hard_swish": "Hardswish",
    "tanh": "Tanh",
    "hard_tanh": "Hardtanh",
    "softplus": "Softplus",
    "soft_sign": "Softsign",
    "softsign": "Softsign",
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "linear": "Identity",
}
"""Layer types by the names of activation functions in Keras and JAX."""

PARAMETERS: Final = {
    "kernel": "weight",
    "depthwise_kernel": "weight",
    "embeddings": "weight",
    "embedding": "weight",
    "gamma": "weight",
    "scale": "weight",
    "beta": "bias",
}
"""PyTorch's names of parameters by those of Keras and Flax."""


DTYPES: Final = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)


class ModelCall(msgspec.Struct, frozen=True):
    """The inputs: shapes in the framework's own order of axes, ``names`` for keyword arguments.

    A dtype of None is that of the model.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str | None, ...]
    names: tuple[str | None, ...]

    def arguments(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return one value per input as positional and keyword arguments."""
        named = list(zip(self.names, values, strict=True))
        return (
            [value for name, value in named if name is None],
            {name: value for name, value in named if name is not None},
        )


def parse_call(input_shape: Any, dtype: Any) -> ModelCall:
    """Return the checked arguments of :func:`traceana.describe`; raises ``InvalidInputError``."""
    names: tuple[str | None, ...]
    if isinstance(input_shape, Mapping):
        names, shapes = tuple(map(str, input_shape)), list(input_shape.values())
    else:
        several = _is_list(input_shape) and all(
            _is_list(shape) or hasattr(shape, "shape") for shape in input_shape
        )
        shapes = list(input_shape) if several else [input_shape]
        names = (None,) * len(shapes)
    if not shapes:
        raise InvalidInputError(
            "no input shape: give one with the batch first, e.g. (8, 3, 224, 224)"
        )
    dtypes = list(dtype) if _is_list(dtype) else [dtype] * len(shapes)
    if dtype is None:
        dtypes = [getattr(shape, "dtype", None) for shape in shapes]
    if len(dtypes) != len(shapes):
        raise InvalidInputError(
            f"{len(dtypes)} dtypes for {len(shapes)} inputs: give one or as many"
        )
    sizes = tuple(_shape(shape, alone=len(shapes) == 1) for shape in shapes)
    return ModelCall(sizes, tuple(map(_dtype, dtypes)), names)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shape(shape_or_tensor: Any, *, alone: bool) -> tuple[int, ...]:
    """Return the extents of a shape, or of a tensor or array; none of a number beside others."""
    shape = getattr(shape_or_tensor, "shape", shape_or_tensor)
    # TensorFlow's shapes are not sequences.
    is_shape = _is_list(shape) or shape is not shape_or_tensor
    sizes = tuple(shape) if is_shape else ()
    is_positive = all(type(size) is int and size > 0 for size in sizes)
    if not is_shape or not is_positive or (alone and not sizes):
        raise InvalidInputError(
            f"{reprlib.repr(shape)} is not an input shape: give positive integers with the batch "
            "first, e.g. (8, 3, 224, 224), or a list of shapes"
        )
    return sizes


def _dtype(dtype: Any) -> str | None:
    if dtype is None:
        return None
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if name not in DTYPES:
        raise InvalidInputError(f"unknown dtype {name!r}; dtypes: {', '.join(DTYPES)}")
    return name


class Recorded(msgspec.Struct):
    """One layer: the shapes of every call, in the framework's own order of axes.

    ``key`` identifies the layer; ``layer`` is the framework's own object. ``axes`` is the order of
    the axes in these shapes, ``layout`` that in memory: PyTorch's shapes have the channels first
    with either memory format.
    """

    key: object
    path: str
    layer: Any
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    axes: Layout
    layout: Layout
    later: list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]] = msgspec.field(
        default_factory=list
    )
    """Inputs and outputs of the calls after the first."""
    times: int = 1
    """Repetitions of all these calls: the iterations of a scan."""
    flops: int | None = None
    """FLOPs of all calls, counted by operator; None if one has no formula."""
    product: tuple[int, int] | None = None
    """(out, in) features of a layer that is a matrix product with its only matrix."""
    order: list[int] = msgspec.field(default_factory=list)
    """Positions in the sequence of all calls; empty if unknown."""
    input_gradient: bool | None = None
    """Whether the gradient of the input of some call is computed; None if unknown."""

    @property
    def calls(self) -> list[tuple[list[tuple[int, ...]], list[tuple[int, ...]]]]:
        """Inputs and outputs of every call."""
        return [(self.inputs, self.outputs), *self.later]


class Recording:
    """Layers in order of their first call."""

    def __init__(self) -> None:
        """Create an empty recording."""
        self._layers: dict[object, Recorded] = {}

    @property
    def layers(self) -> list[Recorded]:
        """The layers, each once."""
        return list(self._layers.values())

    def add(self, recorded: Recorded) -> None:
        """Add one call."""
        layer = self._layers.setdefault(recorded.key, recorded)
        if layer is not recorded:
            layer.later.append((recorded.inputs, recorded.outputs))
            layer.input_gradient = any_of((layer.input_gradient, recorded.input_gradient))


def any_of(flags: Iterable[bool | None]) -> bool | None:
    """Return whether one of ``flags`` is true; None if that depends on unknown ones."""
    values = set(flags)
    if True in values:
        return True
    return None if None in values or not values else False


Pads = tuple[tuple[int, int], ...]
_Item = TypeVar("_Item")


def channels_first(shape: Sequence[int], type_: str, layout: Layout | None) -> Shape:
    """Return the shape, with the channels as second axis if it is an image's."""
    sizes = tuple(int(size) for size in shape)
    if layout == "channels_last" and has_images(type_, len(sizes)):
        return (sizes[0], sizes[-1], *sizes[1:-1])
    return sizes


def layout_of(shapes: Iterable[Sequence[int]], type_: str, layout: Layout) -> Layout | None:
    """Return ``layout`` if one of the shapes is an image's, else None."""
    return layout if any(has_images(type_, len(shape)) for shape in shapes) else None


def per_axis(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    """Return one number per spatial axis; a single one applies to all."""
    numbers = (value,) if isinstance(value, int) else tuple(int(number) for number in value)
    return numbers * axes if len(numbers) == 1 else numbers


def output_size(
    size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int = 1
) -> int:
    """Return the output size: Dumoulin, Visin 2016, relationship 15."""
    return (size + sum(pads) - dilation * (kernel - 1) - 1) // stride + 1


def total_padding(size: int, out: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the padding that ``out`` windows need in total (negative: unused elements)."""
    return (out - 1) * stride + dilation * (kernel - 1) + 1 - size


def same_pads(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """Return the zeros before and after of padding 'same' in TensorFlow, Keras and JAX.

    The output has ceil(size / stride) elements. An odd number of zeros has one more after.
    """
    total = max(total_padding(size, -(-size // stride), kernel, stride, dilation), 0)
    return total // 2, total - total // 2


def effective_padding(
    inputs: Shape,
    outputs: Shape,
    kernel: Sequence[int],
    stride: Sequence[int],
    declared: Pads,
    dilation: Sequence[int],
) -> Pads:
    """Return ``declared``, or the padding that a layer adds itself before its convolution.

    It is inferred if the declared padding does not result in the output's size, as the smallest
    symmetric padding that does, else the smallest padding. ``inputs`` and ``outputs`` are (batch,
    channels, spatial axes).
    """
    padding = []
    axes = zip(inputs[2:], outputs[2:], kernel, stride, declared, dilation, strict=True)
    for size, out, window, step, pads, spread in axes:
        if output_size(size, window, step, pads, spread) != out:
            total = max(total_padding(size, out, window, step, spread), 0)
            half = -(-total // 2)
            equal = output_size(size, window, step, (half, half), spread) == out
            padding.append((half, half) if equal else (total // 2, half))
        else:
            padding.append(pads)
    return tuple(padding)


def renamed(table: Mapping[str, str], name: str) -> str:
    """Return ``table[name]``, or ``name`` if it is not in the table."""
    return table.get(name, name)
