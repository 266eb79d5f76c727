"""The binding of cuDNN, against a stand-in on the host that rejects wrong arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch")

import torch

from tests.workloads.algorithms.shapes import LAYERS, layer
from traceana.flops.timed_algorithms import read
from workloads.algorithms.cudnn import CuDNNBench
from workloads.algorithms.cudnn_api import FUNCTIONS, CuDNN
from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.run import DeviceLostError, Plan, Run
from workloads.algorithms.study import Direction, Layer, Measurement
from workloads.algorithms.timing import Timing
from workloads.files import write_by_line

pytestmark = pytest.mark.frameworks

Load = Callable[[], ctypes.CDLL]
DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")
TIMING = Timing(warm_up=1, repetitions=4, limit_ns=10**9)


class Host:
    """PyTorch's CPU tensors instead of a GPU's, and little memory for workspaces."""

    name = "host"
    memory_bytes = 1 << 20
    stream = 0

    def __init__(self) -> None:
        self.versions = {"cuda": "none"}

    def random(self, shape: tuple[int, ...], layout: str) -> Any:
        order = torch.channels_last if layout == "nhwc" else torch.contiguous_format
        return torch.empty(shape, memory_format=order).normal_()

    def unset(self, shape: tuple[int, ...], layout: str) -> Any:
        return self.random(shape, layout).fill_(float("nan"))

    def workspace(self, size: int) -> Any:
        if size > self.memory_bytes:
            raise MemoryError
        return torch.empty(size, dtype=torch.uint8)

    def wait(self) -> None:
        pass

    def counted(self, name: str, run: Callable[[], None]) -> None:
        run()
        self.wait()

    def times(self, timing: Timing, run: Callable[[], None]) -> tuple[int, ...]:
        return timing.of(run)


def bench(
    load: Load,
    precision: Literal["fp32", "tf32"] = "fp32",
    layout: Literal["nchw", "nhwc"] = "nchw",
    host: Host | None = None,
) -> CuDNNBench:
    return CuDNNBench(CuDNN(load()), host or Host(), TIMING, precision, layout)


def rows(measured: list[Measurement]) -> dict[str, Measurement]:
    return {each.algorithm: each for each in measured}


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", LAYERS, ids=lambda each: each.path)
def test_results_are_right_in_every_direction(
    shape: Layer, direction: Direction, layout: Literal["nchw", "nhwc"], fake_cudnn: Load
) -> None:
    found = rows(list(bench(fake_cudnn, layout=layout).measure(shape, direction, 3)))
    first, second = FUNCTIONS[direction].algorithms[:2]
    for name in (first, second):
        assert found[name].status == "ok", found[name]
        assert (found[name].error or 0) < 1e-5
        assert len(found[name].times_ns) == 4
    assert found[second].workspace_bytes == 4096
    assert found[first].workspace_bytes == 0


def test_every_status_is_recorded(fake_cudnn: Load) -> None:
    measured = list(bench(fake_cudnn).measure(layer(), "fprop", 2))
    found = rows(measured)
    assert len(found) == len(measured) == 8
    assert {name: each.status for name, each in found.items()} == {
        "implicit_gemm": "ok",
        "implicit_precomp_gemm": "ok",
        "gemm": "ok",
        "direct": "unsupported",
        "fft": "out_of_memory",
        "fft_tiling": "wrong",
        "winograd": "wrong",
        "winograd_nonfused": "unsupported",
    }
    assert found["implicit_gemm"].name == "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM"
    assert found["implicit_gemm"].deterministic is False
    assert found["implicit_precomp_gemm"].deterministic is True
    assert found["fft"].deterministic is None
    assert found["fft"].search_ns is None
    assert found["implicit_gemm"].search_ns == 250_000
    assert found["gemm"].search_ns is None
    assert found["fft"].workspace_bytes == 1 << 50
    assert found["fft"].reason == "the workspace does not fit into the GPU's memory"
    assert found["direct"].reason == "FAKE_NOT_SUPPORTED"
    assert found["winograd"].reason == "the result is not finite"
    assert (found["fft_tiling"].error or 0) > 1e-3
    assert found["winograd_nonfused"].reason == "cudnnConvolutionForward: FAKE_NOT_SUPPORTED"


@pytest.mark.parametrize(
    ("version", "reported", "math_type"),
    [
        ("92000", "9.20.0", "FMA_MATH"),
        ("8907", "8.9.7", "FMA_MATH"),
        ("7605", "7.6.5", "DEFAULT_MATH"),
    ],
)
def test_versions_differ_in_their_numbers(
    version: str, reported: str, math_type: str, fake_cudnn: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDNN_VERSION", version)
    made = bench(fake_cudnn)
    assert made.version == reported
    found = rows(list(made.measure(layer(), "wgrad", 1)))
    assert [each.status for each in found.values()].count("ok") == 2
    assert found["winograd"].status == "unsupported"
    assert found["fft"].status == "out_of_memory"
    assert {each.math_type for each in found.values()} == {math_type}


def test_tf32_is_what_the_default_allows(fake_cudnn: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(fake_cudnn, "tf32")
    assert made.tolerance == 5e-2
    assert {each.math_type for each in made.measure(layer(), "dgrad", 1)} == {"DEFAULT_MATH"}
    monkeypatch.setenv("FAKE_CUDNN_VERSION", "7605")
    with pytest.raises(LibraryError, match="does not support TF32"):
        bench(fake_cudnn, "tf32")


def test_a_fast_algorithm_of_another_math_type_is_no_fp32(fake_cudnn: Load) -> None:
    """The search also tries DEFAULT_MATH: each algorithm is there once, with FMA_MATH."""
    measured = list(bench(fake_cudnn).measure(layer(), "dgrad", 1))
    assert len(measured) == len(FUNCTIONS["dgrad"].algorithms)
    assert {each.math_type for each in measured} == {"FMA_MATH"}


def test_uneven_padding_is_refused(fake_cudnn: Load) -> None:
    uneven = layer(padding=((0, 1), (0, 1)), kernel=(2, 2))
    measured = list(bench(fake_cudnn).measure(uneven, "wgrad", 1))
    assert {each.status for each in measured} == {"unsupported"}
    assert {each.reason for each in measured} == {"cuDNN supports symmetric padding only"}
    assert [each.algorithm for each in measured] == list(FUNCTIONS["wgrad"].algorithms)


def test_tensors_that_do_not_fit(fake_cudnn: Load) -> None:
    class Full(Host):
        def unset(self, shape: tuple[int, ...], layout: str) -> Any:
            raise MemoryError

    measured = list(bench(fake_cudnn, host=Full()).measure(layer(), "fprop", 1))
    assert {each.status for each in measured} == {"out_of_memory"}
    assert len(measured) == 8


def test_a_lost_device_ends_the_run_and_keeps_what_there_is(
    fake_cudnn: Load, tmp_path: Path
) -> None:
    class Dying(Host):
        waits = 0  # of them the second comes after the second algorithm

        def wait(self) -> None:
            self.waits += 1
            if self.waits == 2:
                raise DeviceLostError("an illegal memory access was encountered")

    plan = Plan("net", (layer("a"), layer("b")), DIRECTIONS, (1, 2), warm_up=1)
    run = Run(plan, bench(fake_cudnn, host=Dying()))
    run.measure(print)
    out = tmp_path / "a.json"
    write_by_line(out, run.study(), "layers", "measurements")
    study = read(out)
    assert study.ended == "a, fprop, batch 1: an illegal memory access was encountered"
    assert study.measurements[-1].status == "failed"
    assert study.measurements[-1].reason == "an illegal memory access was encountered"
    assert study.versions["cuda"] == "none"
    assert study.device.memory_bytes == 1 << 20
