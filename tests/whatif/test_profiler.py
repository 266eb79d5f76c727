"""The step without the profiler, estimated from the recording or as the run timed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import traceana
from tests.support.synthetic import Scenario, write_kineto
from traceana.report.page import Facts
from traceana.settings import LONGEST_DISPATCH_NS
from traceana.whatif.profiler import profiler_cost

pytestmark = pytest.mark.profiler_cost

STEP_NS, STEPS, OPERATORS = 200_000, 4, 10


def host_bound(folder: Path, kernel_ns: int = 2_000, sleep_ns: int = 0) -> Path:
    """Return a recording of steps of ten operators, each with a launch, after a sleep."""
    run = Scenario()
    length, free = STEP_NS + sleep_ns, 0
    for number in range(STEPS):
        at = number * length
        run.step(number, at, at + length)
        for each in range(OPERATORS):
            begin = at + sleep_ns + each * 20_000
            run.operator("aten::relu", begin, begin + 19_000)
            free = max(free, begin + 17_000)
            run.launch(at=begin + 10_000, call=6_000, begins=free, duration=kernel_ns)
            free += kernel_ns
    return write_kineto(run, folder / "run.json")


def unprofiled(path: Path) -> int:
    return int(traceana.open(path).whatif("host x 1").frame["step_ns"][0])


def test_the_host_goes_with_the_factor_of_what_is_recorded(tmp_path: Path) -> None:
    trace = traceana.open(host_bound(tmp_path))
    cost = profiler_cost(trace)
    assert cost is not None
    # Ten operators and launches cannot have cost as much as the factor: 1.25 x (1,600 + 2,500).
    events = 1.25 * OPERATORS * (1_600 + 2_500)
    least = max(cost.factor * STEP_NS, STEP_NS - events)
    assert unprofiled(host_bound(tmp_path)) == pytest.approx(least, rel=0.02)


def test_long_stretches_without_events_were_not_slowed(tmp_path: Path) -> None:
    sleep = 10 * LONGEST_DISPATCH_NS
    (tmp_path / "with").mkdir()
    without = unprofiled(host_bound(tmp_path))
    assert unprofiled(host_bound(tmp_path / "with", sleep_ns=sleep)) == pytest.approx(
        without + sleep, rel=0.01
    )


def test_what_the_gpu_bounds_stays(tmp_path: Path) -> None:
    file = host_bound(tmp_path, kernel_ns=25_000)
    (row,) = traceana.open(file).whatif("host x 1").frame.to_dicts()
    assert row["step_ns"] == pytest.approx(OPERATORS * 25_000, rel=0.05)


def test_a_run_that_timed_its_steps_without_the_profiler_tells_the_cost(tmp_path: Path) -> None:
    host_bound(tmp_path)
    run = {
        **{"version": 1, "status": "complete", "traces": ["run.json"], "argv": ["python", "x.py"]},
        **{"profiler": "torch", "started_at": "2026-11-26T18:19:58+00:00", "exit_status": 0},
    }
    (tmp_path / "traceana-run.json").write_text(json.dumps(run))
    timing = {"version": 1, "without_profiler": {"steps_ns": [180_000] * 5}}
    (tmp_path / "timing.json").write_text(json.dumps(timing))
    trace = traceana.open(tmp_path)
    assert trace.meta.unprofiled_step_ns == 180_000
    assert trace.whatif("host x 1").frame["step_ns"][0] == pytest.approx(180_000, rel=0.01)
    summary = trace.report().summary
    assert summary.step_time is not None
    assert summary.step_time.median_ns == pytest.approx(180_000, rel=0.01)
    assert (summary.recorded_ns, summary.timed_ns) == (STEP_NS, 180_000)
    # Where no cost is known, the timed step stands beside the recorded one.
    other = trace.with_meta(producer="another").report()
    assert (other.summary.recorded_ns, other.summary.timed_ns) == (None, 180_000)
    (head,) = (block for block in other.page().blocks if isinstance(block, Facts))
    assert "timed 180.0 µs without the profiler" in dict(head.rows)["Step time"]


def test_a_diff_as_recorded_has_the_timed_steps_beside_it(tmp_path: Path) -> None:
    recorded = traceana.open(host_bound(tmp_path)).with_meta(producer="another")
    timed = [recorded.with_meta(unprofiled_step_ns=ns) for ns in (100_000.0, 150_000.0)]
    diff = traceana.diff(*timed)
    head, *_ = (block for block in diff.page().blocks if isinstance(block, Facts))
    assert ("", "timed 100.0 → 150.0 µs (+50.0 %) without the profiler") in head.rows
    assert diff.summary.timed_ns == (100_000, 150_000)
    other = traceana.diff(timed[0], recorded)
    assert other.summary.timed_ns is None
    head, *_ = (block for block in other.page().blocks if isinstance(block, Facts))
    assert not any("timed" in text for _, text in head.rows)


def test_no_cost_is_known_of_other_profilers(tmp_path: Path) -> None:
    trace = traceana.open(host_bound(tmp_path)).with_meta(producer="another")
    assert profiler_cost(trace) is None
    (row,) = trace.whatif("host x 1").frame.to_dicts()
    assert row["step_ns"] == row["predicted_ns"] == STEP_NS


def test_no_interval_goes_below_what_the_kernels_take(tmp_path: Path) -> None:
    """The host's own time is known to a fifth, and the kernels remain."""
    trace = traceana.open(host_bound(tmp_path, kernel_ns=9_000))
    (row,) = trace.whatif("host x 0..1").frame.to_dicts()
    kernels = OPERATORS * 9_000
    assert 0.95 * kernels < row["low_ns"] <= kernels <= row["predicted_ns"]
