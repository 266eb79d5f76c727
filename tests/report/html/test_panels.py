"""The panels of comparisons and studies are charts of a page, with the same values."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.report.html.browser import Browser, needs_chromium
from tests.support import charts
from tests.support.command_line import Run
from tests.support.opened import opened
from traceana import compare
from traceana.report.charts.panels import panel_charts
from traceana.report.charts.specification import specification
from traceana.report.html import html_file
from traceana.report.page import Data, Page, Rows
from traceana.report.panels import Axis, Bars, Failure, Line, Panel, Panels

FIXTURES = Path(__file__).parents[3] / "fixtures"
RUNS = [FIXTURES / f"alexnet-cpu-{name}.json.gz" for name in ("ranges", "stack")]
BATCH, TIME = Axis("batch size", log=2), Axis("time (ms)", log=10)


def test_bars_have_the_values_and_stand_beside_each_other() -> None:
    bars = (Bars("A", [1.0, 2.0]), Bars("B", [3.0, None]))
    (chart,) = panel_charts(
        Panels("runs", (), [Panel("p", Axis("ms"), rows=["x", "y"], bars=bars)])
    )
    marks, values = charts.drawn(chart)
    shown = set(zip(marks["colour"], marks["y"], marks["x"], strict=True))
    assert shown == {("A", "x", 1.0), ("B", "x", 3.0), ("A", "y", 2.0)}
    assert values["text"] == ["1.00", "3.00", "2.00"]
    assert all("yOffset" in one["encoding"] for one in specification(chart)["layer"])


def test_lines_have_their_bounds_models_and_failures() -> None:
    lines = [
        Line("A", [1, 2], [8.0, 4.0], [7.0, 3.0], [9.0, 5.0], [Failure(4, "out of memory")]),
        Line("ideal", [1, 2], [8.0, 4.0], dash="--"),
    ]
    (chart,) = panel_charts(Panels("runs", (), [Panel("p", BATCH, TIME, lines=lines)]))
    every = charts.drawn(chart)
    axis = specification(chart)["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [1, 2, 4]
    by_shape = {marks["shape"]: marks for marks in every}
    assert (by_shape["line"]["x"], by_shape["line"]["y"]) == ([1, 2], [8.0, 4.0])
    assert (by_shape["band"]["y"], by_shape["band"]["y_end"]) == ([7.0, 3.0], [9.0, 5.0])
    assert by_shape["rule"]["colour"] == ["ideal", "ideal"]
    assert (by_shape["text"]["text"], by_shape["text"]["x"]) == (["ideal"], [2])
    assert (by_shape["cross"]["text"], by_shape["cross"]["x"]) == (["out of memory \u00d7"], [4])


def test_a_series_has_one_colour_in_all_panels() -> None:
    one, two = Line("A", [1], [1.0]), Line("B", [1], [2.0])
    panels = [Panel("p", BATCH, TIME, lines=[one, two]), Panel("q", BATCH, TIME, lines=[two])]
    first, second = (charts.drawn(one)[0] for one in panel_charts(Panels("runs", (), panels)))
    assert first["colours"]["B"] == second["colours"]["B"] != first["colours"]["A"]


def test_a_page_without_tables_of_its_own_has_its_panels() -> None:
    panels = Panels("runs", (), [Panel("p", BATCH, TIME, lines=[Line("A", [1], [1.0])])])
    assert "<figcaption>p</figcaption>" in html_file.render(
        Page("study", (panels,), Data(Rows(pl.DataFrame())))
    )


@needs_chromium
@pytest.mark.slow
def test_the_page_of_a_comparison_is_drawn(browser: Browser, tmp_path: Path) -> None:
    found = compare([opened(file) for file in RUNS])
    browser.open(found.save(tmp_path / "compare.html"))
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") == 2
    descriptions = browser.run(
        "[...document.querySelectorAll('svg [aria-label]')].map(one => one.ariaLabel).join(' ')"
    )
    assert "alexnet-cpu-stack" in descriptions
    assert browser.console() == []


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_study_is_drawn(
    browser: Browser, run: Run, tmp_path: Path, width: int
) -> None:
    page = tmp_path / "study.html"
    timed = FIXTURES / "algorithms" / "alexnet-cpu-onednn.json"
    assert run("study", "algorithms", timed, "-o", page).exit_code == 0
    browser.width(width)
    browser.open(page)
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") == 6
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('h1').textContent").startswith("Time and workspace")
    assert browser.console() == []
