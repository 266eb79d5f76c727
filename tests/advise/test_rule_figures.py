"""The figures of single rules, computed without the other rules."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advise.building import Run, run_of
from traceana.advise.convolution_algorithms import fast_convolution
from traceana.advise.device_utilization import zeroing
from traceana.advise.figures import Figures
from traceana.advise.rule import Found


def faster(**convolution: Any) -> Found | None:
    """Return what the rule finds of one convolution by a GEMM."""
    run = Run()
    run.next_step()
    run.convolution("implicit_gemm", **convolution)
    return fast_convolution(Figures(run.build()))


@pytest.mark.parametrize("other", [{"stride": 2}, {"filters": (64, 1)}, {"tensor_core": True}])
def test_winograd_and_fft_are_for_fp32_convolutions_of_stride_1(other: dict[str, Any]) -> None:
    assert faster() is not None
    assert faster(**other) is None


def test_an_fp32_convolution_of_unrecorded_types_moves_floats() -> None:
    known, unknown = faster(), faster(types=None)
    assert known is not None
    assert unknown is not None
    assert unknown.saving_ns == known.saving_ns


def test_fills_are_a_share_of_the_gpu_time() -> None:
    def put(run: Run) -> None:
        run.name("fill", category="elementwise", function="fill")
        run.put("fill", 2_000_000)

    found = zeroing(Figures(run_of(put)))
    assert found is not None
    # 2 of 10 ms in each of four steps.
    assert (found.saving_ns, found.figures["share"]) == (8_000_000, 0.2)
