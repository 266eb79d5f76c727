"""What holds of every recorded trace: times are conserved, and every command has the same figures.

A trace is opened once, and each analysis and command runs once. Fourteen traces, chosen by the
lines of the code that they alone reach, are tried with every change, all by ``make test-all``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from tests.analyze.test_layer_tree import check as check_tree
from tests.analyze.test_layer_tree import check_folded
from tests.analyze.test_timeline import check as check_window
from tests.report.test_database import check as check_database
from tests.report.test_exports import check as check_export
from tests.support import opened as traces
from tests.support.every_command import as_json
from tests.support.manifest import chosen, small_traces_at_hand, traces_at_hand
from tests.support.traces import with_methods
from tests.timeline.critical.checks import check as check_path
from tests.timeline.critical.checks import check_causes
from tests.whatif.test_replay import check as check_replay
from traceana.advise.figures import Figures
from traceana.analyze.classes import breakdown, condensed
from traceana.analyze.devices import busy, devices
from traceana.analyze.facts import facts
from traceana.analyze.flops import flops
from traceana.analyze.kernels import kernels
from traceana.analyze.layer_tree import folded_tree, layer_tree
from traceana.analyze.layers import layers
from traceana.analyze.roofline import roofline
from traceana.analyze.timeline import timeline
from traceana.analyze.transfers import transfers
from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import summary_table, work
from traceana.report.pages.layers import layers as layers_page
from traceana.report.pages.overview import Overview
from traceana.report.pages.report import report
from traceana.report.terminal import Terminal, render
from traceana.timeline.critical import critical, segments
from traceana.timeline.graph import windows
from traceana.timeline.idle import idle, idle_time
from traceana.timeline.idle_gaps import CAUSES, within
from traceana.timeline.steps import measured_steps, select, steps
from traceana.trace import Trace
from traceana.trace.schema import DEVICE_WORK
from traceana.whatif.program import without_profiler
from traceana.whatif.whatif import replay

LINES_OF_A_SCREEN: Final = 61
DIRECTIONS: Final = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
_WORK: Final = pl.col("kind") != "sync"


class Recorded:
    """A trace with what several checks need, each computed once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.trace = with_methods(without_profiler(traces.opened(file)))
        self.rows = measured_steps(self.trace).rows
        self.numbers = self.trace.tables.steps["number"].gather(list(self.rows)).unique().to_list()
        self._printed: dict[str, dict[str, Any]] = {}

    def __getitem__(self, command: str) -> dict[str, Any]:
        """The JSON of a command."""
        if command not in self._printed:
            self._printed[command] = json.loads(as_json(command, self.file))
        return self._printed[command]

    @cached_property
    def overview(self) -> Overview:
        return traces.overview(self.trace)

    @cached_property
    def part(self) -> Trace:
        """The figures of the measured steps with ``--step``."""
        return select(self.trace, steps=self.numbers)

    def work_ns(self, kind: str | None = None) -> int:
        """Return the durations of the work that the measured steps launched."""
        wanted = _WORK if kind is None else pl.col("kind") == kind
        found = self.trace.tables.activities.filter(wanted & pl.col("step").is_in(self.rows))
        return int(found["duration"].sum())

    def total(self, command: str, column: str) -> Any:
        return self[command]["meta"]["totals"].get(column)

    def notes(self, command: str, label: str) -> list[str]:
        return [note for note in self[command]["meta"]["notes"] if label in note]


def by_key(rows: list[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[key] for key in keys): row for row in rows}


def the_time_and_the_flops_of_all_work(one: Recorded) -> None:
    layers, flops, by_class = (one[name] for name in ("layers", "flops", "flops --by class"))
    sections = one["report"]["sections"]
    work = {sum(row["time_ns"] for row in sections["breakdown"])}
    work |= {sum(row["time_ns"] for row in sections["layers"])}
    work |= {
        sum(row["time_ns"] or 0 for row in table["rows"]) for table in (layers, flops, by_class)
    }
    assert len(work) == 1
    assert sum(row["sum_ns"] for row in sections["busy"]) <= work.pop()
    counted = {one.total(name, "flops") for name in ("layers", "flops")}
    if not one.notes("flops --by class", "FLOPs without a class"):
        counted.add(one.total("flops --by class", "flops"))
    assert len(counted) == 1


def the_time_without_flop_counts(one: Recorded) -> None:
    for label in ("FLOP counts", "causal attention", "1 multiply-accumulate", "no FLOPs"):
        reported = [one.notes(name, label) for name in ("layers", "flops", "flops --by class")]
        assert reported[0] == reported[1] == reported[2]


