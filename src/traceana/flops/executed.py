"""FLOPs that convolution algorithms execute: direct, GEMM, FFT, Winograd.

Figure 9 (c) of Kim et al. (ISPASS 2017): floating-point operations by layer and algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2, prod
from typing import Final, Literal, NamedTuple

import msgspec

from traceana.flops.call import Refusal, Shape, UncountableError
from traceana.flops.convolution import Convolution
from traceana.flops.registry import declare, formula

Direction = Literal["fprop", "dgrad", "wgrad"]


class Operations(msgspec.Struct, frozen=True):
    """Real multiplications and additions; a fused multiply-add is one of each."""

    multiplications: int = 0
    additions: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.multiplications + other.multiplications, self.additions + other.additions
        )

    def __mul__(self, times: int) -> Operations:
        return Operations(self.multiplications * times, self.additions * times)

    @property
    def flops(self) -> int:
        """All operations."""
        return self.multiplications + self.additions


NOTHING: Final = Operations()


class Executed(msgspec.Struct, frozen=True):
    """The operations of an algorithm for one convolution in one direction.

    The transforms are those of the two operands and the result of that direction (for a forward
    pass input, filter and output). ``workspace`` is the memory in bytes of the transformed (or
    expanded) tensors, ``None`` without a formula.
    """

    product: Operations
    data_transform: Operations = msgspec.field(default=NOTHING)
    filter_transform: Operations = msgspec.field(default=NOTHING)
    output_transform: Operations = msgspec.field(default=NOTHING)
    workspace: int | None = None

    @property
    def transforms(self) -> Operations:
        """The operations of all three transforms."""
        return self.data_transform + self.filter_transform + self.output_transform

    @property
    def flops(self) -> int:
        """All floating-point operations: product and transforms."""
        return (self.product + self.transforms).flops


def executed(
    conv: Convolution, algorithm: str, direction: Direction = "fprop", *, size: int = 4
) -> Executed | Refusal:
    """Return the operations of ``algorithm`` for ``conv`` in ``direction``, or the refusal.

    ``size`` is the bytes of an element of expanded and transformed tensors.
    """
    if algorithm not in _COUNTS:
        return Refusal("no FLOP formula for this algorithm")
    try:
        return _COUNTS[algorithm](conv, direction, algorithm, size)
    except UncountableError as error:
        return Refusal(str(error))


# Direct convolution, and convolution as a matrix product.


@formula("executed.direct")
def direct(conv: Convolution, _: Direction, algorithm: str, __: int) -> Executed:
    """One multiplication and one addition for each of N·K·P·Q·(C/g)·R·S, without transforms.

    The count is the same for direct, implicit GEMM and implicit precomputed GEMM (Chetlur et al.,
    cuDNN, 2014: the expanded operand is made tile by tile on the chip). Tiles of the matrix product
    that extend over its edge execute more; this is not counted.
    """
    workspace = None if algorithm == "implicit_precomp_gemm" else 0
    return Executed(Operations(conv.macs, conv.macs), workspace=workspace)


@formula("executed.explicit_gemm")
def explicit_gemm(conv: Convolution, _: Direction, __: str, size: int) -> Executed:
    """As direct; first the input is expanded to a matrix of C·R·S rows and N·P·Q columns.

    Chellapilla et al. (2006). The workspace is this matrix for all images, as in cuDNN; Caffe
    expands one image at a time and needs 1/N of it. The expansion only copies.
    """
    columns = conv.batch * prod(conv.walked or ())
    rows = conv.in_channels * prod(conv.window)
    return Executed(Operations(conv.macs, conv.macs), workspace=rows * columns * size)


# Winograd's minimal filtering.


class Filtering(NamedTuple):
    """F(m, r), m outputs of an r-tap filter, by the operations of its one-dimensional transforms.

    ``data`` transforms t = m + r - 1 inputs, ``filter`` the r taps, ``output`` t products to m
    outputs.
    """

    outputs: int
    taps: int
    data: Operations
    filter: Operations
    output: Operations

    @property
    def tile(self) -> int:
        """t = m + r - 1."""
        return self.outputs + self.taps - 1


FILTERINGS: Final[Mapping[tuple[int, int], Filtering]] = {
    (filtering.outputs, filtering.taps): filtering
    for filtering in (
        Filtering(1, 1, NOTHING, NOTHING, NOTHING),
        Filtering(2, 3, Operations(0, 4), Operations(2, 3), Operations(0, 4)),
        Filtering(3, 2, Operations(0, 4), Operations(2, 2), Operations(0, 4)),
        Filtering(4, 3, Operations(7, 12), Operations(6, 6), Operations(3, 10)),
        Filtering(3, 4, Operations(7, 12), Operations(7, 8), Operations(2, 9)),
        Filtering(9, 5, Operations(122, 127), Operations(48, 44), Operations(40, 57)),
        Filtering(5, 9, Operations(122, 127), Operations(84, 88), Operations(20, 37)),
    )
}
"""The filterings of cuDNN's kernels, F(2, 3) and F(4, 3) as counted by Lavin and Gray. The counts
are those of the matrices of the points 0, ±1, ±2, ±½ …, whose rows and columns of ±p share their
halves; a test derives the matrices and counts the operations."""

FUSED_OUTPUTS: Final[Mapping[int, int]] = {3: 2}
"""Outputs per tile side of the fused kernels, by the filter's side: F(2x2, 3x3), the first of Lavin
and Gray. cuDNN does not document its tiles."""

NONFUSED_OUTPUTS: Final[Mapping[int, int]] = {3: 4, 5: 9}
"""Outputs, or gradients of outputs, per tile side of the non-fused kernels: F(4x4, 3x3) and
F(9x9, 5x5), by the names of cuDNN's kernels (``winogradForwardData4x4``, ``…9x9_5x5``). Between
the transforms of the latter run 13x13 matrix products, in all directions."""


@formula("executed.winograd")
def winograd(conv: Convolution, direction: Direction, algorithm: str, size: int) -> Executed:
    """F(m x m, r x r): (m + r - 1)² products per tile and pair of channels; direct: m²·r².

    Lavin and Gray (2015): N·⌈P/m⌉·⌈Q/m⌉ tiles of t x t inputs, t = m + r - 1. The product is t²
    matrix products of K x C/g by C/g x tiles. Each tile of each channel is transformed by Bᵀ·d·B
    (2t one-dimensional transforms), each filter by G·g·Gᵀ (r + t), each tile of each output channel
    back by Aᵀ·m·A (t + m): the data once for all K, the filters once for all tiles. The operations
    of the one-dimensional transforms are counted from the matrices, which are derived from the
    points 0, ±1, ±2, ±½ …; rows and columns of ±p share their halves. F(2x2, 3x3) needs 32
    additions for the data and 24 for the result, F(4x4, 3x3) 144 and 100, as in the paper, which
    counts a multiplication fused with an addition as one instruction; here it is two operations.
    The input gradient exchanges C and K. In the weight gradient the results are r x r and the
    tiles of the output's gradient (m x m) are the filters, F(r x r, m x m): the sum is over images
    and tiles, and only K·C/g results are transformed back. Workspace of non-fused kernels, whose
    transforms are separate kernels: the three transformed tensors.
    """
    output = _stride_of_one(conv, "Winograd")
    fused = algorithm == "winograd"
    by_side = FUSED_OUTPUTS if fused else NONFUSED_OUTPUTS
    if not {side for side in conv.window if side > 1} <= set(by_side):
        raise UncountableError(f"Winograd: filter size {' or '.join(map(str, by_side))} only")
    # One output in a dimension with one tap of the filter.
    outputs = tuple(1 if side == 1 else by_side[side] for side in conv.window)
    sides = [
        FILTERINGS[(r, m) if direction == "wgrad" else (m, r)]
        for m, r in zip(outputs, conv.window, strict=True)
    ]
    # The tiles of the input's gradient cover the layer's input.
    spatial = output
    if direction == "dgrad":
        if conv.input is None:
            raise UncountableError("input spatial size unknown")
        spatial = conv.input
    tiles = conv.batch * prod(ceil(p / m) for p, m in zip(spatial, outputs, strict=True))
    pairs, data, kernels, results = _transformed(conv, direction, tiles)
    points = prod(side.tile for side in sides)
    return Executed(
        product=Operations(1, 1) * (tiles * pairs * points),
        data_transform=_separable([(side.tile, side.tile, side.data) for side in sides]) * data,
        filter_transform=_separable([(side.taps, side.tile, side.filter) for side in sides])
        * kernels,
        output_transform=_separable([(side.tile, side.outputs, side.output) for side in sides])
        * results,
        workspace=None if fused else (data + kernels + results) * points * size,
    )


def _transformed(conv: Convolution, direction: Direction, tiles: int) -> tuple[int, int, int, int]:
    """Return the pairs of channels, and the transforms of the two operands and of the result.

    The three tensors are input, filter and output; a gradient reads two and writes the third.
    """
    pairs = conv.out_channels * conv.in_channels // conv.groups
    entering, leaving = tiles * conv.in_channels, tiles * conv.out_channels
    match direction:
        case "fprop":
            return pairs, entering, pairs, leaving
        case "dgrad":
            return pairs, leaving, pairs, entering
        case "wgrad":
            return pairs, entering, leaving, pairs


def _separable(sides: list[tuple[int, int, Operations]]) -> Operations:
    """Return the operations of transforms by dimension: (extent before, after, of one)."""
    total = NOTHING
    for axis, (_, _, operations) in enumerate(sides):
        before = prod(after for _, after, _ in sides[:axis])
        behind = prod(extent for extent, _, _ in sides[axis + 1 :])
        total += operations * (before * behind)
    return total


# The fast Fourier transform, of whole planes or of tiles.

TILE: Final = 32
"""cuDNN's FFT_TILING cuts planes into tiles of 32x32."""

