"""Floating-point operations of XLA's instructions: convolutions and matrix products.

Other instructions (elementwise, reductions, pooling, sorting, FFT …) are not counted. An
instruction with others inside (fusion, call, while …) has their sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from math import isqrt, prod
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.flops.call import LARGEST, Shape, UncountableError
from traceana.flops.convolution import Convolution
from traceana.flops.registry import declare, formula
from traceana.trace.schema import ROW

Extents = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=64)]
_LONGEST_TEXT: Final = 1 << 20
_MOST_POSITIONS: Final = 1 << 22
_LONGEST_STEP: Final = 1 << 31


class Window(msgspec.Struct):
    """A window by dimension; see ``attributes`` in :mod:`traceana.trace.schema`."""

    size: Extents
    stride: Extents
    padding_low: Annotated[list[int], msgspec.Meta(max_length=64)]
    base_dilation: Extents
    window_dilation: Extents
    reversal: Extents = []


class DimensionNumbers(msgspec.Struct):
    """The meaning of the dimensions of a convolution's tensors."""

    kernel_input_feature: int
    kernel_output_feature: int
    input_batch: int = 0
    input_feature: int = 0
    output_batch: int = 0
    output_feature: int = 0
    input_spatial: Extents = []
    kernel_spatial: Extents = []
    output_spatial: Extents = []


class Attributes(msgspec.Struct):
    """The ``attributes`` that formulas need."""

    window: Window | None = None
    dimension_numbers: DimensionNumbers | None = None
    lhs_contracting: Extents | None = None


class Contraction(msgspec.Struct, frozen=True):
    """One instruction: its first two operands and its first result."""

    target: str
    left: Shape
    right: Shape
    output: Shape
    attributes: Attributes


def decoded_instruction(
    target: str,
    input_shapes: str | None,
    output_shape: str | None,
    output_type: str | None,
    attributes: str | None,
) -> Contraction:
    """Return the operands and result of a row of ``instructions``; raises ``UncountableError``."""
    texts = (input_shapes, output_shape)
    if any(text is None or len(text) > _LONGEST_TEXT for text in texts):
        raise UncountableError("no shapes")
    try:
        inputs: list[Any] = msgspec.json.decode(input_shapes or "", type=list)
        output: Any = msgspec.json.decode(output_shape or "", type=list)
        if (output_type or "").startswith("["):
            output = next(iter(output), None)
        left, right, result = msgspec.convert([*inputs[:2], output], list[Extents])
        decoded = msgspec.json.decode(attributes or "{}", type=Attributes)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise UncountableError("the shapes are not those of two arrays") from None
    return Contraction(target, tuple(left), tuple(right), tuple(result), decoded)


def picked(shape: Shape, dimensions: list[int]) -> list[int]:
    if not all(0 <= dimension < len(shape) for dimension in dimensions):
        raise UncountableError("a dimension that the array does not have")
    return [shape[dimension] for dimension in dimensions]


class Count(msgspec.Struct, frozen=True):
    """The FLOPs of an instruction; ``tensors``: sorted element counts of a convolution."""

    flops: int
    formula: str
    tensors: tuple[int, ...] = msgspec.field(default=())