def layers_in_the_report_are_those_of_layers(one: Recorded) -> None:
    ours = by_key(one["layers"]["rows"], "layer", "role")
    shown = by_key(one["report"]["sections"]["layers"], "layer", "role")
    if one.notes("layers", "layer manifest"):
        # The manifest names layers identified by position; the report has no manifest.
        return
    columns = ("calls", "time_ns", "share", "forward_ns", "backward_ns", "other_ns", "algorithm")
    for key, row in shown.items():
        assert [row[name] for name in columns] == [ours[key][name] for name in columns]


def classes_in_the_report_are_those_of_flops(one: Recorded) -> None:
    ours = by_key(one["flops --by class"]["rows"], "category", "part")
    for key, row in by_key(one["report"]["sections"]["breakdown"], "category", "part").items():
        for name in ("calls", "time_ns", "share"):
            assert row[name] == ours[key][name]


def busy_and_idle_time(one: Recorded) -> None:
    report = by_key(one["report"]["sections"]["busy"], "rank", "device")
    idle = by_key(one["idle"]["sections"]["devices"], "rank", "device")
    assert report.keys() == idle.keys()
    columns = ("span_ns", "busy_ns", "kernel_ns", "memops_only_ns", "idle_ns")
    for place, row in report.items():
        assert [row[name] for name in columns] == [idle[place][name] for name in columns]
        causes = [r for r in one["idle"]["rows"] if (r["rank"], r["device"]) == place]
        assert sum(cause["time_ns"] for cause in causes) == row["idle_ns"]


def copies(one: Recorded) -> None:
    rows = one["transfers"]["rows"]
    report, facts = one["report"]["sections"]["transfers"], one["info"]
    assert rows[: len(report)] == report
    assert sum(row["time_ns"] for row in rows) == facts["memcpy_ns"]
    classes = one["report"]["sections"]["breakdown"]
    copies = sum(row["time_ns"] for row in classes if row["category"] == "memcpy")
    # AMD's runtime copies by kernels, too.
    by_kernels = sum(
        row["time_ns"] for row in one["kernels"]["rows"] if row["category"] == "memcpy"
    )
    assert copies == facts["memcpy_ns"] + by_kernels


def kernels_and_steps(one: Recorded) -> None:
    facts = one["info"]
    sets = facts["memset_ns"] + facts["memcpy_ns"]
    work = sum(row["time_ns"] for row in one["report"]["sections"]["breakdown"])
    graphs = work - sets - one.total("kernels", "time_ns")
    assert graphs >= 0
    steps = {row["step"] for row in one["report"]["sections"]["steps"]}
    assert len(steps) == facts["steps"]


def the_mfu_is_one(one: Recorded) -> None:
    used = one["flops"].get("sections", {}).get("utilization")
    assert one["report"]["summary"]["mfu"] == (used[0]["mfu"] if used else None)


def the_step_of_a_diff_is_that_of_the_report(one: Recorded) -> None:
    of_report, of_diff = one["report"]["summary"]["step_time"], one["diff"]["meta"]["step"]
    for statistic in ("median", "mean"):
        assert int(of_diff[statistic]["a"]) == of_report[f"{statistic}_ns"]


def lines_conserve_the_path_and_the_work(one: Recorded) -> None:
    for command in ("lines", "lines --by stack"):
        assert one.total(command, "time_ns") == sum(
            row["time_ns"] for row in one["report"]["sections"]["breakdown"]
        )
    assert one.total("critical --by line", "time_ns") == one.total("critical", "time_ns")


def unknown_is_null(one: Recorded) -> None:
    for row in one["flops"]["rows"]:
        assert row["flops"] is not None or row["bytes"] is None
        assert row["time_ns"] != 0 or not row["flops"]
    for command in ("layers", "flops --by class"):
        for row in one[command]["rows"]:
            assert row["flops_per_s"] is None or row["flops"]
            assert row["flops_per_s"] != 0


def every_breakdown_adds_up_to_the_work(one: Recorded) -> None:
    done = one.trace.tables.activities.filter(pl.col("kind") != "sync")
    work_ns, calls = done["duration"].sum(), done.height
    for analysis in (breakdown, layers, partial(layers, direction=True)):
        frame = analysis(one.trace).frame
        assert (frame["time_ns"].sum(), frame["calls"].sum()) == (work_ns, calls)
    lines = condensed(breakdown(one.trace).frame)
    assert sum(line.time_ns for line in lines if line.depth == 0) == work_ns
    assert (
        kernels(one.trace).totals["calls"]
        == done.filter(pl.col("kind").is_in(["kernel", "op"])).height
    )
    copies = done.filter(pl.col("kind") == "memcpy")
    assert transfers(one.trace).frame["time_ns"].sum() == copies["duration"].sum()
    assert sum(facts(one.trace)["memcpy"].values()) == copies.height