LARGEST_PLANE: Final = 256
"""cuDNN's FFT supports planes, padding included, of up to 256 x 256."""

_COMPLEX: Final = 8  # bytes per element, in single precision

declare(
    "executed.real_fft",
    """2.5 · n · log₂ n for a real transform of n points, half of a complex one's 5 · n · log₂ n.

    A radix-2 transform has (n/2)·log₂ n butterflies of one complex multiplication (4
    multiplications, 2 additions) and two complex additions (4 additions): 10 operations each, 4 of
    them multiplications. A real input needs half (Sorensen et al., 1987). This is the conventional
    count (used in FFTW's benchmarks) for every radix; the transforms of cuFFT and cuDNN execute a
    few percent less.
    """,
)


def plane(extent: int) -> int:
    """Return the side of the transformed plane for ``extent`` points: a power of two from 16.

    The names of cuDNN's kernels have 16x16, 32x32 and 64x64 (``fft2d_r2c_16x16``), those of larger
    planes (``fft1d_r2c_256``) no whole size.
    """
    return max(16, 1 << (extent - 1).bit_length())


def real_transform(extents: Shape) -> Operations:
    """Return the operations of one real transform (R2C, or C2R) of these extents."""
    points = prod(extents)
    half = points * log2(points) / 2
    # 4 in 10 of the 2.5 n log n operations are multiplications.
    return Operations(round(2 * half), round(3 * half))


