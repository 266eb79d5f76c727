"""A printed summary has the advice that numbers, sizes and times of copies allow."""

from __future__ import annotations

from pathlib import Path

import pytest

import traceana
from tests.support.command_line import Run
from traceana.errors import ExitCode

PRINTED = """==7== NVPROF is profiling process 7, command: ./train
==7== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities: {kernel_share}% {kernel}  1000  1.0000us  1.0000us  1.0000us  volta_sgemm_nn
  {copy_share}%  {copy}  {copies}  {mean}  1.0000us  9.0000us  [CUDA memcpy {direction}]
"""


def printed(
    folder: Path, kernel_ms: int, copy_ms: int, copies: int, direction: str = "HtoD"
) -> Path:
    """Write a summary of nvprof."""
    file = folder / "summary.txt"
    whole = kernel_ms + copy_ms
    file.write_text(
        PRINTED.format(
            kernel=f"{kernel_ms}.000ms",
            copy=f"{copy_ms}.000ms",
            copies=copies,
            mean=f"{1000 * copy_ms / copies:.4f}us",
            kernel_share=f"{100 * kernel_ms / whole:.2f}",
            copy_share=f"{100 * copy_ms / whole:.2f}",
            direction=direction,
        )
    )
    return file


def findings(file: Path) -> list[tuple[str, str, int]]:
    frame = traceana.open(file).advise().frame
    return frame.select("rule", "kind", "saving_ns").rows()


def test_copies_too_short_for_many_bytes_are_small(tmp_path: Path) -> None:
    """107,912 copies of 1.9 us: PCIe 3.0 moves at most 30 kB in that time."""
    file = printed(tmp_path, 800, 205, 107_912)
    assert findings(file) == [("small_copies", "upper bound", 205_000_000)]
    trace = traceana.open(file)
    assert "107,912 copies of 1.90 µs on average; HtoD" in repr(trace.report())
    assert trace.advise().frame["saving_share"].item() == pytest.approx(205 / 1005)


def test_long_copies_overlap_at_most_with_the_kernels(tmp_path: Path) -> None:
    assert findings(printed(tmp_path, 30, 70, 10)) == [
        ("exposed_copies", "upper bound", 30_000_000)
    ]
    assert findings(printed(tmp_path, 70, 30, 10)) == [
        ("exposed_copies", "upper bound", 30_000_000)
    ]


def test_few_and_short_copies_have_no_finding(tmp_path: Path, run: Run) -> None:
    file = printed(tmp_path, 9_990, 10, 10)
    assert findings(file) == []
    assert "Recommendations" not in run("report", file).stdout


def test_slow_copies_by_printed_sizes(tmp_path: Path) -> None:
    file = tmp_path / "stats.txt"
    file.write_text(
        """ ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

 Time (%)  Total Time (ns)  Count   Avg (ns)   Min (ns)   Max (ns)      Operation
 --------  ---------------  -----  ----------  ---------  ---------  ------------------
    100.0      100,000,000     10  10,000,000  9,000,000  9,900,000  [CUDA memcpy DtoH]

 ** CUDA GPU MemOps Summary (by Size) (cuda_gpu_mem_size_sum):

 Total (MB)  Count  Avg (MB)  Med (MB)  Min (MB)  Max (MB)  StdDev (MB)      Operation
 ----------  -----  --------  --------  --------  --------  -----------  ------------------
    157.500     10    15.750    15.750    15.750    15.750        0.000  [CUDA memcpy DtoH]
"""
    )
    ((rule, kind, saving),) = findings(file)
    assert (rule, kind) == ("slow_copies", "upper bound")
    # 1.575 GB/s is a tenth of the link's peak.
    assert saving == pytest.approx(90_000_000, rel=1e-6)


def test_the_command_shows_it_and_gates_need_a_timeline(tmp_path: Path, run: Run) -> None:
    file = printed(tmp_path, 800, 205, 107_912)
    shown = run("advise", file)
    assert shown.exit_code == 0
    assert "small copies  ≤ 205.0 ms (20.4 % of GPU time)" in shown.stdout
    assert "record a timeline for the rest" in shown.stdout
    refused = run("advise", file, "--fail-on", "small_copies")
    assert refused.exit_code == ExitCode.EMPTY_SELECTION
    assert "summary without a timeline, which advise needs" in refused.stderr


def test_both_directions_are_named_with_the_mean_of_all(tmp_path: Path) -> None:
    file = printed(tmp_path, 800, 100, 50_000)
    file.write_text(
        file.read_text() + "  9.00%  105.000ms  60000  1.7500us  1.0us  9.0us  [CUDA memcpy DtoH]\n"
    )
    shown = repr(traceana.open(file).report())
    assert "110,000 copies of 1.86 µs on average; DtoH and HtoD" in shown