def busy_and_idle_are_the_span(one: Recorded) -> None:
    frame = busy(one.trace).frame
    assert (frame["busy_ns"] + frame["idle_ns"]).to_list() == frame["span_ns"].to_list()
    assert (frame["busy_ns"] <= frame["sum_ns"]).all()
    assert (frame["idle_ns"] >= 0).all()
    by_step = steps(one.trace).frame
    assert (by_step["busy_ns"] <= by_step["wall_ns"] * by_step["devices"]).all()


def busy_and_idle_add_up(one: Recorded) -> None:
    found = idle_time(one.trace)
    places = devices(one.trace, found=found).frame
    if one.trace.is_summary:
        return
    assert places.height
    assert (places["busy_ns"] + places["idle_ns"] == places["span_ns"]).all()
    assert (places["kernel_ns"] + places["memops_only_ns"] == places["busy_ns"]).all()
    by_device = {
        (rank, device): idle_ns
        for rank, device, idle_ns in places.select("rank", "device", "idle_ns").iter_rows()
    }
    for by in ("cause", "operator", "range", "gap"):
        frame = idle(one.trace, by, found=found).frame
        assert set(frame["cause"]) <= set(CAUSES)
        sums = frame.group_by("rank", "device").agg(pl.col("time_ns").sum())
        for rank, device, time_ns in sums.iter_rows():
            assert time_ns == by_device[rank, device]
    gaps = found.gaps
    assert (gaps["explained"] <= gaps["end"] - gaps["start"]).all()
    assert (gaps["explained"] >= 0).all()


def directions_add_up_and_are_all_on_the_screen(one: Recorded) -> None:
    frame = layers(one.trace).frame
    assert frame.select(pl.sum_horizontal(DIRECTIONS)).to_series().equals(frame["time_ns"])
    page = layers_page(one.trace, sum=True).page(limit=3)
    for width, kept in ((80, DIRECTIONS[:2]), (200, DIRECTIONS)):
        lines = render(page, Terminal(width)).splitlines()
        header = next((line for line in lines if line.startswith("layer ")), "").split()
        for column in kept:
            assert (column.removesuffix("_ns") in header) == bool(frame[column].sum())


def kernels_in_module_ranges_are_on_layers(one: Recorded) -> None:
    trace = one.trace
    found = layers(trace).frame.filter(pl.col("role") == "unattributed")
    # MXNet frees the memory of a variable in an operator of its own.
    outside = {"(launched before capture)", "(outside all layers)", "DeleteVariable"}
    assert set(found["layer"]) <= outside
    if (trace.tables.ranges["kind"] == "module").any():
        kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
        lost = trace.tables.layers["role"].gather(kernels["layer"]) == "unattributed"
        assert kernels.filter(lost)["duration"].sum() * 100 <= kernels["duration"].sum()


def no_rate_is_above_the_peak_unexplained(one: Recorded) -> None:
    trace = one.trace
    counted, by_class = flops(trace), roofline(trace)
    of_layers = layers(trace), layers(trace, direction=True)
    for result in (*of_layers, by_class):
        above = result.frame.filter(pl.col("of_peak") > 1)
        assert set(above["over_peak"]) <= {"executed fewer"}
    work = trace.tables.activities.filter(pl.col("kind") != "sync")
    assert counted.totals["time_ns"] == work["duration"].sum()
    assert by_class.totals["time_ns"] == work["duration"].sum()
    total = counted.totals.get("flops")
    assert [result.totals.get("flops") for result in of_layers] == [total, total]
    if not any("FLOPs without a class" in note for note in by_class.notes):
        assert by_class.totals.get("flops") == total


def the_report_fits_a_screen(one: Recorded) -> None:
    text = render(report(one.trace).page(), Terminal(100))
    assert len(text.splitlines()) <= LINES_OF_A_SCREEN
    assert max(map(len, text.splitlines())) <= 100
    assert not any(character < " " for character in text if character != "\n")


def the_json_of_the_facts_is_json(one: Recorded) -> None:
    assert (
        json.loads(json.dumps(facts(one.trace), allow_nan=False))["file"] == one.trace.meta.source
    )


