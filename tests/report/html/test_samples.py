"""Sampled counters under the timeline of a page, in a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.report.html.browser import Browser, needs_chromium
from tests.report.test_samples import recording
from tests.support.command_line import run

pytestmark = [needs_chromium, pytest.mark.slow]


def test_counters_are_drawn_below_the_tracks_and_looked_up(
    browser: Browser, tmp_path: Path
) -> None:
    counters = ("SM Active (%)", [float(10 * (at % 10)) for at in range(40)])
    trace, page = recording(tmp_path / "t.json", counters), tmp_path / "page.html"
    assert run("report", trace, "-o", page).exit_code == 0
    browser.open(page)
    browser.wait("document.querySelector('figure.timeline').dataset.drawn === 'yes'")
    assert browser.find("#samples h2").text == "Sampled counters"
    scroller = "document.querySelector('figure.timeline .scroller')"
    browser.run(f"{scroller}.scrollTo(0, 1e6)")
    canvas = browser.find("figure.timeline canvas")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    browser.wait(f"{scroller}.scrollTop + {scroller}.clientHeight >= {scroller}.scrollHeight - 1")
    pixels = browser.pixels(canvas)
    # The last row is the counter: its right end, at 90 %, is coloured higher than its left.
    chart = pixels[-40:, pixels.shape[1] // 4 :]
    coloured = (np.abs(chart.astype(int) - chart[0, 0].astype(int)).sum(axis=2) > 60).sum(axis=0)
    assert coloured[-20] > 20 > coloured[20]
    from selenium.webdriver.common.action_chains import ActionChains

    height = int(browser.run("arguments[0].clientHeight", canvas))
    ActionChains(browser.driver).move_to_element_with_offset(canvas, 0, height // 2 - 20).perform()
    browser.wait("document.body.innerText.includes('counter: GPU 0 SM Active (%)')")
    assert browser.console() == []
