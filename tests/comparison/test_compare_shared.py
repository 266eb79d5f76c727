"""Recordings that others made, side by side: their figures are those of each run alone."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from tests.comparison import shared
from tests.comparison.shared import compare
from traceana.analyze.classes import breakdown
from traceana.analyze.layers import layers
from traceana.analyze.transfers import transfers
from traceana.comparison.compared_run import OTHER
from traceana.comparison.layer_rows import fused_alike
from traceana.comparison.run_tables import Comparison
from traceana.timeline.work import work

SETS = {
    "control": shared.CONTROL,
    "vendors": (*shared.TIMESFORMER, "kineto/alexnet_forward_a100.json.gz"),
    "unmarked": shared.TRANSFORMER,
}


@cache
def of(which: str) -> Comparison:
    return compare([shared.opened(name) for name in SETS[which]])


def same(found: pl.DataFrame, alone: pl.DataFrame, *columns: str) -> bool:
    reported = [sorted(map(str, frame.select(columns).iter_rows())) for frame in (found, alone)]
    return reported[0] == reported[1]


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("which", SETS)
def test_layers_classes_and_copies_are_those_of_each_run(which: str) -> None:
    found = of(which)
    # The layers of a module that another run has as one row are in that row.
    for run in fused_alike(found.runs):
        by_layer = (
            found.by("layer").frame.filter(run=run.label).drop("layer").rename({"path": "layer"})
        )
        times = ("forward_ns", "backward_ns", "other_ns", "time_ns")
        assert same(by_layer, layers(run.trace, costs=False).frame, "layer", "role", *times)
        by_class = found.by("class").frame.filter(run=run.label)
        assert same(by_class, breakdown(run.trace).frame, "category", "part", "calls", "time_ns")
        copies = found.by("transfer").frame.filter(run=run.label)
        reported = (
            "direction",
            "host_memory",
            "count",
            "bytes",
            "bytes_per_s",
            "time_ns",
            "step_ns",
        )
        assert same(copies, transfers(run.trace).frame, *reported)


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("which", SETS)
def test_products_are_the_kernels_of_that_class(which: str) -> None:
    found = of(which).by("gemm").frame
    for run in of(which).runs:
        keys = ["tile", "gemm_layout", "batched", "precision", "library"]
        each = work(run.trace, "category", *keys, "duration").filter(category="gemm")
        alone = each.group_by(keys).agg(pl.len(), pl.col("duration").sum())
        rows = found.filter(pl.col("run") == run.label, pl.col("gemm") != OTHER)
        assert rows["time_ns"].sum() == alone["duration"].sum() == each["duration"].sum()
        assert rows["calls"].sum() == each.height
        batched = pl.col("form").is_in(["batched", "strided batched"])
        assert rows.filter(batched)["time_ns"].sum() == each.filter("batched")["duration"].sum()
        mine = rows.group_by(keys[:2]).agg(pl.col("time_ns").sum())
        own = each.group_by(keys[:2]).agg(pl.col("duration").sum().alias("time_ns"))
        assert same(mine, own, *keys[:2], "time_ns")


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("which", ["control", "unmarked"])
@pytest.mark.parametrize("by", ["layer", "class", "algorithm", "kernel", "gemm"])
def test_two_runs_equal_their_diff(which: str, by: str) -> None:
    comparison = of(which)
    reported = shared.diff_of(*SETS[which]).by(by)  # type: ignore[arg-type]
    table = comparison.by(by)  # type: ignore[arg-type]
    for side, run in zip("ab", comparison.runs, strict=True):
        own = table.frame.filter(run=run.label)
        names = [side] if by == "layer" else list(table.keys)
        calls, time = f"calls_{side}", f"time_{side}_ns"
        expected = reported.filter(pl.col(calls) > 0).select(*names, time)
        mine = own.select(*(["path"] if by == "layer" else names), table.time)
        mine = mine.filter(pl.col(table.time) > 0)
        expected = expected.filter(pl.col(time) > 0)
        assert sorted(map(str, mine.iter_rows())) == sorted(map(str, expected.iter_rows()))


def test_layers_are_paired_as_in_the_diff() -> None:
    comparison = of("control")
    a, b = comparison.runs
    found = shared.diff_of(*SETS["control"])
    pairs = {
        (found.baseline.layers.layers[pair.a].label, found.candidate.layers.layers[pair.b].label)
        for pair in found.alignment.pairs
    }
    rows = comparison.by("layer").frame.filter(role="layer")
    left, right = (rows.filter(run=run.label).select("item", "path") for run in (a, b))
    both = left.join(right, on="item").select("path", "path_right")
    assert set(both.iter_rows()) == pairs
    assert len(pairs) == found.counts["pairs"] > 100


def test_one_network_on_two_vendors_gpus_and_another_beside_it() -> None:
    found = of("vendors")
    h100, mi300x, alexnet = (run.label for run in found.runs)
    rows = found.by("layer").frame.filter(role="layer")
    assert set(rows.filter(run=h100)["item"]) == set(rows.filter(run=mi300x)["item"])
    assert rows.filter(run=mi300x)["confidence"].drop_nulls().min() > 0.9  # type: ignore[operator]
    assert rows.filter(run=alexnet).height == len(found.runs[2].layers.layers)
    libraries = dict(found.by("summary").frame.select("run", "libraries").iter_rows())
    assert "tensile" in libraries[mi300x]
    assert "cutlass" in libraries[h100]


def test_without_steps_whole_recordings_are_compared() -> None:
    found = of("unmarked")
    assert found.by("summary").frame["steps"].to_list() == [None, None]
    assert found.by("gemm").time == "time_ns"
    difference = shared.diff_of(*SETS["unmarked"])
    assert found.by("summary").frame["wall_ns"].to_list() == [
        int(difference.step.median.a),
        int(difference.step.median.b),
    ]