def adds_up(means: pl.Series, steps: int, total: int) -> bool:
    """Tell whether means, each rounded down, are those of ``total``."""
    return 0 <= total - int(means.sum()) * steps < max(len(means), 1) * steps


def steps_are_of_one_source_and_of_known_processes(one: Recorded) -> None:
    table = one.trace.tables.steps
    assert table["source"].n_unique() <= 1
    assert table["process"].null_count() in (0, table.height)
    assert table.select("rank", "process", "number").is_unique().all()
    by_process = table.sort("start").partition_by("rank", "process")
    for own in by_process:
        ends = own["start"] + own["duration"]
        assert (own["start"].slice(1) >= ends.head(own.height - 1)).all()


def report_counts_each_step_once_and_its_means_add_up(one: Recorded) -> None:
    known = one.overview
    each = known.steps.frame.filter("measured")
    assert known.facts["steps"] == one.trace.tables.steps["number"].n_unique()
    assert known.facts["step_marker"] == one.trace.tables.steps["source"][0]
    assert each.height == len(one.rows)
    assert each["work_ns"].sum() == one.work_ns()
    assert adds_up(known.breakdown.frame["step_ns"], len(one.rows), one.work_ns())


def the_first_screen_has_the_work_of_the_measured_steps(one: Recorded) -> None:
    basis = one.overview.basis
    assert basis.stepped
    assert basis.steps == len(one.rows)
    for table in (basis.breakdown, basis.layers):
        assert table.totals["time_ns"] == one.work_ns()
        assert table.frame["share"].sum() == pytest.approx(1)
    assert basis.transfers.totals["time_ns"] == one.work_ns("memcpy")
    own, whole = basis.breakdown.frame, one.overview.breakdown.frame
    each = dict(
        whole.select(pl.concat_str("category", "part", ignore_nulls=True), "step_ns").rows()
    )
    means = basis.means(basis.breakdown).frame
    named = own.select(pl.concat_str("category", "part", ignore_nulls=True)).to_series()
    assert [each[name] for name in named] == means["time_ns"].to_list()


def kernels_and_layers_of_the_measured_steps_are_their_total(one: Recorded) -> None:
    ran = kernels(one.part).totals["time_ns"]
    kinds = one.trace.tables.activities["kind"].unique()
    assert ran == sum(one.work_ns(kind) for kind in kinds if kind in ("kernel", "op", "graph"))
    for table in (layers, partial(layers, direction=True)):
        assert table(one.part, costs=False).frame["time_ns"].sum() == one.work_ns()


def transfers_per_step_add_up(one: Recorded) -> None:
    frame = transfers(one.trace).frame
    assert adds_up(frame["step_ns"], len(one.rows), one.work_ns("memcpy"))
    assert transfers(one.part).frame["time_ns"].sum() == one.work_ns("memcpy")


def advise_has_the_same_steps(one: Recorded) -> None:
    figures = Figures(one.trace)
    used = steps(one.trace).frame.filter("measured")
    assert figures.measured.height == len(one.rows)
    assert figures.units == used["devices"].clip(1).sum()
    assert figures.work_ns == one.work_ns()


def compare_has_the_same_steps_and_means(one: Recorded) -> None:
    runs = [Run("one", one.trace), Run("other", one.trace)]
    row = summary_table(runs).frame.row(0, named=True)
    assert row["steps"] == len(one.numbers)
    assert row["step_ns"] == one.work_ns() // len(one.numbers)
    assert row["to_first"] == 1.0
    own = work(runs, "class").frame.filter(pl.col("run") == "one")
    assert adds_up(own["step_ns"], len(one.numbers), one.work_ns())
    if len(one.numbers) == len(one.rows):
        found = one.overview.step_time
        assert found is not None
        assert (row["wall_ns"], row["mean_wall_ns"]) == (found.median_ns, found.mean_ns)


def the_critical_path_is_no_longer_than_the_recording(one: Recorded) -> None:
    trace = one.trace
    path = critical(trace, "segment").frame
    times = [
        trace.tables.activities,
        trace.tables.calls,
        trace.tables.ops,
        trace.tables.ranges,
        trace.tables.steps,
    ]
    spans = pl.concat(
        table.select("rank", "start", (pl.col("start") + pl.col("duration")).alias("end"))
        for table in times
    )
    # Ranks run beside each other; the paths of one follow each other.
    recorded = spans.group_by("rank").agg(pl.col("end").max() - pl.col("start").min())
    assert path["time_ns"].sum() <= recorded["end"].sum()
    assert path["time_ns"].sum() == critical(trace).totals["time_ns"]
    measured = trace.tables.steps["number"].gather(list(one.rows)).unique()
    assert set(path["step"].drop_nulls()) <= set(measured)


