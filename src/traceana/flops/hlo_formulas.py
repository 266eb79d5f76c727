"""The formulas of XLA's contractions, and of the libraries' routines that stand for them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isqrt, prod
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from traceana.flops.model import Shape, UncountableError
from traceana.flops.registry import formula

_LONGEST: Final = 1 << 20
_MOST_POSITIONS: Final = 1 << 22
_LONGEST_STEP: Final = 1 << 31
_Extents = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=64)]


class Window(msgspec.Struct):
    """A window by dimension; see ``attributes`` in :mod:`traceana.trace.schema`."""

    size: _Extents
    stride: _Extents
    padding_low: Annotated[list[int], msgspec.Meta(max_length=64)]
    base_dilation: _Extents
    window_dilation: _Extents
    reversal: _Extents = []


class DimensionNumbers(msgspec.Struct):
    """Which dimension of a convolution's tensors is what."""

    kernel_input_feature: int
    kernel_output_feature: int
    input_batch: int = 0
    input_feature: int = 0
    output_batch: int = 0
    output_feature: int = 0
    input_spatial: _Extents = []
    kernel_spatial: _Extents = []
    output_spatial: _Extents = []


class Attributes(msgspec.Struct):
    """What of ``attributes`` formulas need."""

    window: Window | None = None
    dimension_numbers: DimensionNumbers | None = None
    lhs_contracting: _Extents | None = None


@dataclass(frozen=True, slots=True)
class Contraction:
    """One instruction: its first two operands, its result, or the first of several."""

    target: str
    left: Shape
    right: Shape
    output: Shape
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Count:
    """``tensors``, of a convolution: the elements of input, weight and output, sorted."""

    flops: int
    formula: str
    tensors: tuple[int, ...] = field(default=())


def decoded(
    target: str,
    input_shapes: str | None,
    output_shape: str | None,
    output_type: str | None,
    attributes: str | None,
) -> Contraction:
    """Decode the JSON texts of a row of ``instructions``; raises ``UncountableError``."""
    texts = (input_shapes, output_shape)
    if any(text is None or len(text) > _LONGEST for text in texts):
        raise UncountableError("no shapes")
    try:
        inputs: list[Any] = msgspec.json.decode(input_shapes or "", type=list)
        output: Any = msgspec.json.decode(output_shape or "", type=list)
        if (output_type or "").startswith("["):
            output = next(iter(output), None)
        left, right, result = msgspec.convert([*inputs[:2], output], list[_Extents])
        told = msgspec.json.decode(attributes or "{}", type=Attributes)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise UncountableError("the shapes are not those of two arrays") from None
    return Contraction(target, tuple(left), tuple(right), tuple(result), told)


def as_written(of: Contraction) -> Contraction:
    """Return a forward convolution with its image and its weight in their places.

    XLA puts the smaller of both in the window's place, and mirrors the window then. So may be that
    of a transposed convolution: one without a stride, which does not dilate its image, cannot be
    told from it.
    """
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if window is None or numbers is None or not window.reversal or not all(window.reversal):
        return of
    if any(step != 1 for step in (*window.base_dilation, *window.window_dilation)):
        return of
    back = DimensionNumbers(
        kernel_input_feature=numbers.input_feature,
        kernel_output_feature=numbers.input_batch,
        input_batch=numbers.kernel_output_feature,
        input_feature=numbers.kernel_input_feature,
        output_batch=numbers.output_feature,
        output_feature=numbers.output_batch,
        input_spatial=numbers.kernel_spatial,
        kernel_spatial=numbers.input_spatial,
        output_spatial=numbers.output_spatial,
    )
    size = list(_picked(of.left, numbers.input_spatial))
    return replace(
        of,
        left=of.right,
        right=of.left,
        attributes=Attributes(
            msgspec.structs.replace(window, size=size, reversal=[]),
            back,
            of.attributes.lhs_contracting,
        ),
    )


