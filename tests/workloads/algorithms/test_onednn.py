"""oneDNN itself, on the CPU: every implementation it has for small shapes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.workloads.algorithms.shapes import LAYERS, layer
from traceana.flops.timed_algorithms import AlgorithmStudy, read
from traceana.study.timed_convolutions import by_batch, measurements
from workloads.algorithms import onednn
from workloads.algorithms.__main__ import main
from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.onednn import OneDNNBench, algorithm_of
from workloads.algorithms.onednn_api import MAJOR, PACKAGES, OneDNN
from workloads.algorithms.study import Direction, Layer, Measurement
from workloads.algorithms.timing import Timing

DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")


def installed() -> bool:
    for package in PACKAGES:
        try:
            return bool(version(package))
        except PackageNotFoundError:
            continue
    return False


@pytest.fixture(scope="module")
def bench() -> OneDNNBench:
    if not installed():
        pytest.skip("no wheel with oneDNN is installed")
    return OneDNNBench(OneDNN(None), Timing(1, 3, 10**7), threads=1)


def ran(measured: list[Measurement]) -> list[Measurement]:
    return [each for each in measured if each.status == "ok"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", LAYERS, ids=lambda each: each.path)
def test_all_implementations_are_right(
    shape: Layer, direction: Direction, bench: OneDNNBench
) -> None:
    measured = list(bench.measure(shape, direction, 2))
    assert {each.status for each in measured} <= {"ok", "unsupported", "left_out"}
    for each in ran(measured):
        assert (each.error or 0.0) < 1e-4
        assert len(each.times_ns) == 3
        assert len(each.reorder_ns) == 3
        assert (each.reorder_bytes == 0) == (each.reorder_ns == (0, 0, 0))
        assert each.workspace_bytes is not None
    assert {"convolution_direct", "convolution_auto"} <= {each.name for each in ran(measured)}


def test_what_it_chooses_is_one_of_what_it_has(bench: OneDNNBench) -> None:
    measured = list(bench.measure(layer(), "fprop", 1))
    automatic = [each for each in measured if each.name == "convolution_auto"]
    others = {each.implementation for each in measured if each.name != "convolution_auto"}
    assert len(automatic) == 1
    assert automatic[0].implementation in others
    reference = [each for each in measured if (each.implementation or "").startswith("ref")]
    assert [each.status for each in reference] == ["left_out"]


def test_uneven_padding_is_its_own(bench: OneDNNBench) -> None:
    """Asymmetric padding, which cuDNN does not support."""
    uneven = layer(input=(8, 8), output=(8, 8), kernel=(2, 2), padding=((0, 1), (1, 0)))
    assert ran(list(bench.measure(uneven, "dgrad", 1)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_winograd_expands_its_tensors(direction: Direction, bench: OneDNNBench) -> None:
    """F(4x4, 3x3) has 36 values for 16: scratchpads are larger than the tensors."""
    wide = layer(in_channels=64, out_channels=64, input=(16, 16), output=(16, 16))
    rows = [each for each in bench.measure(wide, direction, 4) if "winograd" in each.name]
    (row,) = [each for each in rows if each.name == "convolution_winograd"]
    if row.status == "unsupported":
        pytest.skip("this oneDNN has no Winograd convolution for this CPU")
    assert row.algorithm == "winograd_nonfused"
    assert (row.workspace_bytes or 0) > 4 * 64 * 16 * 16 * 4


def test_a_wrong_result_has_no_time(bench: OneDNNBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "TOLERANCE", 1e-12)
    measured = [each for each in bench.measure(layer(), "fprop", 1) if each.status == "wrong"]
    assert measured
    for each in measured:
        assert each.times_ns == ()
        assert (each.reason or "").startswith("the result has error ")
        assert each.error is not None


def test_no_room_for_the_tensors(bench: OneDNNBench) -> None:
    huge = layer(in_channels=1 << 20, out_channels=1, input=(4096, 4096), output=(4096, 4096))
    measured = list(bench.measure(huge, "fprop", 64))
    assert {each.status for each in measured} == {"out_of_memory"}
    assert len(measured) == 3


@pytest.mark.parametrize(
    ("implementation", "algorithm"),
    [
        ("jit:avx512_core", "direct"),
        ("brgconv:avx512_core", "implicit_gemm"),
        ("brgconv_strided:avx2", "implicit_gemm"),
        ("x64:gemm:jit", "gemm"),
        ("gemm:ref", "gemm"),
        ("jit_dw:avx2", "depthwise"),
        ("jit_1x1:avx512_core", "direct"),
        ("jit_wino_4x3:avx512_core", "winograd_nonfused"),
        ("jit_wino_2x3:avx512_core", "winograd"),
        ("ref:any", "direct"),
        ("acl", "unknown"),
    ],
)
def test_implementations_have_an_algorithm(implementation: str, algorithm: str) -> None:
    assert algorithm_of(implementation) == algorithm


def test_the_command(
    bench: OneDNNBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lenet.json"
    words = ["--library", "onednn", "--network", "lenet5", "--batch", "2,1", "--threads", "1"]
    words += ["--repetitions", "3", "--limit", "0.01", "--out", str(out)]
    assert main(words) == 0
    reported = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in reported] == ["batch 1", "batch 2", str(out)]
    study: AlgorithmStudy = read(out)
    assert study.library == "oneDNN"
    assert study.library_version.startswith(f"{MAJOR}.")
    assert study.device.threads == 1
    assert study.ended is None
    assert [each.path for each in study.layers] == ["c1", "c3", "c5"]
    table = by_batch(measurements(study))
    assert set(table["of_layers"]) == {3}
    assert set(table["direction"].cast(str)) == {"fprop", "dgrad", "wgrad"}
    assert [path.name for path in tmp_path.iterdir()] == ["lenet.json"]


def test_a_run_that_has_no_time(bench: OneDNNBench, tmp_path: Path) -> None:
    out = tmp_path / "lenet.json"
    words = ["--library", "onednn", "--network", "lenet5", "--batch", "1,2,4", "--layer", "c3"]
    assert main([*words, "--seconds", "1e-9", "--out", str(out)]) == 0
    study = read(out)
    limit = "time limit of 1e-09 s reached at c3, fprop, batch 1; no batch 2, 4"
    assert study.ended == limit
    assert study.measurements == ()


def test_a_run_that_is_stopped_keeps_what_it_has(
    bench: OneDNNBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = OneDNNBench.measure

    def stopped(
        self: OneDNNBench, shape: Layer, direction: Direction, batch: int
    ) -> Iterator[Measurement]:
        for each in whole(self, shape, direction, batch):
            yield each
            if direction == "dgrad":
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(OneDNNBench, "measure", stopped)
    out = tmp_path / "lenet.json"
    words = ["--library", "onednn", "--network", "lenet5", "--batch", "1", "--limit", "0.01"]
    assert main([*words, "--out", str(out)]) == 130
    study = read(out)
    assert study.ended == "interrupted"
    directions = [each.direction for each in study.measurements]
    assert "fprop" in directions
    assert directions.count("dgrad") == 1


def test_a_library_that_is_none(tmp_path: Path) -> None:
    text = tmp_path / "libdnnl.so"
    text.write_text("no library")
    with pytest.raises(LibraryError, match=r"libdnnl\.so cannot be loaded"):
        OneDNN(text)