def the_critical_path_adds_up(one: Recorded) -> None:
    if one.trace.is_summary:
        return
    if one.trace.tables.steps.height:
        check_path(one.trace)
        return
    # From the first activity of a rank's devices to its last; operators where it has none.
    worked = one.trace.tables.activities.filter(pl.col("kind").is_in(DEVICE_WORK))
    worked = worked if worked.height else one.trace.tables.ops
    end = (pl.col("start") + pl.col("duration")).max()
    spans = worked.group_by("rank").agg(span=end - pl.col("start").min())
    assert segments(one.trace)["time_ns"].sum() == spans["span"].sum()


def each_edge_is_causally_possible(one: Recorded) -> None:
    check_causes(one.trace)


def the_tree_of_layers_is_all_work(one: Recorded) -> None:
    tree = layer_tree(one.trace)
    check_tree(tree)
    found = layers(one.trace, costs=False)
    assert tree["time_ns"][0] == found.totals["time_ns"]
    for depth in (None, 1, 2):
        check_folded(folded_tree(found.frame, depth), found.totals["time_ns"])


def the_first_window_of_the_timeline_is_whole(one: Recorded) -> None:
    for window in timeline(one.trace)[:1]:
        if window.left_out == 0:
            check_window(one.trace, window)


def a_replay_is_the_trace(one: Recorded) -> None:
    if one.trace.is_summary:
        return
    check_replay(one.trace)
    found = replay(one.trace)
    assert found.largest_error_ns == 0
    spans = windows(one.trace.whole)
    assert found.measured_ns == found.replayed_ns == (spans["end"] - spans["begin"]).sum()


CHECKS: Final[tuple[Callable[[Recorded], None], ...]] = (
    the_time_and_the_flops_of_all_work,
    the_time_without_flop_counts,
    layers_in_the_report_are_those_of_layers,
    classes_in_the_report_are_those_of_flops,
    busy_and_idle_time,
    copies,
    kernels_and_steps,
    the_mfu_is_one,
    lines_conserve_the_path_and_the_work,
    unknown_is_null,
    every_breakdown_adds_up_to_the_work,
    busy_and_idle_are_the_span,
    busy_and_idle_add_up,
    directions_add_up_and_are_all_on_the_screen,
    kernels_in_module_ranges_are_on_layers,
    no_rate_is_above_the_peak_unexplained,
    the_report_fits_a_screen,
    the_json_of_the_facts_is_json,
    steps_are_of_one_source_and_of_known_processes,
    the_critical_path_is_no_longer_than_the_recording,
    the_critical_path_adds_up,
    each_edge_is_causally_possible,
    the_tree_of_layers_is_all_work,
    the_first_window_of_the_timeline_is_whole,
    a_replay_is_the_trace,
)


def idle_time_of_steps_is_what_utilization_leaves(one: Recorded) -> None:
    found = idle_time(one.trace)
    measured = steps(one.trace).frame.filter(pl.col("measured") & (pl.col("devices") > 0))
    available = int((measured["wall_ns"] * measured["devices"]).sum())
    idle_ns = int(within(found.gaps, found.measured)["time_ns"].sum())
    assert idle_ns == available - int(measured["busy_ns"].sum())


OF_STEPS: Final[tuple[Callable[[Recorded], None], ...]] = (
    idle_time_of_steps_is_what_utilization_leaves,
    report_counts_each_step_once_and_its_means_add_up,
    the_first_screen_has_the_work_of_the_measured_steps,
    kernels_and_layers_of_the_measured_steps_are_their_total,
    transfers_per_step_add_up,
    advise_has_the_same_steps,
    compare_has_the_same_steps_and_means,
    the_step_of_a_diff_is_that_of_the_report,
)
"""Of traces with measured steps."""


@pytest.mark.slow
@pytest.mark.parametrize("file", chosen(traces_at_hand()))
def test_invariants(file: Path, subtests: pytest.Subtests) -> None:
    one = Recorded(file)
    for check in (*CHECKS, *(OF_STEPS if one.rows else ())):
        with subtests.test(check.__name__):
            check(one)


@pytest.mark.slow
@pytest.mark.parametrize("file", chosen(small_traces_at_hand()))
def test_exports_are_whole(file: Path, tmp_path: Path) -> None:
    check_export(traces.opened(file))
    check_database(traces.opened(file), tmp_path)
