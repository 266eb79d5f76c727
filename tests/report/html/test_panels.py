"""The charts of comparisons and studies on a page, side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.charts.test_panels import line
from tests.report.charts.test_panels import page as picture
from tests.report.html.browser import Browser, needs_chromium
from tests.support.command_line import Run
from tests.support.opened import opened
from traceana import compare
from traceana.report.html import html_file

FIXTURES = Path(__file__).parents[3] / "fixtures"
RUNS = [FIXTURES / f"alexnet-cpu-{name}.json.gz" for name in ("ranges", "stack")]


def test_a_page_without_tables_of_its_own_has_its_panels() -> None:
    assert html_file.render(picture(line("A", title="p"))).count("<figcaption>p</figcaption>") == 1


@needs_chromium
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
