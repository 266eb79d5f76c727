"""Device work that is in the file and not read, and work without the facts of its kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.kineto import writing
from tests.support.command_line import Run
from traceana.readers import read
from traceana.readers.source import silent


def of_category(category: str, ts: int, dur: float, **args: object) -> writing.Event:
    event = writing.kernel("fc-dtype_Float", ts, dur)
    return {**event, "cat": category, "args": args}


@pytest.mark.parametrize(
    ("category", "args", "is_work"),
    [
        ("mtia_ccp_events", {"stream": 108, "correlation": 1}, True),
        ("cuda_profiler_range", {"smsp__inst_executed.sum": 5}, True),
        ("Other_Work", {"stream": 3}, True),
        ("Trace", {"stream": 3}, False),
        ("cpu_marks", {"note": "a"}, False),
    ],
)
def test_unread_device_work_is_a_problem_with_its_time(
    tmp_path: Path, category: str, args: dict[str, object], *, is_work: bool
) -> None:
    events = [
        writing.op("aten::mm", 1_000, 30),
        *(of_category(category, 1_020 + 500 * n, 400.5, **args) for n in range(3)),
    ]
    trace = read(writing.write(tmp_path / "a.json", events), silent)
    assert trace.meta.events == 4
    unread = trace.tables.ledger.filter(reason="unread_work")
    found = unread.select("severity", "kept", "count", "time_ns", "detail").rows()
    expected = [("problem", False, 3, 1_201_500, category.lower())]
    assert found == (expected if is_work else [])
    assert trace.tables.ledger.filter(kept=False)["count"].sum() == 3


def test_a_trace_whose_devices_are_not_read_is_none_of_the_cpu(tmp_path: Path, run: Run) -> None:
    events = [writing.op("aten::mm", 1_000 * n, 30) for n in range(1, 5)]
    events += [of_category("mtia_ccp_events", 1_000 * n, 400, stream=1) for n in range(1, 5)]
    path = writing.write(tmp_path / "a.json", events)
    shown = run("report", path).stdout
    assert "PyTorch · Kineto" in shown
    assert "4 events of category mtia_ccp_events (1.60 ms): in the file and not read" in shown
    assert "host bound" not in shown
    assert "CPU utilization" not in shown


def test_unread_work_beside_kernels_is_a_line_on_the_screen(tmp_path: Path, run: Run) -> None:
    events = [writing.kernel("sgemm", 1_000, 30), of_category("cuda_new", 2_000, 400, stream=1)]
    shown = run("report", writing.write(tmp_path / "a.json", events)).stdout
    assert "Not read" in shown
    assert "1 event of category cuda_new (0.40 ms)" in shown


def test_begin_and_end_events_are_named(tmp_path: Path, run: Run) -> None:
    events = [
        {"ph": phase, "cat": "GPU", "name": "KernelCh", "id": n, "pid": 7, "tid": 1, "ts": ts + n}
        for n in range(4)
        for phase, ts in (("b", 1_000), ("e", 1_400))
    ]
    shown = run("report", writing.write(tmp_path / "a.json", events))
    assert "only 4 pairs of begin and end events, not read" in shown.stderr


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("Memcpy", {"bytes": 512}, "no_direction"),
        ("Memcpy HtoD (Pinned -> Device)", {}, "no_size"),
        ("Memcpy HtoD (Pinned -> Device)", {"bytes": 512}, None),
    ],
)
def test_a_copy_without_its_facts_is_a_problem(
    tmp_path: Path, run: Run, name: str, args: dict[str, object], reason: str | None
) -> None:
    copy = {**writing.kernel(name, 1_000, 30, **args), "cat": "gpu_memcpy"}
    path = writing.write(tmp_path / "a.json", [writing.kernel("sgemm", 2_000, 30), copy])
    ledger = read(path, silent).tables.ledger.filter(severity="problem")
    expected = [] if reason is None else [(reason, 1, 30_000)]
    assert ledger.select("reason", "count", "time_ns").rows() == expected
    shown = run("report", path).stdout
    assert ("1 (50.0 % of GPU time): copies" in shown) == bool(expected)
    assert run("report", path, "--strict").exit_code == (17 if expected else 0)