def spectrum(extents: Shape) -> int:
    """Return the complex points of a real transform: n/2 + 1 in its last dimension."""
    return prod(extents[:-1]) * (extents[-1] // 2 + 1)


@formula("executed.fft")
def fft(conv: Convolution, direction: Direction, _: str, __: int) -> Executed:
    """Whole planes are transformed: N·C + K·C/g real transforms, products, N·K back.

    Mathieu et al., Fast Training of Convolutional Networks through FFTs (2013): with n = h·w points
    of the padded plane 2.5·n·log₂ n for each real transform (their 2C·n²·log n for n x n, C = 2.5),
    and for each of the h·(w/2 + 1) points of a spectrum N·K·C/g complex multiply-accumulates of
    8 operations: 4 multiplications and 2 additions for the product, 2 additions to accumulate
    (4·S·f'·f·n² in the paper). The gradients exchange the roles of the three tensors and cost the
    same. A plane has P + R - 1 points per dimension (stride 1: the padded input's), raised to a
    power of two from 16, as in the names of cuDNN's kernels; an H100's counters of the products
    confirm 16 and 32. Workspace: the three sets of spectra.
    """
    output = _stride_of_one(conv, "FFT")
    padded = [p + r - 1 for p, r in zip(output, conv.window, strict=True)]
    if max(padded) > LARGEST_PLANE:
        raise UncountableError(f"cuDNN FFT: planes of at most {LARGEST_PLANE} x {LARGEST_PLANE}")
    return _by_spectra(conv, direction, tuple(map(plane, padded)), tiles=1)


@formula("executed.fft_tiling")
def fft_tiling(conv: Convolution, direction: Direction, _: str, __: int) -> Executed:
    """As FFT, with planes cut into tiles of 32x32, each with 33 - R results per side.

    cuDNN's documentation of FFT_TILING: 32x32 tiles. Each image and channel has
    ⌈P/(33 - R)⌉·⌈Q/(33 - S)⌉ tiles; filters are transformed once, at the size of a tile. In the
    weight gradient the tiles of the output's gradient are the filters, the sum is over images and
    tiles, and K·C/g results are transformed back. Workspace: the three sets of spectra.
    """
    output = _stride_of_one(conv, "FFT")
    if max(conv.window) > TILE:
        raise UncountableError(f"FFT tiling: filter larger than the {TILE}x{TILE} tile")
    extents = (TILE,) * len(conv.window)
    tiles = prod(ceil(p / (TILE - r + 1)) for p, r in zip(output, conv.window, strict=True))
    return _by_spectra(conv, direction, extents, tiles)


def _by_spectra(conv: Convolution, direction: Direction, extents: Shape, tiles: int) -> Executed:
    """Count the transforms of ``extents``, and the products of their points."""
    if not prod(conv.output or ()):
        raise UncountableError("empty output")
    tiles *= conv.batch
    pairs, data, filters, results = _transformed(conv, direction, tiles)
    transform, points = real_transform(extents), spectrum(extents)
    return Executed(
        product=Operations(4, 4) * (pairs * tiles * points),
        data_transform=transform * data,
        filter_transform=transform * filters,
        output_transform=transform * results,
        workspace=(data + filters + results) * points * _COMPLEX,
    )


def _stride_of_one(conv: Convolution, algorithm: str) -> Shape:
    """Return the output's extents; raises ``UncountableError`` for unsupported convolutions."""
    if conv.transposed or conv.output is None:
        raise UncountableError(f"{algorithm}: not for transposed convolutions")
    if conv.stride is None or conv.dilation is None:
        raise UncountableError("stride unknown")
    if set(conv.stride) != {1}:
        raise UncountableError(f"{algorithm}: stride 1 only")
    if set(conv.dilation) != {1}:
        raise UncountableError(f"{algorithm}: no dilation")
    if prod(conv.window) == 1:
        raise UncountableError(f"{algorithm}: not for filters of one element")
    return conv.output


_COUNTS: Final[dict[str, Callable[[Convolution, Direction, str, int], Executed]]] = {
    "direct": direct,
    "depthwise": direct,
    "implicit_gemm": direct,
    "implicit_precomp_gemm": direct,
    # cuDNN's first algorithms for gradients: matrix products without expansion.
    "algo_0": direct,
    "algo_1": direct,
    "algo_3": direct,
    "fft": fft,
    "fft_tiling": fft_tiling,
    "gemm": explicit_gemm,
    "winograd": winograd,
    "winograd_nonfused": winograd,
}