@formula("hlo.convolution")
def hlo_convolution(of: Contraction) -> Count:
    """2 · N · K · positions · C, a convolution as its dimension numbers say.

    N and K are the batch and the features of the output, C the input features that one of them
    sums: the kernel's input features, which is what a feature group has. Groups of the batch, as
    the weight's gradient of a grouped convolution has them, make N smaller and nothing else. The
    positions are, in each spatial dimension, the product of the output's and the window's extent:
    every window counts whole, also where it lies on padding, as in PyTorch's counter. (XLA's own
    analysis leaves those out.)

    In a dimension with base dilation the windows are full of the zeros between the input's
    elements. There the positions are those at which an element lies. Of a transposed convolution
    and of the gradient of a strided one's input, each element meets each of the window's, so that
    they are the input's extent times the window's; of the gradient of a transposed convolution's
    weight, where the window is larger than the output, each element meets each of the output's.
    Where there are strides as well, they are counted one by one: so XLA writes groups as a
    dimension of g positions with one element each, by base dilation g and stride g - 1.
    """
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if window is None or numbers is None:
        raise UncountableError("no window")
    try:
        spatial = zip(
            _picked(of.left, numbers.input_spatial),
            window.size,
            _picked(of.output, numbers.output_spatial),
            window.stride,
            window.padding_low,
            window.base_dilation,
            window.window_dilation,
            strict=True,
        )
        positions = prod(_positions(*extents) for extents in spatial)
    except ValueError:
        raise UncountableError("a window of other dimensions") from None
    batch, features = _picked(of.output, [numbers.output_batch, numbers.output_feature])
    (depth,) = _picked(of.right, [numbers.kernel_input_feature])
    return Count(2 * batch * features * positions * depth, "hlo.convolution", _sizes(of))


def _positions(
    size: int, window: int, output: int, stride: int, padding: int, base: int, dilation: int
) -> int:
    if base == 1:
        return output * window
    if stride == 1:
        return size * min(window, output)
    steps = max(stride, dilation, base, abs(padding), size)
    if not base or output * window > _MOST_POSITIONS or steps > _LONGEST_STEP:
        raise UncountableError("too many positions to count")
    starts = np.arange(output, dtype=np.int64)[:, None] * stride - padding
    at = starts + np.arange(window, dtype=np.int64) * dilation
    return int(((at % base == 0) & (at >= 0) & (at <= (size - 1) * base)).sum())


@formula("hlo.convolution.library")
def cudnn(of: Contraction) -> Count:
    """2 · |y| · |w| / K, a convolution or one of its gradients by cuDNN, MIOpen or oneDNN.

    x, w and y are the forward convolution's input, weight and output, K its output features:
    each element of y is a sum over all that w has for one feature. XLA keeps the forward
    convolution's dimension numbers in all three routines: the gradient of the input takes y's
    gradient and w, that of the weight takes x and y's gradient.
    """
    output, weight = of.output, of.right
    if of.target.startswith("__cudnn$convBackwardInput"):
        output = of.left
    elif of.target.startswith("__cudnn$convBackwardFilter"):
        output, weight = of.right, of.output
    return _library(of, weight, output)


def onednn_convolution(of: Contraction) -> Count:
    """Return the count of a forward convolution by oneDNN."""
    return _library(of, of.right, of.output)


def _library(of: Contraction, weight: Shape, output: Shape) -> Count:
    numbers = of.attributes.dimension_numbers
    if numbers is None:
        raise UncountableError("no dimension numbers")
    (features,) = _picked(weight, [numbers.kernel_output_feature])
    flops = 2 * prod(output) * (prod(weight) // features) if features else 0
    return Count(flops, "hlo.convolution.library", _sizes(of))


@formula("hlo.dot")
def dot(of: Contraction) -> Count:
    """2 · batch · M · N · K: every element of the output sums K products.

    K is the product of the contracted extents. Batch, M and N are the output's, whatever its
    order. The same for the routines of cuBLAS and hipBLASLt, whose configuration has the dimension
    numbers; a bias or an activation that they add is not counted.
    """
    contracted = of.attributes.lhs_contracting
    if contracted is None:
        raise UncountableError("no dimension numbers")
    return Count(2 * prod(of.output) * prod(_picked(of.left, contracted)), "hlo.dot")


@formula("hlo.dot.onednn")
def onednn_matmul(of: Contraction) -> Count:
    """2 · batch · M · N · K, K from the elements of the three matrices.

    oneDNN's configuration says which operands are transposed, not which dimensions are contracted.
    With B matrices in each operand, |a| · |b| = B·M·K · B·K·N = |c| · B · K². Of a matrix that the
    batch shares B is 1, its rows and the other's batch being one dimension.
    """
    both = len(of.left) > 2 and len(of.right) > 2
    batch = prod(of.output[:-2]) if both else 1
    size = prod(of.output)
    square, rest = divmod(prod(of.left) * prod(of.right), size * batch or 1)
    depth = isqrt(square)
    if rest or depth * depth != square:
        raise UncountableError("the matrices do not fit")
    return Count(2 * size * depth, "hlo.dot.onednn")


def _sizes(of: Contraction) -> tuple[int, ...]:
    return tuple(sorted(prod(shape) for shape in (of.left, of.right, of.output)))


def _picked(shape: Shape, dimensions: list[int]) -> list[int]:
    if not all(0 <= dimension < len(shape) for dimension in dimensions):
        raise UncountableError("a dimension that the array does not have")
    return [shape[dimension] for dimension in dimensions]
