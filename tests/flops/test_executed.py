"""Executed FLOPs of algorithms, against closed forms and the counts in their papers."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from tests.flops.toom_cook import Matrix, filtering
from traceana.flops.call import Refusal, Shape
from traceana.flops.convolution import Convolution
from traceana.flops.executed import (
    FILTERINGS,
    Direction,
    Executed,
    Operations,
    executed,
    plane,
    real_transform,
    spectrum,
)
from traceana.trace.taxonomy import ALGORITHMS

DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")


def conv(
    batch: int = 2,
    channels: int = 4,
    filters: int = 8,
    side: int = 12,
    window: Shape = (3, 3),
    **more: object,
) -> Convolution:
    """Return a convolution with stride 1 that keeps the extents, except for ``more``."""
    rank = len(window)
    reported: dict[str, object] = {
        "input": (side,) * rank,
        "output": (side,) * rank,
        "stride": (1,) * rank,
        "dilation": (1,) * rank,
        **more,
    }
    return Convolution(batch, channels, filters, window, **reported)  # type: ignore[arg-type]


def run(one: Convolution, algorithm: str, direction: Direction = "fprop") -> Executed:
    result = executed(one, algorithm, direction)
    assert isinstance(result, Executed), result
    return result


def test_every_algorithm_of_the_taxonomy_has_a_formula() -> None:
    without = [one for one in ALGORITHMS if isinstance(executed(conv(), one), Refusal)]
    assert without == ["unknown"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "algorithm", ["direct", "implicit_gemm", "implicit_precomp_gemm", "algo_0", "algo_1", "gemm"]
)
def test_matrix_products_execute_the_direct_count(algorithm: str, direction: Direction) -> None:
    one = conv(stride=(2, 2), output=(6, 6))
    macs = 2 * 8 * 36 * 4 * 9
    result = run(one, algorithm, direction)
    assert result.product == Operations(macs, macs)
    assert result.transforms == Operations()
    assert result.flops == 2 * one.macs == 2 * macs
    if algorithm == "gemm":
        assert result.workspace == 4 * (4 * 9) * (2 * 36)


@pytest.mark.parametrize(
    ("algorithm", "taps", "reduction"),
    [("winograd", 3, 2.25), ("winograd_nonfused", 3, 4.0), ("winograd_nonfused", 5, 2025 / 169)],
)
def test_winograd_saves_multiplications_as_in_the_paper(
    algorithm: str, taps: int, reduction: float
) -> None:
    """(m·r)² / (m + r - 1)² where the tiles fill the plane."""
    one = conv(side=36, window=(taps, taps))
    result = run(one, algorithm)
    assert one.macs / result.product.multiplications == reduction
    assert result.product.multiplications == result.product.additions


def test_the_weight_gradient_of_5x5_takes_tiles_of_9x9() -> None:
    """AlexNet's second convolution with 128 images, beside the counters of an H100.

    The product between the transforms executed 2,394,402,816 fused multiply-adds, and all four
    kernels 6.34 GFLOP.
    """
    one = conv(128, 64, 192, side=27, window=(5, 5))
    result = run(one, "winograd_nonfused", "wgrad")
    assert result.product.multiplications == 128 * 9 * 64 * 192 * 13**2
    assert result.product.multiplications == pytest.approx(2_394_402_816, rel=2e-3)
    assert result.flops == pytest.approx(6.34e9, rel=0.2)


# What each algorithm of cuDNN 9.19 executed on an H200, by the counters of its kernels alone (FP32
# additions, multiplications, fused ones twice): AlexNet's second and third convolution, 32 images.
COUNTED: tuple[tuple[str, Direction, str, int], ...] = (
    ("conv2", "fprop", "fft_tiling", 2_139_852_800),
    ("conv2", "fprop", "implicit_precomp_gemm", 14_341_681_152),
    ("conv2", "fprop", "implicit_gemm", 14_337_202_176),
    ("conv2", "fprop", "winograd_nonfused", 1_707_302_912),
    ("conv2", "fprop", "fft", 2_139_852_800),
    ("conv2", "fprop", "gemm", 19_140_990_976),
    ("conv2", "dgrad", "fft_tiling", 2_132_357_120),
    ("conv2", "dgrad", "fft", 2_132_357_120),
    ("conv2", "dgrad", "algo_0", 14_504_429_568),
    ("conv2", "dgrad", "winograd_nonfused", 1_646_039_040),
    ("conv2", "dgrad", "algo_1", 14_335_709_184),
    ("conv2", "wgrad", "fft", 2_202_976_256),
    ("conv2", "wgrad", "algo_3", 14_490_009_600),
    ("conv2", "wgrad", "algo_0", 14_490_009_600),
    ("conv2", "wgrad", "winograd_nonfused", 1_602_922_496),
    ("conv2", "wgrad", "algo_1", 14_336_102_400),
    ("conv3", "fprop", "implicit_precomp_gemm", 7_308_607_488),
    ("conv3", "fprop", "implicit_gemm", 7_179_055_104),
    ("conv3", "fprop", "gemm", 7_221_522_432),
    ("conv3", "fprop", "fft_tiling", 12_370_759_680),
    ("conv3", "fprop", "fft", 3_133_648_896),
    ("conv3", "fprop", "winograd_nonfused", 2_806_112_256),
    ("conv3", "dgrad", "algo_0", 8_162_138_112),
    ("conv3", "dgrad", "algo_1", 7_179_055_104),
    ("conv3", "dgrad", "fft", 3_127_056_384),
    ("conv3", "dgrad", "fft_tiling", 12_352_874_496),
    ("conv3", "dgrad", "winograd_nonfused", 2_803_924_992),
    ("conv3", "wgrad", "algo_0", 7_495_483_392),
    ("conv3", "wgrad", "algo_3", 7_495_483_392),
    ("conv3", "wgrad", "fft", 3_187_777_536),
    ("conv3", "wgrad", "winograd_nonfused", 2_783_846_400),
    ("conv3", "wgrad", "algo_1", 7_181_420_544),
)
# Tiles of a matrix product that extend over its edge are executed too: of 64 x 64 where there are
# 27 x 27 outputs, 288 tiles of Winograd's, or 13 x 13 gradients.
OVER_THE_EDGE = {
    ("conv2", "fprop", "gemm"): 0.26,
    ("conv2", "fprop", "winograd_nonfused"): 0.15,
    ("conv3", "dgrad", "algo_0"): 0.13,
}


@pytest.mark.parametrize(("layer", "direction", "algorithm", "counted"), COUNTED)
def test_algorithms_execute_what_the_counters_of_a_gpu_count(
    layer: str, direction: Direction, algorithm: str, counted: int
) -> None:
    second = conv(32, 64, 192, side=27, window=(5, 5))
    third = conv(32, 192, 384, side=13)
    result = run({"conv2": second, "conv3": third}[layer], algorithm, direction)
    within = OVER_THE_EDGE.get((layer, direction, algorithm), 0.05)
    assert result.flops == pytest.approx(counted, rel=within)


def test_the_transforms_of_lavin_and_gray() -> None:
    """Section 4: F(2x2, 3x3) 32 and 24 additions; F(4x4, 3x3) 12(6 + 6), 10(6 + 4) instructions.

    Their instructions fuse multiplication and addition: ours are as many additions. Their filter
    transform of F(2, 3) takes 3 additions and 2 multiplications a vector.
    """
    # One image of one tile and one channel: every transform runs once.
    two = run(conv(1, 1, 1, side=2), "winograd")
    assert two.data_transform == Operations(0, 32)
    assert two.output_transform == Operations(0, 24)
    assert FILTERINGS[2, 3].filter == Operations(2, 3)
    assert two.filter_transform == Operations(2 * 7, 3 * 7)
    four = run(conv(1, 1, 1, side=4), "winograd_nonfused")
    assert four.data_transform.additions == 12 * (6 + 6)
    assert four.output_transform.additions == 10 * (6 + 4)


@pytest.mark.parametrize(("outputs", "taps"), FILTERINGS)
def test_operations_follow_from_the_matrices(outputs: int, taps: int) -> None:
    derived, counted = filtering(outputs, taps), FILTERINGS[outputs, taps]
    assert counted.tile == derived.tile
    assert counted.data == derived.data_operations
    assert counted.filter == derived.filter_operations
    assert counted.output == derived.output_operations


@pytest.mark.parametrize(("outputs", "taps"), FILTERINGS)
def test_the_matrices_filter(outputs: int, taps: int) -> None:
    """Aᵀ[(G g) ⊙ (Bᵀ d)] is the correlation of d with g."""
    one = filtering(outputs, taps)
    generator = np.random.default_rng(outputs * 10 + taps)
    g, d = generator.normal(size=taps), generator.normal(size=one.tile)
    y = _array(one.output_matrix) @ (_array(one.filter_matrix) @ g * (_array(one.data_matrix) @ d))
    assert np.allclose(y, np.correlate(d, g, "valid"), atol=1e-8)


def _array(matrix: Matrix) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[float(entry) for entry in row] for row in matrix])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_winograd_in_closed_form(direction: Direction) -> None:
    """13 x 13 takes 4 x 4 tiles of F(4x4, 3x3); transforms run once a channel, filter or result."""
    one = conv(side=13)
    result = run(one, "winograd_nonfused", direction)
    tiles, pairs = 2 * 16, 4 * 8
    assert result.product == Operations(1, 1) * (tiles * pairs * 36)
    of_input, of_output, of_filter = tiles * 4, tiles * 8, pairs
    data, kernels, results, side = {
        "fprop": (of_input, of_filter, of_output, FILTERINGS[4, 3]),
        "dgrad": (of_output, of_filter, of_input, FILTERINGS[4, 3]),
        "wgrad": (of_input, of_output, of_filter, FILTERINGS[3, 4]),
    }[direction]
    # One dimension after the other: as many vectors as the other dimension has then.
    taps, outputs = side.taps, side.outputs
    assert result.data_transform == side.data * (2 * 6) * data
    assert result.filter_transform == side.filter * (taps + 6) * kernels
    assert result.output_transform == side.output * (6 + outputs) * results
    assert result.workspace == 4 * 36 * (data + kernels + results)


def test_winograd_along_one_dimension() -> None:
    """F(4, 3) along rows only: 6 products for 4 outputs of 3 taps, twice as few as direct."""
    one = conv(window=(1, 3))
    result = run(one, "winograd_nonfused")
    assert one.macs / result.product.multiplications == 2.0
    tiles = 2 * 12 * 3
    assert result.data_transform == FILTERINGS[4, 3].data * (tiles * 4)
    line = run(conv(window=(3,)), "winograd")
    assert line.product.multiplications == 2 * 6 * 32 * 4


def test_groups_multiply_within_themselves() -> None:
    for algorithm in ("fft", "fft_tiling", "winograd", "winograd_nonfused", "direct"):
        whole = run(conv(), algorithm)
        grouped = run(conv(groups=2), algorithm)
        assert 2 * grouped.product.flops == whole.product.flops
        assert grouped.data_transform == whole.data_transform
        assert 2 * grouped.filter_transform.flops == whole.filter_transform.flops


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fft_is_the_formula_of_mathieu(direction: Direction) -> None:
    """2C·n²·log n·(f'S + fS + f'f) + 4S·f'·f·n², C = 2.5, on planes of 16 x 16.

    Theirs has n²/2 products of 8 operations; a spectrum has a column, n points, more.
    """
    one = conv(side=14)
    n, images, f, f2 = 16, 2, 4, 8
    result = run(one, "fft", direction)
    transforms = 2 * 2.5 * n * n * log2(n) * (f2 * images + f * images + f2 * f)
    assert result.transforms.flops == transforms
    assert result.product.flops == 4 * images * f2 * f * (n * n + 2 * n)
    assert result.workspace == 8 * n * (n // 2 + 1) * (f2 * images + f * images + f2 * f)


def test_a_real_transform_is_half_a_complex_one() -> None:
    """5 n log₂ n of a complex transform: 2 n log₂ n multiplications, 3 n log₂ n additions."""
    assert real_transform((8, 8)) == Operations(64 * 6, 64 * 9)
    assert spectrum((8, 8)) == 8 * 5


def test_fft_planes_have_the_sides_of_cudnns_kernels() -> None:
    lengths = {1: 16, 15: 16, 16: 16, 17: 32, 31: 32, 60: 64, 65: 128, 256: 256}
    assert {length: plane(length) for length in lengths} == lengths


def test_fft_of_alexnet_beside_the_counters_of_an_h100() -> None:
    """The complex products of its second and fifth convolution, 128 images: 6.925, 9.692 GFLOP."""
    second = run(conv(128, 64, 192, side=27, window=(5, 5)), "fft")
    fifth = run(conv(128, 256, 256, side=13), "fft")
    assert second.product.flops == pytest.approx(6.925e9, rel=0.02)
    assert fifth.product.flops == pytest.approx(9.692e9, rel=0.02)
    assert fifth.flops == pytest.approx(10.27e9, rel=0.05)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fft_tiling_cuts_planes_into_tiles_of_32(direction: Direction) -> None:
    """A filter of 3 leaves 30 of 32: 100 x 100 take 4 x 4 tiles."""
    result = run(conv(side=100), "fft_tiling", direction)
    tiles = 16
    assert result.product == Operations(4, 4) * (2 * 32 * tiles * 32 * 17)
    transforms = 2 * 4 * tiles + 2 * 8 * tiles + 32
    assert result.transforms == real_transform((32, 32)) * transforms


@pytest.mark.parametrize(
    ("algorithm", "one", "reason"),
    [
        ("winograd", conv(stride=(2, 2), output=(6, 6)), "stride 1"),
        ("winograd", conv(dilation=(2, 2)), "no dilation"),
        ("winograd", conv(window=(5, 5)), "filter size 3"),
        ("winograd_nonfused", conv(window=(7, 7)), "filter size 3 or 5"),
        ("winograd", conv(window=(1, 1)), "one element"),
        ("winograd", conv(stride=None), "unknown"),
        ("winograd", conv(transposed=True), "transposed"),
        ("fft", conv(stride=(4, 4), output=(3, 3)), "stride 1"),
        ("fft", conv(dilation=(2, 2)), "no dilation"),
        ("fft", conv(window=(1, 1)), "one element"),
        ("fft", conv(side=300), "256"),
        ("fft_tiling", conv(window=(33, 33)), "larger than the 32x32 tile"),
    ],
)
def test_what_an_algorithm_cannot_do_is_refused(
    algorithm: str, one: Convolution, reason: str
) -> None:
    result = executed(one, algorithm)
    assert isinstance(result, Refusal)
    assert reason in result.reason


def test_the_input_gradient_of_winograd_needs_the_input() -> None:
    one = conv(input=None)
    assert isinstance(executed(one, "winograd"), Executed)
    assert isinstance(executed(one, "winograd", "dgrad"), Refusal)


# AlexNet (one weird trick) at batch 256, as in the study: C, K, side, window, stride, output.
ALEXNET = {
    "conv1": (3, 64, 224, 11, 4, 55),
    "conv2": (64, 192, 27, 5, 1, 27),
    "conv3": (192, 384, 13, 3, 1, 13),
    "conv4": (384, 256, 13, 3, 1, 13),
    "conv5": (256, 256, 13, 3, 1, 13),
}


def test_alexnet_orders_as_in_the_study() -> None:
    """Kim et al. (2017), figure 9 (c): FFT needs the fewest operations, Winograd halves and more.

    The first layer's stride is 4: no FFT and no Winograd. Planes of 15 points are transformed at
    16, which brings FFT to 1.03 of Winograd's operations. Of 5x5 filters cuDNN's tiles have 9x9
    outputs by now, and Winograd needs fewest: an H200 counts 1.71 GFLOP beside FFT's 2.14.
    """
    for layer, (channels, filters, side, window, stride, output) in ALEXNET.items():
        one = conv(
            256,
            channels,
            filters,
            side,
            (window, window),
            stride=(stride, stride),
            output=(output, output),
        )
        gemm = run(one, "implicit_gemm").flops
        if layer == "conv1":
            assert gemm == 2 * 256 * 64 * 55 * 55 * 3 * 121
            for algorithm in ("fft", "fft_tiling", "winograd", "winograd_nonfused"):
                assert isinstance(executed(one, algorithm), Refusal)
            continue
        fft, winograd = run(one, "fft").flops, run(one, "winograd_nonfused").flops
        least, other = (winograd, fft) if layer == "conv2" else (fft, 1.04 * winograd)
        assert least < other < gemm / 2, layer
        assert run(one, "gemm").flops == gemm
        if window == 3:
            assert winograd < run(one, "winograd").flops < gemm, layer