def as_written(of: Contraction) -> Contraction:
    """Return a forward convolution with image and weight as first and second operand.

    XLA uses the smaller of both as the window; if it exchanges them, it mirrors the window. The
    window of a transposed convolution may also be mirrored: one without a stride, which does not
    dilate its image, cannot be distinguished.
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
    size = list(picked(of.left, numbers.input_spatial))
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
    """2 · N · K · positions · C, by the dimension numbers of the convolution.

    N and K are the batch and the features of the output, C the input features summed for one of
    them: the kernel's input features, those of one feature group. Batch groups (in the weight
    gradient of a grouped convolution) only make N smaller. The positions in each spatial dimension
    are the product of the output's and the window's extent: every window counts whole, also on
    padding, as in PyTorch's counter. (XLA's own analysis leaves the padding out.)

    In a dimension with base dilation the windows contain the zeros between the input's elements,
    and only positions with an element count. In a transposed convolution, and in the input gradient
    of a strided one, each element is multiplied with each element of the window: the positions are
    the input's extent times the window's. In the weight gradient of a transposed convolution, where
    the window is larger than the output, each element is multiplied with each element of the
    output. With strides as well, the positions are counted one by one: XLA writes groups as a
    dimension of g positions with one element each, with base dilation g and stride g - 1.
    """
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if window is None or numbers is None:
        raise UncountableError("no window")
    try:
        spatial = zip(
            picked(of.left, numbers.input_spatial),
            window.size,
            picked(of.output, numbers.output_spatial),
            window.stride,
            window.padding_low,
            window.base_dilation,
            window.window_dilation,
            strict=True,
        )
        positions = prod(_positions(*extents) for extents in spatial)
    except ValueError:
        raise UncountableError("a window of other dimensions") from None
    batch, features = picked(of.output, [numbers.output_batch, numbers.output_feature])
    (depth,) = picked(of.right, [numbers.kernel_input_feature])
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


def library_convolution(of: Contraction) -> Convolution:
    """Return the extents of the forward convolution of a library's routine; raises
    ``UncountableError``."""
    window, numbers = of.attributes.window, of.attributes.dimension_numbers
    if numbers is None:
        raise UncountableError("no dimension numbers")
    image, weight, output = of.left, of.right, of.output
    if of.target.startswith("__cudnn$convBackwardInput"):
        image, output = output, image
    elif of.target.startswith("__cudnn$convBackwardFilter"):
        weight, output = output, weight
    batch, channels = picked(image, [numbers.input_batch, numbers.input_feature])
    filters, depth = picked(weight, [numbers.kernel_output_feature, numbers.kernel_input_feature])
    if not depth or channels % depth:
        raise UncountableError("weight shape does not match the channels")
    return Convolution(
        batch=batch,
        in_channels=channels,
        out_channels=filters,
        window=tuple(picked(weight, numbers.kernel_spatial)),
        output=tuple(picked(output, numbers.output_spatial)),
        input=tuple(picked(image, numbers.input_spatial)),
        groups=channels // depth,
        stride=None if window is None else tuple(window.stride),
        dilation=None if window is None else tuple(window.window_dilation),
    )


@formula("hlo.convolution.library")
def hlo_library_convolution(of: Contraction) -> Count:
    """2 · |y| · |w| / K, a convolution or one of its gradients by cuDNN, MIOpen or oneDNN.

    x, w and y are the forward convolution's input, weight and output, K its output features:
    each element of y is a sum over all elements of w for one feature. XLA keeps the forward
    convolution's dimension numbers in all three routines. The operands of the input gradient are
    y's gradient and w, those of the weight gradient x and y's gradient.
    """
    return Count(2 * library_convolution(of).macs, "hlo.convolution.library", _sizes(of))


def _sizes(of: Contraction) -> tuple[int, ...]:
    return tuple(sorted(prod(shape) for shape in (of.left, of.right, of.output)))


@formula("hlo.dot")
def hlo_dot(of: Contraction) -> Count:
    """2 · batch · M · N · K: every element of the output sums K products.

    K is the product of the contracted extents. Batch, M and N are the output's, in any order. The
    same applies to the routines of cuBLAS and hipBLASLt, whose configuration has the dimension
    numbers; a bias or an activation that they add is not counted.
    """
    contracted = of.attributes.lhs_contracting
    if contracted is None:
        raise UncountableError("no dimension numbers")
    return Count(2 * prod(of.output) * prod(picked(of.left, contracted)), "hlo.dot")


@formula("hlo.dot.onednn")
def hlo_onednn_matmul(of: Contraction) -> Count:
    """2 · batch · M · N · K, K from the elements of the three matrices.

    oneDNN's configuration has the transposed operands, not the contracted dimensions. With B
    matrices in each operand, |a| · |b| = B·M·K · B·K·N = |c| · B · K². For a matrix shared by the
    batch B is 1: its rows and the other's batch are one dimension.
    """
    both = len(of.left) > 2 and len(of.right) > 2
    batch = prod(of.output[:-2]) if both else 1
    size = prod(of.output)
    square, rest = divmod(prod(of.left) * prod(of.right), size * batch or 1)
    depth = isqrt(square)
    if rest or depth * depth != square:
        raise UncountableError("matrix shapes do not match")
    return Count(2 * size * depth, "hlo.dot.onednn")


_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "instruction": ROW,
    "flops": pl.Int64,
    "formula": pl.String,
    "at_least": pl.Boolean,
}
_GRADIENT: Final = re.compile(r"transpose\(|(?:^|/)gradients?(?:_tape)?/")
"""Marks of differentiation in scopes, of JAX and of TensorFlow."""
_CONV: Final = "__cudnn$conv"
_FORMULAS: Final[tuple[tuple[str, str, Callable[[Contraction], Count]], ...]] = (
    ("convolution", "", hlo_convolution),
    ("dot", "", hlo_dot),
    ("custom-call", _CONV, hlo_library_convolution),
    ("custom-call", "__cublas$", hlo_dot),
    ("custom-call", "__onednn$convolution", hlo_library_convolution),
    ("custom-call", "__onednn$matmul", hlo_onednn_matmul),
)
"""Opcode, beginning of the target, formula."""

INSIDE: Final = declare(
    "hlo.inside",
    """An instruction with others inside: the sum of their counts.

    The body of a while counts trip-count times, once where the trip count is unknown. The branches
    of a conditional do not count, since the executed branch is unknown. Both are marked
    ``at_least``.
    """,
)
GRADIENT: Final = declare(
    "hlo.convolution.gradient",
    """A gradient of a convolution: the count of the forward convolution.

    The gradients of input and weight multiply each element of the output's gradient with the
    elements it was computed from, so that all three counts are equal. XLA writes a gradient as a
    convolution with other padding, where counting full windows differs: the input gradient of a 5x5
    convolution from 14x14 to 10x10 has 14x14 windows, many of them mostly beyond the 10x10. The
    forward convolution is the one of the same program with the same element counts of its three
    tensors.
    """,
)


def instruction_flops(instructions: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each instruction, a row per counted instruction.

    ``instructions`` is that table of a trace. Columns: ``instruction``, its row; ``flops`` of one
    execution, a multiply-accumulate as two; ``formula``, a key of
    :data:`traceana.flops.registry.FORMULAS`; ``at_least``, whether some of it could not be
    counted. An instruction inside another has a row, and is also in the other's count.
    """
    counted, partial = _own(instructions)
    parents = instructions["parent"].to_list()
    conditionals, loops = (
        instructions.select((pl.col("opcode") == opcode).fill_null(False).arg_true()).to_series()
        for opcode in ("conditional", "while")
    )
    trips = instructions["attributes"].gather(loops).str.json_path_match("$.trip_count")
    trip_count = dict(zip(loops, trips.cast(pl.Int64, strict=False).fill_null(0), strict=True))
    branches = set(conditionals)
    inside: defaultdict[int, int] = defaultdict(int)
    rows: list[tuple[int, int, str, bool]] = []
    for row in range(instructions.height - 1, -1, -1):
        if (count := counted.get(row)) is not None:
            flops, formula, at_least = count.flops, count.formula, False
        else:
            repeats = trip_count.get(row, 1)
            flops, formula = inside[row] * (repeats or 1), INSIDE
            at_least = row in partial or (not repeats and flops > 0)
        parent = parents[row]
        if parent is not None and parent < row:
            kept = flops <= LARGEST and parent not in branches
            inside[parent] += flops if kept else 0
            if at_least or (flops and not kept):
                partial.add(parent)
        if 0 < flops <= LARGEST:
            rows.append((row, flops, formula, at_least))
    return pl.DataFrame(rows[::-1], schema=_SCHEMA, orient="row")


