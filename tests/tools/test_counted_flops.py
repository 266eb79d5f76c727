"""FLOPs that nvprof counted: what the kernels of cuDNN execute for a layer, where it is known."""

from __future__ import annotations

import pytest

from tests.support.manifest import TRACES
from tools.counted_flops import SHAPES, modelled, rows, tiled

FOLDER = TRACES / "nvprof-printed" / "tegra_x1_celeba"


def test_a_gemm_executes_all_of_its_tiles() -> None:
    assert tiled(64, 8100, 3200, (128, 64)) == (2 * 3200 + 1) * 64 * 8192
    assert tiled(65, 128, 10, (64, 128)) == 21 * 128 * 128


def test_a_data_gradient_is_a_product_for_each_image() -> None:
    """ALGO_0: 1600 windows by 25 positions, in tiles of 64 x 32."""
    name = "void cudnn::detail::dgrad_engine<float, int=512, int=6, int=5, int=3>"
    assert modelled(SHAPES[3], 10, name) == 10 * (2 * 128 * 1600 * 32 + 1600 * 25)


def test_kernels_of_unknown_code_have_no_model() -> None:
    assert modelled(SHAPES[1], 1, "winogradForwardDelta4x4<float, float>") is None


def test_nonfused_transforms_have_no_model_where_an_image_has_several_tiles() -> None:
    for kernel in ("winogradForwardData4x4", "winogradForwardOutput4x4"):
        assert modelled(SHAPES[1], 16, kernel) is not None
        assert modelled(SHAPES[2], 16, kernel) is None


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize("layer", [1, 3, 5])
@pytest.mark.parametrize("batch", [1, 10, 100, 1000])
def test_the_counter_is_that_of_the_model(layer: int, batch: int) -> None:
    convolution, *kernels = rows(FOLDER / f"l{layer}" / f"GPUFlopMet_l{layer}_bs{batch}_1.csv")
    assert convolution[:2] == [SHAPES[layer].written, str(batch)]
    ratios = [float(row[-1]) for row in (convolution, *kernels)]
    # The additions of a complex product depend on more than one depth shows.
    assert ratios == pytest.approx(
        [1] * len(ratios), abs=0 if (layer, batch) != (5, 1000) else 4e-3
    )
