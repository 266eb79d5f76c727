"""The bars of a diff lead from the baseline's mean step to the candidate's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.html.browser import Browser, needs_chromium
from tests.support.opened import opened
from traceana import diff
from traceana.comparison.diff import Diff
from traceana.report.page import Chart
from traceana.report.pages.diff_pictures import pictures

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


@needs_chromium
@pytest.mark.slow
def test_the_page_of_a_diff_is_drawn(browser: Browser, found: Diff, tmp_path: Path) -> None:
    browser.open(found.save(tmp_path / "diff.html"))
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") == 2
    assert browser.console() == []
