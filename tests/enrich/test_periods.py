"""Steps that nothing marks: the period of the device work."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support.manifest import TRACES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.enrich import attribute
from traceana.enrich.periods import periods

BLOCK = ["gemm", "relu_forward", "norm_forward", "add"]
BACK = ["norm_backward", "gemm", "gemm", "relu_backward"]
STEP = ["input", *BLOCK * 6, "loss", *BACK * 6, "update"]


def run(names: list[str], pauses: dict[str, int] | None = None) -> TraceBuilder:
    """Launch kernels one after the other, each 10 ns after a pause (0 by default)."""
    b = TraceBuilder()
    time = 0
    for i, name in enumerate(names):
        time += 10 + (pauses or {}).get(name, 0)
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=time, duration=2,
              correlation=i)  # fmt: skip
        b.kernel(name, time + 5, 5, correlation=i, process=9, stream=7)
    return b


def starts(b: TraceBuilder) -> list[tuple[int, int]]:
    """Return the steps' starts and durations."""
    trace = attribute(b.build())
    return list(trace.tables.steps.select("start", "duration").iter_rows())


def test_a_step_is_the_whole_iteration_not_a_block_and_begins_behind_the_pause() -> None:
    length = len(STEP) * 10 + 1000
    found = starts(run(STEP * 5, {"input": 1000}))
    assert found[:4] == [(1010 + i * length, length) for i in range(4)]
    assert len(found) == 5


def test_what_stands_before_and_behind_is_in_no_step() -> None:
    b = run([*"abcdefghij", *STEP * 4, *"klmnop"], {"input": 1000})
    trace = attribute(b.build())
    steps = trace.tables.activities["step"].to_list()
    assert trace.tables.steps["source"].unique().to_list() == ["period"]
    assert steps[:10] == [None] * 10
    assert steps[-6:] == [None] * 6
    assert steps[10 : 10 + len(STEP)] == [0] * len(STEP)


def test_like_blocks_of_one_pass_are_no_steps() -> None:
    assert starts(run(["input", *BLOCK * 40])) == []
    assert starts(run(["copy", "x", "y"] * 40)) == []
    assert starts(run(STEP * 2)) == []  # seen twice may be chance


def test_marked_steps_go_first() -> None:
    b = run(STEP * 5)
    b.row("ranges", text="ProfilerStep#3", kind="step", process=9, thread=1, start=0, duration=50)
    assert attribute(b.build()).tables.steps["number"].to_list() == [3]


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize(
    "name", ["cnn_train_ns_resolution_v100", "diff_control_a100", "resnet50_train_v100_workers0"]
)
def test_the_period_agrees_with_the_steps_that_the_profiler_marked(name: str) -> None:
    trace = opened(TRACES / "kineto" / f"{name}.json.gz")
    found = periods(trace.tables.activities, trace.tables.names, trace.tables.calls)
    assert 0 <= trace.tables.steps.height - found.height <= 1
    marked, period = trace.tables.steps["duration"].median(), found["duration"].median()
    assert isinstance(marked, float)
    assert isinstance(period, float)
    assert period == pytest.approx(marked, rel=0.03)


def test_processes_have_periods_of_their_own() -> None:
    b = run(STEP * 4)
    rows = b.build()
    other = rows.tables.activities.with_columns(pl.lit(10, pl.Int64).alias("process"))
    both = rows.with_tables(activities=pl.concat([rows.tables.activities, other]))
    found = periods(both.tables.activities, both.tables.names, both.tables.calls)
    assert found["process"].to_list() == [9] * 4 + [10] * 4
