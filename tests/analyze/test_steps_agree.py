"""Every command counts the same steps: in every available trace, steps x mean per step = total."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path

import polars as pl
import pytest

from tests.support import opened as traces
from tests.support.manifest import traces_at_hand
from traceana.advise.figures import Figures
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.analyze.transfers import transfers
from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import summary_table, work
from traceana.report.pages.report import Overview
from traceana.result import arrange
from traceana.timeline.critical import critical
from traceana.timeline.steps import measured_steps, select, span_of, steps
from traceana.trace import Trace

pytestmark = pytest.mark.slow

FILES = traces_at_hand()
_WORK = pl.col("kind") != "sync"


class Opened:
    """A trace and results shared by several checks, each computed once."""

    def __init__(self, file: Path) -> None:
        self.trace = traces.opened(file)
        self.rows = measured_steps(self.trace).rows
        self.numbers = self.trace.tables.steps["number"].gather(list(self.rows)).unique().to_list()

    @cached_property
    def overview(self) -> Overview:
        return traces.overview(self.trace)

    @cached_property
    def part(self) -> Trace:
        """The figures of the measured steps with ``--step``."""
        return select(self.trace, steps=self.numbers)

    def total(self, kind: str | None = None) -> int:
        """Return the durations of the work that the measured steps launched."""
        wanted = _WORK if kind is None else pl.col("kind") == kind
        found = self.trace.tables.activities.filter(wanted & pl.col("step").is_in(self.rows))
        return int(found["duration"].sum())


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name)
def opened(request: pytest.FixtureRequest) -> Opened:
    return Opened(request.param)


@pytest.fixture
def stepped(opened: Opened) -> Opened:
    if not opened.rows:
        pytest.skip("it has no steps")
    return opened


def adds_up(means: pl.Series, steps: int, total: int) -> bool:
    """Tell whether means, each rounded down, are those of ``total``."""
    return 0 <= total - int(means.sum()) * steps < max(len(means), 1) * steps


def test_steps_are_of_one_source_and_of_known_processes(opened: Opened) -> None:
    table = opened.trace.tables.steps
    assert table["source"].n_unique() <= 1
    assert table["process"].null_count() in (0, table.height)
    assert table.select("rank", "process", "number").is_unique().all()
    by_process = table.sort("start").partition_by("rank", "process")
    for own in by_process:
        ends = own["start"] + own["duration"]
        assert (own["start"].slice(1) >= ends.head(own.height - 1)).all()


def test_report_counts_each_step_once_and_its_means_add_up(stepped: Opened) -> None:
    known = stepped.overview
    each = known.steps.frame.filter("measured")
    assert known.facts["steps"] == stepped.trace.tables.steps["number"].n_unique()
    assert known.facts["step_marker"] == stepped.trace.tables.steps["source"][0]
    assert each.height == len(stepped.rows)
    assert each["work_ns"].sum() == stepped.total()
    assert adds_up(known.breakdown.frame["step_ns"], len(stepped.rows), stepped.total())


def test_the_first_screen_has_the_work_of_the_measured_steps(stepped: Opened) -> None:
    basis = stepped.overview.basis
    assert basis.stepped
    assert basis.steps == len(stepped.rows)
    for table in (basis.breakdown, basis.layers):
        assert table.totals["time_ns"] == stepped.total()
        assert table.frame["share"].sum() == pytest.approx(1)
    assert basis.transfers.totals["time_ns"] == stepped.total("memcpy")
    own, whole = basis.breakdown.frame, stepped.overview.breakdown.frame
    each = dict(
        whole.select(pl.concat_str("category", "part", ignore_nulls=True), "step_ns").rows()
    )
    means = basis.mean(arrange(basis.breakdown)).frame
    named = own.select(pl.concat_str("category", "part", ignore_nulls=True)).to_series()
    assert [each[name] for name in named] == means["time_ns"].to_list()


def test_kernels_and_layers_of_the_measured_steps_are_their_total(stepped: Opened) -> None:
    ran = kernels(stepped.part).totals["time_ns"]
    kinds = stepped.trace.tables.activities["kind"].unique()
    assert ran == sum(stepped.total(kind) for kind in kinds if kind in ("kernel", "op", "graph"))
    for table in (layers, partial(layers, direction=True)):
        assert table(stepped.part, costs=False).frame["time_ns"].sum() == stepped.total()


def test_transfers_per_step_add_up(stepped: Opened) -> None:
    frame = transfers(stepped.trace).frame
    assert adds_up(frame["step_ns"], len(stepped.rows), stepped.total("memcpy"))
    assert transfers(stepped.part).frame["time_ns"].sum() == stepped.total("memcpy")


def test_advise_has_the_same_steps(stepped: Opened) -> None:
    figures = Figures(stepped.trace)
    used = steps(stepped.trace).frame.filter("measured")
    assert figures.measured.height == len(stepped.rows)
    assert figures.units == used["devices"].clip(1).sum()
    assert figures.work_ns == stepped.total()


def test_compare_has_the_same_steps_and_means(stepped: Opened) -> None:
    runs = [Run("one", stepped.trace), Run("other", stepped.trace)]
    row = summary_table(runs).frame.row(0, named=True)
    assert row["steps"] == len(stepped.numbers)
    assert row["step_ns"] == stepped.total() // len(stepped.numbers)
    assert row["to_first"] == 1.0
    own = work(runs, "class").frame.filter(pl.col("run") == "one")
    assert adds_up(own["step_ns"], len(stepped.numbers), stepped.total())
    if len(stepped.numbers) == len(stepped.rows):
        found = stepped.overview.step_time
        assert found is not None
        assert (row["wall_ns"], row["mean_wall_ns"]) == (found.median_ns, found.mean_ns)


def test_the_critical_path_is_no_longer_than_the_recording(opened: Opened) -> None:
    trace = opened.trace
    path = critical(trace, "segment").frame
    times = [
        trace.tables.activities,
        trace.tables.calls,
        trace.tables.ops,
        trace.tables.ranges,
        trace.tables.steps,
    ]
    spans = pl.concat(
        one.select("rank", "start", (pl.col("start") + pl.col("duration")).alias("end"))
        for one in times
    )
    # Ranks run beside each other; the paths of one follow each other.
    recorded = spans.group_by("rank").agg(pl.col("end").max() - pl.col("start").min())
    assert path["time_ns"].sum() <= recorded["end"].sum()
    assert path["time_ns"].sum() == critical(trace).totals["time_ns"]
    measured = trace.tables.steps["number"].gather(list(opened.rows)).unique()
    assert set(path["step"].drop_nulls()) <= set(measured)


def test_step_numbers_far_apart_are_listed_without_counting_from_one_to_the_other() -> None:
    assert span_of([10**15, 1]) == f"1, {10**15}"
    assert span_of([4, 3, 5]) == "3-5"
    assert span_of([7]) == "7"
