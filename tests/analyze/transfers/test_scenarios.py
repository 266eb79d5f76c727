"""Runs whose every figure is known, by both profilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.synthetic import GPU, Scenario, both, nsys, overlapping
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana.analyze.transfers import transfers

PCIE4 = 31_507_692_307
Row = dict[str, Any]


def figures(trace: Trace, *columns: str, by: Any = "direction") -> list[tuple[Any, ...]]:
    return transfers(trace, by).frame.select(columns).rows()


@pytest.fixture
def each(tmp_path: Path) -> Callable[[Scenario], list[Trace]]:
    return lambda scenario: both(scenario, tmp_path)


Both = Callable[[Scenario], list[Trace]]


def test_a_pageable_copy_that_nothing_hides(each: Both) -> None:
    run = Scenario()
    run.launch(at=0, begins=200, duration=1_000)
    run.copy("HtoD", 64_000, at=1_000, begins=1_500, duration=4_000, memory="pageable")
    for trace in each(run):
        (row,) = transfers(trace).frame.to_dicts()
        assert row == {
            "direction": "HtoD",
            "host_memory": "pageable",
            "count": 1,
            "bytes": 64_000,
            "mean_bytes": 64_000,
            "time_ns": 4_000,
            "share": 1.0,
            "exposed_ns": 4_000,
            "bytes_per_s": 16e9,
            "median_bytes_per_s": 16e9,
            "link": "PCIe 4 x16",
            "peak_bytes_per_s": PCIE4,
            "peak_share": 16e9 / PCIE4,
            "blocking": "possibly",
            "synchronous": 0,
            "staged": 1,
            "asynchronous": 0,
            "step_count": None,
            "step_bytes": None,
            "step_ns": None,
            "step_share": None,
            "small": False,
        }


@pytest.mark.parametrize("percent", [0, 37, 100])
def test_a_kernel_hides_a_part_of_a_copy(each: Both, percent: int) -> None:
    run = Scenario()
    kernel = run.launch(at=0, begins=200, duration=100_000)
    begins = overlapping(kernel, 10_000, percent)
    run.copy("HtoD", 1 << 20, at=300, begins=begins, duration=10_000, stream=20)
    # The same moment on another stream hides no more of it.
    if percent:
        run.launch(21, at=400, begins=begins, duration=percent)
    for trace in each(run):
        assert figures(trace, "time_ns", "exposed_ns") == [(10_000, 100 * (100 - percent))]
        assert transfers(trace).totals["exposed_ns"] == 100 * (100 - percent)


def test_copies_that_overlap_count_once_in_the_total(each: Both) -> None:
    run = Scenario()
    run.copy("HtoD", 100, at=0, begins=1_000, duration=1_000, stream=1)
    run.copy("HtoD", 100, at=0, begins=1_500, duration=1_000, stream=2)
    run.copy("DtoH", 100, at=0, begins=2_200, duration=1_000, stream=3)
    run.launch(4, at=0, begins=3_000, duration=5_000)
    for trace in each(run):
        result = transfers(trace)
        assert result.frame.select("direction", "time_ns", "exposed_ns").rows() == [
            ("HtoD", 2_000, 1_500),
            ("DtoH", 1_000, 800),
        ]
        assert result.totals == {
            "count": 3,
            "bytes": 300,
            "time_ns": 3_000,
            "exposed_ns": 2_000,
        }


def test_a_kernel_of_another_device_hides_nothing(each: Both) -> None:
    run = Scenario([GPU(), GPU()])
    run.copy("HtoD", 10, at=0, begins=100, duration=50, device=1)
    run.launch(at=0, begins=100, duration=50, device=0)
    for trace in each(run):
        assert figures(trace, "exposed_ns") == [(50,)]
        assert figures(trace.select(devices=[1]), "exposed_ns") == [(50,)]


def stepped() -> Scenario:
    """Return three steps of 10 µs: a loader's copy of 1 µs, a loss read back while kernels run.

    In step 2 a kernel of step 1 still runs beside the copy, for 400 ns of it.
    """
    run = Scenario()
    for number in range(3):
        at = number * 10_000
        run.step(number, at, at + 10_000)
        run.operator("aten::to", at + 50, at + 300)
        run.copy("HtoD", 30_000, at=at + 100, begins=at + 500, duration=1_000, memory="pinned")
        run.range("evaluate", at + 350, at + 600)
        run.launch(
            at=at + 400, begins=at + 2_000, duration=8_900 if number == 1 else 1_000, stream=8
        )
        run.operator("aten::item", at + 600, at + 3_000)
        run.copy(
            "DtoH", 4, at=at + 700, begins=at + 2_500, duration=20, memory="pageable",
            synchronous=True, stream=9,
        )  # fmt: skip
    return run


def test_by_step(each: Both) -> None:
    for trace in each(stepped()):
        columns = ("step", "direction", "count", "bytes", "time_ns", "exposed_ns", "step_share")
        assert figures(trace, *columns, by="step") == [
            (0, "DtoH", 1, 4, 20, 0, 20 / 10_000),
            (0, "HtoD", 1, 30_000, 1_000, 1_000, 0.1),
            # Step 1 ends with its kernel, 900 ns after its marker.
            (1, "DtoH", 1, 4, 20, 0, 20 / 10_900),
            (1, "HtoD", 1, 30_000, 1_000, 1_000, 1_000 / 10_900),
            (2, "DtoH", 1, 4, 20, 0, 20 / 9_100),
            (2, "HtoD", 1, 30_000, 1_000, 600, 600 / 9_100),
        ]


def test_by_step_without_steps_there_are_no_rows() -> None:
    builder = TraceBuilder()
    builder.copy("HtoD", 0, 1_000, bytes=8)
    found = transfers(builder.build(), "step")
    assert found.frame.is_empty()
    assert found.notes == ("no steps: the trace has no step markers",)


def test_kernels_that_copy_have_a_note() -> None:
    builder = TraceBuilder()
    builder.name("__amd_rocclr_copyBuffer.kd", category="memcpy")
    builder.kernel("__amd_rocclr_copyBuffer.kd", 0, 1_500_000)
    note = "copies by kernels: 100.0 % of GPU time, counted as kernels and not in this table"
    assert transfers(builder.build()).notes == ("no copies with a record of their own", note)


def test_per_step(each: Both) -> None:
    columns = ("direction", "step_count", "step_bytes", "step_ns", "step_share")
    for trace in each(stepped()):
        assert figures(trace, *columns) == [
            ("HtoD", 1.0, 30_000, 1_000, 0.1),
            ("DtoH", 1.0, 4, 20, pytest.approx(0.002)),
        ]


def test_the_steps_that_are_not_selected_still_hide_copies(each: Both) -> None:
    for trace in each(stepped()):
        alone = figures(trace.select(steps=[2]), "direction", "exposed_ns")
        assert sorted(alone) == [("DtoH", 0), ("HtoD", 600)]


def test_who_asked(each: Both) -> None:
    for trace in each(stepped()):
        assert figures(trace, "operator", "direction", "blocking", by="operator") == [
            ("aten::to", "HtoD", "no"),
            ("aten::item", "DtoH", "yes"),
        ]
        assert figures(trace, "call", "count", by="call") == [
            ("cudaMemcpyAsync", 3),
            ("cudaMemcpy", 3),
        ]


def test_the_innermost_range_asked(tmp_path: Path) -> None:
    run = Scenario()
    run.range("outer", 0, 1_000)
    run.range("load", 100, 500)
    run.copy("HtoD", 8, at=200, begins=300, duration=20)
    run.copy("HtoD", 8, at=600, begins=700, duration=10)
    run.copy("HtoD", 8, at=1_200, begins=1_400, duration=5)
    for trace in both(run, tmp_path):
        result = transfers(trace, "range")
        assert result.frame.select("range", "time_ns").rows() == [
            ("load", 20),
            ("outer", 10),
            (None, 5),
        ]
        assert "no range recorded: 1 of 3 copies" in result.notes


def test_sizes_are_powers_of_two(each: Both) -> None:
    sizes = [0, 1, 4_095, 4_096, 8_191, 8_192]
    run = Scenario()
    for number, size in enumerate(sizes):
        run.copy("HtoD", size, at=0, begins=1_000 * (number + 1), duration=100)
    for trace in each(run):
        assert figures(trace, "size", "count", "bytes", "bytes_per_s", by="size") == [
            (0, 1, 0, 0.0),
            (1, 1, 1, 1e7),
            (2_048, 1, 4_095, 40.95e9),
            (4_096, 2, 12_287, 12_287 / 200 * 1e9),
            (8_192, 1, 8_192, 81.92e9),
        ]


def test_many_small_copies_are_marked(each: Both) -> None:
    run = Scenario()
    for number in range(100):
        run.copy("HtoD", 1_000, at=0, begins=1_000 * (number + 1), duration=500, memory="pageable")
    for trace in each(run):
        assert figures(trace, "count", "mean_bytes", "small") == [(100, 1_000, True)]


def test_migrations_of_unified_memory_are_no_copies_of_the_program(tmp_path: Path) -> None:
    run = Scenario()
    run.copy("HtoD", 100, at=0, begins=100, duration=10, memory="managed")
    run.migrate("HtoD", 65_536, begins=200, duration=30)
    run.migrate("DtoH", 4_096, begins=300, duration=20)
    rows = figures(nsys(run, tmp_path), "direction", "host_memory", "count", "bytes", "blocking")
    assert rows == [
        ("unified_HtoD", "managed", 1, 65_536, None),
        ("unified_DtoH", "managed", 1, 4_096, None),
        ("HtoD", "managed", 1, 100, "no"),
    ]


Piece = tuple[str, int, int, int]
"""A kind of work, its stream, how long the stream pauses before it, and how long it lasts."""
pieces = st.tuples(
    st.sampled_from(["kernel", "HtoD", "DtoH"]),
    st.integers(0, 2),
    st.integers(0, 30),
    st.integers(1, 30),
)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.lists(pieces, min_size=1, max_size=15))
def test_any_run_has_the_exposed_times_that_a_sweep_counts(work: list[Piece]) -> None:
    run = Scenario()
    ends: dict[int, int] = dict.fromkeys(range(3), 1_000)
    moments: dict[str, set[int]] = {"kernel": set(), "HtoD": set(), "DtoH": set()}
    for kind, stream, pause, duration in work:
        begins = ends[stream] + pause
        ends[stream] = begins + duration
        moments[kind] |= set(range(begins, begins + duration))
        if kind == "kernel":
            run.launch(stream, at=0, begins=begins, duration=duration)
        else:
            direction: Any = kind
            run.copy(direction, 8, at=0, begins=begins, duration=duration, stream=stream)
    copied = moments["HtoD"] | moments["DtoH"]
    with TemporaryDirectory() as folder:
        for trace in both(run, Path(folder)):
            found = dict(figures(trace, "direction", "exposed_ns"))
            for kind in found:
                assert found[kind] == len(moments[kind] - moments["kernel"])
            assert transfers(trace).totals["exposed_ns"] == len(copied - moments["kernel"])


def test_calls_of_a_trace_without_the_gpu_are_no_kernels_that_copy() -> None:
    builder = TraceBuilder()
    builder.name("cuMemcpyHtoDAsync_v2", category="memcpy")
    builder.operator("cuMemcpyHtoDAsync_v2", 0, 1_500_000)
    assert transfers(builder.build()).notes == ("no copies in the trace or the selection",)
