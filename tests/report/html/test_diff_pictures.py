"""A diff as a page: bars from step to step, icicles on one scale, changes linked to their rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparison.shared import diff
from tests.report.html.browser import Browser, needs_chromium
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.comparison.diff import Diff
from traceana.report.page import Chart, Findings, Table
from traceana.report.pages.diff import differences
from traceana.report.pages.diff_html import icicle, pictures

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture(scope="module")
def found() -> Diff:
    names = ("alexnet-cpu-ranges.json.gz", "alexnet-cpu-stack.json.gz")
    return diff(*(opened(FIXTURES / name) for name in names))


def charts(found: Diff) -> list[Chart]:
    return [block for block in pictures(found) if isinstance(block, Chart)]


def test_every_bar_begins_where_the_one_before_it_ends(found: Diff) -> None:
    (marks,) = charts(found)[-1].marks
    first, *changes, last = marks.frame.select("start_ns", "end_ns", "change_ns").iter_rows()
    at = first[1]
    for start, end, change in changes:
        assert start == at
        assert end - start == change
        at = end
    assert at == last[1]
    rows = found.by("class")
    assert (first[1], last[1]) == (rows["time_a_ns"].sum(), rows["time_b_ns"].sum())


def test_every_step_is_a_point(found: Diff) -> None:
    (marks,) = charts(found)[0].marks
    steps = [*found.baseline.steps.frame["wall_ns"], *found.candidate.steps.frame["wall_ns"]]
    shown = marks.frame.filter(marks.frame["is"] == "step")["wall_ns"].to_list()
    assert shown == steps


def test_of_many_steps_the_first_are_points(found: Diff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceana.report.pages.diff_html._MOST_STEPS", 2)
    (marks,) = charts(found)[0].marks
    runs = found.baseline, found.candidate
    steps = [wall for run in runs for wall in run.steps.frame["wall_ns"][:2]]
    assert marks.frame.filter(marks.frame["is"] == "step")["wall_ns"].to_list() == steps


@needs_chromium
def test_the_page_of_a_diff_is_drawn(browser: Browser, found: Diff, tmp_path: Path) -> None:
    browser.open(differences(found).save(tmp_path / "diff.html"))
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") == 3
    assert browser.console() == []


def test_the_icicle_has_the_times_of_both_runs(found: Diff) -> None:
    (both,) = icicle(found)
    rows = found.by("layer")
    work = rows.filter(~rows["a"].fill_null("").is_in(["(idle)", "(overlap correction)"]))
    for side in "ab":
        whole = both.frame[f"time_{side}_ns"].item(0)
        assert whole == pytest.approx(work[f"time_{side}_ns"].sum(), rel=1e-4)
    assert set(both.frame["category"]) <= set(both.colours)


def test_the_children_of_a_node_add_up_to_it(found: Diff) -> None:
    (both,) = icicle(found)
    for name in ("time_ns", "time_a_ns"):
        times = both.frame[name].to_list()
        inside = dict.fromkeys(range(len(times)), 0)
        parents = both.frame["parent"].to_list()
        for parent, time in zip(parents, times, strict=True):
            if parent is not None:
                inside[parent] += time
        assert all(inside[at] in (0, time) for at, time in enumerate(times) if at in parents)


def test_every_table_of_the_diff_has_a_section(found: Diff) -> None:
    page = differences(found).illustrated(limit=10)
    assert [one.name for one in page.sections][:4] == ["layer", "idle", "class", "algorithm"]
    linked = {
        item.section
        for block in page.blocks
        if isinstance(block, Findings)
        for item in block.items
        if item.section
    }
    assert linked
    assert linked <= {one.name for one in page.sections}


def algorithms() -> Diff:
    """Return a diff in which the algorithm of one layer changed."""
    traces = []
    for algorithm in ("implicit_gemm", "winograd"):
        builder = TraceBuilder()
        builder.name(algorithm, category="conv", algorithm=algorithm, direction="forward")
        builder.name("k", category="elementwise")
        layers = [builder.layer(f"layer{at}", "Conv2d") for at in range(14)]
        for step in range(6):
            row = builder.step(step, step * 100_000_000, 90_000_000)
            for at, layer in enumerate(layers):
                start = step * 100_000_000 + at * 5_000_000
                name = algorithm if at == 3 else "k"
                time = 4_000_000 if at == 3 and algorithm == "winograd" else 1_000_000
                builder.kernel(name, start, time, layer=layer, step=row)
        traces.append(builder.build())
    return diff(*traces)


def test_the_change_of_the_step_time_has_its_interval_beside_0() -> None:
    found = algorithms()
    interval = found.step.decides.interval
    assert interval is not None
    bounds, change, none = charts(found)[1].marks
    assert bounds.frame["change_ns"].to_list() == [round(interval.low), round(interval.high)]
    assert change.frame["change_ns"].to_list() == [round(interval.difference)]
    assert none.shape == "rule"
    assert set(none.frame["change_ns"]) == {0}


def test_idle_time_has_a_section_whose_causes_add_up() -> None:
    found = algorithms()
    sections = differences(found).illustrated(limit=10).sections
    (section,) = (one for one in sections if one.name == "idle")
    (table,) = section.blocks
    assert isinstance(table, Table)
    whole = found.by("class").filter(category="(idle)").row(0, named=True)
    for side in ("a", "b"):
        # Means of causes are rounded down each.
        short = whole[f"time_{side}_ns"] - table.totals[f"time_{side}_ns"]
        assert 0 <= short < table.frame.height
    assert table.frame["meaning"].null_count() == 0


@needs_chromium
def test_a_change_leads_to_its_rows(browser: Browser, tmp_path: Path) -> None:
    browser.open(differences(algorithms()).save(tmp_path / "diff.html"))
    link = browser.find("a[data-rows='layer3']")
    browser.driver.execute_script("arguments[0].click()", link)
    shown = browser.run(
        "[...document.querySelectorAll('#layer tbody tr')].filter(row => !row.hidden)"
        ".map(row => row.cells[0].textContent)"
    )
    assert shown == ["layer3"]
    assert browser.run("location.hash") == "#layer"


def test_a_layer_that_became_slower_has_its_colour() -> None:
    (both,) = icicle(algorithms())
    bands = dict(both.frame.select("label", "category").iter_rows())
    assert bands["layer3"] == "10 % slower or more"
    assert bands["layer4"] == "changed by less than 2 %"


def test_a_change_without_a_verdict_is_grey() -> None:
    names = ("alexnet_b128.json.gz", "alexnet_b128_tf32.json.gz")
    compared = diff(*(opened(FIXTURES / "gpu" / name) for name in names))
    (marks,) = charts(compared)[-1].marks
    kinds = dict(marks.frame.select("class", "is").iter_rows())
    assert kinds["convolution"] == "less"
    assert kinds["layout conversion"] == "more"
    rows = compared.by("class").filter(category="memcpy")
    assert set(rows["verdict"]) == {"inconclusive"}
    assert kinds["copies"] == "inconclusive"
