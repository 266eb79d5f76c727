"""Convolution by the fast Fourier transform, of whole planes or of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod
from typing import Final

from traceana.flops.executed.model import Direction, Executed, Operations
from traceana.flops.model import Shape, UncountableError
from traceana.flops.neutral.convolution import Convolution
from traceana.flops.registry import declare, formula

TILE: Final = 32
"""cuDNN's FFT_TILING cuts planes into tiles of 32x32."""

LARGEST_PLANE: Final = 256
"""cuDNN's FFT takes planes, padding included, of up to 256 x 256."""

_COMPLEX: Final = 8  # bytes an element, in single precision

REAL_TRANSFORM: Final = declare(
    "executed.real_fft",
    """2.5 · n · log₂ n for a real transform of n points, half of a complex one's 5 · n · log₂ n.

    A radix-2 transform has (n/2)·log₂ n butterflies of one complex multiplication (4
    multiplications, 2 additions) and two complex additions (4 additions): 10 operations each, of
    which 4 in 10 are multiplications. A real input needs half (Sorensen et al., 1987). This is the
    count by convention (FFTW's benchmarks use it) for every radix; the transforms of cuFFT and
    cuDNN execute a few percent less.
    """,
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Transforms of ``extents``: how many of each tensor, and how many spectra are multiplied."""

    extents: Shape
    data: int
    filters: int
    results: int
    products: int


def smooth(extent: int) -> int:
    """Return the least 2^a·3^b·5^c·7^d that is no less: the lengths that cuFFT is fast at."""
    candidate = max(extent, 1)
    while True:
        rest = candidate
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return candidate
        candidate += 1


def real_transform(extents: Shape) -> Operations:
    """Return the operations of one real transform (R2C, or C2R) of these extents."""
    points = prod(extents)
    half = points * log2(points) / 2
    # Of 2.5 n log n, 4 in 10 are multiplications.
    return Operations(round(2 * half), round(3 * half))


def spectrum(extents: Shape) -> int:
    """Return the complex points of a real transform: its last dimension is half, and one more."""
    return prod(extents[:-1]) * (extents[-1] // 2 + 1)


@formula("executed.fft")
def fft(conv: Convolution, direction: Direction, algorithm: str) -> Executed:
    """Each plane is transformed whole: N·C + K·C/g real transforms, N·K back, and products between.

    Mathieu et al., Fast Training of Convolutional Networks through FFTs (2013): with n = h·w points
    of the padded plane 2.5·n·log₂ n for each real transform (their 2C·n²·log n for n x n, C = 2.5),
    and for each of the h·(w/2 + 1) points of a spectrum N·K·C/g complex multiply-accumulates of
    8 operations: 4 multiplications and 2 additions for the product, 2 additions to accumulate —
    their 4·S·f'·f·n². The gradients exchange the roles of the three tensors and cost the same.
    A plane has P + R - 1 points a dimension (stride 1: the padded input's), raised to the next
    2^a·3^b·5^c·7^d, as cuFFT's documentation advises. Workspace: the three sets of spectra.
    """
    output = _require(conv)
    extents = tuple(smooth(p + r - 1) for p, r in zip(output, conv.window, strict=True))
    if max(p + r - 1 for p, r in zip(output, conv.window, strict=True)) > LARGEST_PLANE:
        raise UncountableError(f"cuDNN's FFT takes planes of up to {LARGEST_PLANE} points a side")
    return _count(direction, algorithm, _plan(conv, extents, tiles=1), "executed.fft")


@formula("executed.fft_tiling")
def fft_tiling(conv: Convolution, direction: Direction, algorithm: str) -> Executed:
    """As FFT, but planes are cut into tiles of 32x32, of which 33 - R a side are results.

    cuDNN's documentation of FFT_TILING: 32x32 tiles. Each image and channel has
    ⌈P/(33 - R)⌉·⌈Q/(33 - S)⌉ of them; filters are transformed once, at the size of a tile. Of the
    weight's gradient the tiles of the output's gradient are the filters, the sum runs over images
    and tiles, and K·C/g results are transformed back. Workspace: the three sets of spectra.
    """
    output = _require(conv)
    if max(conv.window) > TILE:
        raise UncountableError(f"a filter of more than {TILE} does not fit a tile")
    extents = (TILE,) * len(conv.window)
    tiles = prod(ceil(p / (TILE - r + 1)) for p, r in zip(output, conv.window, strict=True))
    plan = _plan(conv, extents, tiles)
    return _count(direction, algorithm, plan, "executed.fft_tiling")


def _plan(conv: Convolution, extents: Shape, tiles: int) -> _Plan:
    pairs = conv.out_channels * conv.in_channels // conv.groups
    return _Plan(
        extents,
        data=conv.batch * conv.in_channels * tiles,
        filters=pairs,
        results=conv.batch * conv.out_channels * tiles,
        products=conv.batch * pairs * tiles,
    )


def _count(direction: Direction, algorithm: str, plan: _Plan, name: str) -> Executed:
    # The three tensors are input, filter and output; a gradient reads two and gives the third.
    tensors = {
        "fprop": (plan.data, plan.filters, plan.results),
        "dgrad": (plan.results, plan.filters, plan.data),
        "wgrad": (plan.data, plan.results, plan.filters),
    }
    data, filters, results = tensors[direction]
    one = real_transform(plan.extents)
    points = spectrum(plan.extents)
    return Executed(
        algorithm,
        direction,
        product=Operations(4, 4) * (plan.products * points),
        formula=name,
        data_transform=one * data,
        filter_transform=one * filters,
        output_transform=one * results,
        workspace=(data + filters + results) * points * _COMPLEX,
    )


def _require(conv: Convolution) -> Shape:
    if conv.transposed or conv.output is None:
        raise UncountableError("the FFT algorithms are given for plain convolutions only")
    if conv.stride is None or conv.dilation is None:
        raise UncountableError("the stride of the convolution is not known")
    if set(conv.stride) != {1}:
        raise UncountableError("the FFT algorithms take a stride of 1 only")
    if set(conv.dilation) != {1}:
        raise UncountableError("the FFT algorithms take no dilation")
    if prod(conv.window) == 1:
        raise UncountableError("a filter of one element is no convolution to transform")
    if not prod(conv.output):
        raise UncountableError("the output is empty")
    return conv.output