def library_convolutions(instructions: pl.DataFrame) -> dict[int, Convolution]:
    """Return the extents of the convolutions of cuDNN, by row."""
    columns = ("target", "input_shapes", "output_shape", "output_type", "attributes")
    convolutions: dict[int, Convolution] = {}
    for row, target, *texts in (
        instructions.with_row_index("row")
        .filter(pl.col("target").cast(pl.String).str.starts_with(_CONV))
        .select("row", *(pl.col(name).cast(pl.String) for name in columns))
        .iter_rows()
    ):
        with suppress(UncountableError):
            convolutions[row] = library_convolution(decoded_instruction(target, *texts))
    return convolutions


def _own(instructions: pl.DataFrame) -> tuple[dict[int, Count], set[int]]:
    """Return the counts of instructions with a formula, and rows where it did not apply.

    Gradients of convolutions are counted as their forward convolution.
    """
    opcode = pl.col("opcode").cast(pl.String)
    target = pl.col("target").cast(pl.String).fill_null("")
    columns = ("program", "program_id", "scope", "input_shapes", "output_shape", "output_type")
    counts: dict[int, Count] = {}
    failed: set[int] = set()
    forward: defaultdict[object, set[int]] = defaultdict(set)
    gradients: list[tuple[int, object]] = []
    for code, begin, count in _FORMULAS:
        mine = instructions.with_row_index("row").filter(
            (opcode == code) & target.str.starts_with(begin)
        )
        for row, name, program, number, scope, inputs, output, kind, attributes in mine.select(
            "row", target, *columns, "attributes"
        ).iter_rows():
            # XLA's rewriting of a weight gradient loses the scope.
            is_forward = scope is not None and _GRADIENT.search(scope) is None
            try:
                contraction = decoded_instruction(name, inputs, output, kind, attributes)
                counted = count(as_written(contraction) if is_forward else contraction)
            except UncountableError:
                failed.add(row)
                continue
            counts[row], key = counted, (program, number, counted.tensors)
            if counted.tensors and is_forward:
                forward[key].add(counted.flops)
            elif counted.tensors:
                gradients.append((row, key))
    for row, same in gradients:
        # Forward convolutions of equal sizes may differ: then the gradient's own count is used.
        if len(forward_flops := forward[same]) == 1:
            counts[row] = Count(next(iter(forward_flops)), GRADIENT)
    return counts, failed
