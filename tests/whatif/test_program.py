"""The clock of the program: a trace without its profiler's cost, and what must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pytest

import traceana.api
from tests.support.opened import opened
from tests.support.synthetic import Scenario, write_kineto
from tests.whatif.test_profiler import OPERATORS, STEP_NS, STEPS, host_bound
from traceana.report.pages.whatif import whatif
from traceana.timeline.steps import select, step_time
from traceana.trace import Trace
from traceana.whatif.profiler import profiler_cost
from traceana.whatif.program import without_profiler

pytestmark = pytest.mark.profiler_cost

GPU: Final = Path(__file__).parents[2] / "fixtures" / "gpu"
RECORDINGS: Final = (
    "alexnet_b128_nhwc_tf32", "resnet18_b8", "resnet18_b32_memory", "vgg11_b32", "alexnet_eager",
)  # fmt: skip


def ends(table: pl.DataFrame) -> pl.Series:
    return table["start"] + table["duration"]


@pytest.fixture(scope="module", params=RECORDINGS)
def both(request: pytest.FixtureRequest) -> tuple[Trace, Trace]:
    """A recording and its program."""
    recorded = opened(GPU / f"{request.param}.json.gz")
    return recorded, without_profiler(recorded)


def test_a_host_that_records_nothing_else_is_faster_by_the_factor(tmp_path: Path) -> None:
    recorded = traceana.open(host_bound(tmp_path))
    cost = profiler_cost(recorded)
    assert cost is not None
    least = max(cost.factor * STEP_NS, STEP_NS - 1.25 * OPERATORS * (1_600 + 2_500))
    program = without_profiler(recorded)
    times = step_time(program)
    assert times is not None
    assert times.median_ns == pytest.approx(least, rel=0.02)
    # Each operator is, and begins, as much earlier.
    ratio = least / STEP_NS
    ops = program.tables.ops
    assert ops["duration"].to_numpy() == pytest.approx(19_000 * ratio, rel=0.05)
    first_of_last = ops["start"][(STEPS - 1) * OPERATORS]
    assert first_of_last == pytest.approx((STEPS - 1) * STEP_NS * ratio, rel=0.02)


def test_what_the_gpu_limits_stays_as_it_is(tmp_path: Path) -> None:
    recorded = traceana.open(host_bound(tmp_path, kernel_ns=25_000))
    times = step_time(without_profiler(recorded))
    assert times is not None
    assert times.median_ns == OPERATORS * 25_000


def test_a_trace_opened_as_recorded_stays_as_it_is(tmp_path: Path) -> None:
    recorded = traceana.open(host_bound(tmp_path), as_recorded=True)
    assert without_profiler(recorded) is recorded
    (row,) = recorded.whatif("host x 1").frame.to_dicts()
    assert row["step_ns"] == STEP_NS
    assert recorded.report().summary.recorded_ns is None


def test_without_steps_nothing_is_known(tmp_path: Path) -> None:
    run = Scenario()
    run.operator("aten::mm", 50, 400)
    run.launch(at=100, begins=300, duration=1_000)
    recorded = traceana.open(write_kineto(run, tmp_path / "run.json"))
    assert without_profiler(recorded) is recorded


def test_it_is_made_once_and_is_its_own_program(both: tuple[Trace, Trace]) -> None:
    recorded, program = both
    assert without_profiler(recorded) is program
    assert without_profiler(program) is program


def test_the_replay_of_a_program_is_as_long_as_its_steps(both: tuple[Trace, Trace]) -> None:
    _, program = both
    (row,) = whatif(program, "host x 1").frame.to_dicts()
    step = step_time(program)
    assert step is not None
    assert row["step_ns"] == row["predicted_ns"] == step.median_ns


def test_device_work_takes_as_long_in_the_same_order(both: tuple[Trace, Trace]) -> None:
    recorded, program = (trace.tables.activities.filter(pl.col("kind") != "sync") for trace in both)
    assert program["duration"].equals(recorded["duration"])
    unchanged = [name for name in recorded.columns if name != "start"]
    assert program.select(unchanged).equals(recorded.select(unchanged))
    for part in program.partition_by("device", "stream"):
        assert part.sort("start", maintain_order=True)["start"].equals(part["start"].sort())
    for before, after in zip(
        recorded.partition_by("device", "stream"),
        program.partition_by("device", "stream"),
        strict=True,
    ):
        order = np.argsort(before["start"].to_numpy(), kind="stable")
        starts = after["start"].to_numpy()[order]
        assert (np.diff(starts) >= 0).all()


@pytest.mark.parametrize("name", ["ops", "calls", "ranges"])
def test_the_events_of_a_thread_keep_their_order_and_nesting(
    both: tuple[Trace, Trace], name: str
) -> None:
    recorded, program = (getattr(trace.tables, name) for trace in both)
    assert (program["duration"] >= 0).all()
    times = pl.DataFrame(
        {
            "thread": recorded["thread"],
            "start": recorded["start"],
            "end": ends(recorded),
            "new_start": program["start"],
            "new_end": ends(program),
        }
    ).drop_nulls("thread")
    for old, new in (("start", "new_start"), ("end", "new_end")):
        rises = times.sort("thread", old, new).select(
            (pl.col(new) - pl.col(new).shift()).over("thread")
        )
        assert (rises.to_series().drop_nulls() >= 0).all()
    if "parent" in program.columns:
        nested = program.drop_nulls("parent")
        around = program[nested["parent"]]
        assert (around["start"] <= nested["start"]).all()
        assert (ends(around) >= ends(nested)).all()


def test_work_begins_after_the_call_that_launches_it(both: tuple[Trace, Trace]) -> None:
    recorded, program = both
    launched = recorded.tables.activities.with_row_index("row").drop_nulls("call")
    of_recording, of_program = (
        trace.tables.activities["start"].gather(launched["row"])
        - trace.tables.calls["start"].gather(launched["call"])
        for trace in (recorded, program)
    )
    assert (of_program.filter(of_recording >= 0) >= 0).all()


def test_a_selection_has_the_times_of_the_whole(both: tuple[Trace, Trace]) -> None:
    recorded, program = both
    numbers = recorded.tables.steps["number"].to_list()[1:3]
    selected = without_profiler(select(recorded, steps=numbers))
    assert selected.tables.activities.equals(select(program, steps=numbers).tables.activities)
    assert selected.tables.steps.equals(select(program, steps=numbers).tables.steps)


def test_memory_and_flows_move_with_their_threads() -> None:
    recorded = opened(GPU / "resnet18_b32_memory.json.gz")
    program = without_profiler(recorded)
    assert program is not recorded
    before, after = (trace.tables.memory.sort("time")["allocated"] for trace in (recorded, program))
    assert after.equals(before)
    within = program.tables.memory["time"]
    last = max(int(ends(program.tables.ops).max()), int(ends(program.tables.activities).max()))  # type: ignore[arg-type]
    assert within.max() <= last  # type: ignore[operator]


def test_a_bundle_opened_as_recorded_has_its_own_recommendations(tmp_path: Path) -> None:
    """Those that it keeps are of the program."""
    file = GPU / "resnet18_b8.json.gz"
    bundle = traceana.open(file).save(tmp_path / "bundle")
    for as_recorded in (False, True):
        kept, found = (
            traceana.open(path, as_recorded=as_recorded)
            .advise()
            .frame.drop("evidence", strict=False)
            for path in (bundle, file)
        )
        assert kept.equals(found)


def test_the_work_of_users_has_the_times_of_the_program(both: tuple[Trace, Trace]) -> None:
    recorded, program = both
    assert recorded.work["start"].equals(program.tables.activities["start"])
    as_recorded = recorded.with_meta(as_recorded=True)
    assert as_recorded.work["start"].equals(recorded.tables.activities["start"])


def test_samples_stay_at_the_work_of_their_device(both: tuple[Trace, Trace]) -> None:
    recorded, _ = both
    kernels = recorded.tables.activities.filter(pl.col("kind") == "kernel")
    sampled = kernels.select("start", "duration", "device", "rank").with_columns(
        name=pl.lit("SM Active"), value=pl.lit(1.0)
    )
    program = without_profiler(recorded.with_tables(samples=sampled))
    moved = program.tables.activities.filter(pl.col("kind") == "kernel")
    # Streams that move against each other have one counter.
    same = program.tables.samples["start"] == moved["start"]
    assert same.mean() > 0.9  # type: ignore[operator]
    assert program.tables.samples["start"].to_list() != sampled["start"].to_list()
