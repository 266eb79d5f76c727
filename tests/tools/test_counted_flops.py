"""FLOPs that nvprof counted: GEMM kernels execute whole tiles, exactly."""

from __future__ import annotations

import pytest

from tests.support.manifest import TRACES
from tools.counted_flops import rows, tiled

FILES = "GPUFlopMet_l{}_bs{}_1.csv"


def test_a_gemm_executes_all_of_its_tiles() -> None:
    name = "maxwell_scudnn_128x64_stridedB_medium_nn"
    assert tiled(64, 8100, 3200, name) == (2 * 3200 + 1) * 64 * 8192
    assert tiled(65, 128, 10, name) == 21 * 128 * 128
    assert tiled(64, 8100, 3200, "dgrad_engine") is None


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize(("layer", "batch"), [(1, 100), (1, 1000), (3, 100), (3, 1000)])
def test_the_counter_is_that_of_whole_tiles(layer: int, batch: int) -> None:
    folder = TRACES / "nvprof-printed" / "tegra_x1_celeba" / f"l{layer}"
    convolution, product = rows(folder / FILES.format(layer, batch))
    assert f"| {layer} | {batch} |" in convolution
    _, _, _, _, by_tiles, counted, *_ = (cell.strip() for cell in product.strip("|").split("|"))
    assert by_tiles == counted != ""
