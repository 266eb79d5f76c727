"""A report in a real browser, offline: drawn, usable by keyboard, equal to the JSON."""

from __future__ import annotations

import base64
import csv
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.analyze.test_lines import training
from tests.report.html.browser import Browser, needs_chromium
from tests.report.html.test_document import FIXTURE, HOSTILE, hostile
from tests.support.traces import TraceBuilder
from traceana import Trace
from traceana import open as open_trace
from traceana.report.html import html_file
from traceana.report.page import Data, Finding, Findings, Notes, Page, Rows
from traceana.report.pages.report import report

pytestmark = [needs_chromium, pytest.mark.slow]
TITLES = (
    "[...document.querySelector(arguments[0]).querySelectorAll('th[scope=col]')]"
    ".map(header => header.dataset.title)"
)


@pytest.fixture(scope="module")
def alexnet() -> Trace:
    return open_trace(FIXTURE)


@pytest.fixture(scope="module")
def written(alexnet: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return alexnet.report().save(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(browser: Browser, written: Path) -> Browser:
    browser.open(written)
    return browser


def test_every_picture_is_drawn_and_the_console_is_empty(page: Browser) -> None:
    figures = page.run("document.querySelectorAll('figure').length")
    assert figures >= 2
    assert page.run("document.querySelectorAll('figure[data-drawn=yes]').length") == figures
    assert page.console() == []


def test_the_pictures_have_pixels(page: Browser) -> None:
    for selector in ("figure.chart .canvas", "figure.icicle .canvas"):
        element = page.find(selector)
        page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        assert _colours(page, element) > 4, selector


def _colours(page: Browser, element: Any) -> int:
    """Return the number of colours in each seventh row and column of the pixels."""
    return len({tuple(one) for one in page.pixels(element)[::7, ::7].reshape(-1, 3).tolist()})


def test_the_figures_equal_those_of_the_json(page: Browser, alexnet: Trace, tmp_path: Path) -> None:
    rows = json.loads(alexnet.kernels().save(tmp_path / "kernels.json").read_text())["rows"]
    at = page.run(TITLES, "#kernels").index("time_ns")
    shown = page.run(
        "[...document.querySelectorAll('#kernels table.data tbody tr')].map(row => "
        "[row.cells[0].dataset.v ?? row.cells[0].textContent, "
        "row.cells[arguments[0]].dataset.v ?? row.cells[arguments[0]].textContent])",
        at,
    )
    assert [(name, int(time)) for name, time in shown] == [
        (row["name"], row["step_ns"]) for row in rows if row["step_count"]
    ]


def test_a_table_is_sorted_by_keyboard_and_back(page: Browser) -> None:
    header = page.find("#kernels th[data-title=calls] button")
    at = page.run(TITLES, "#kernels").index("calls")
    values = (
        "[...document.querySelectorAll('#kernels table.data tbody tr')]"
        f".map(row => row.cells[{at}])"
        ".map(cell => Number(cell.dataset.v ?? cell.textContent))"
    )
    page.keys(header, "ENTER")
    first = page.run(values)
    assert first == sorted(first, reverse=True)
    page.keys(header, "ENTER")
    assert page.run(values) == sorted(first)
    assert page.find("#kernels th[data-title=calls]").get_attribute("aria-sort") == "ascending"


def test_recommendations_are_above_the_pictures_and_the_tables(page: Browser) -> None:
    text: str = page.run("document.querySelector('#summary').textContent")
    assert text.index("host bound") < text.index("CPU time by class")


def test_a_filter_hides_the_other_rows_and_says_how_many(page: Browser) -> None:
    page.keys(page.find("#kernels input"), "convolution")
    shown = page.run(
        "[...document.querySelectorAll('#kernels table.data tbody tr')].filter(row => !row.hidden)"
        ".map(row => row.textContent)"
    )
    assert shown
    assert all("convolution" in text for text in shown)
    count = page.find("#kernels .tools .remark").text
    assert count.startswith(f"{len(shown)} of ")


def test_the_icicle_zooms_by_keyboard(page: Browser) -> None:
    trail = "document.querySelector('.icicle .tools p').textContent"
    whole = page.run(trail)
    root = page.find(".icicle g[tabindex='0']")
    page.keys(root, "ARROW_DOWN")
    page.keys(page.driver.switch_to.active_element, "ARROW_RIGHT")
    page.keys(page.driver.switch_to.active_element, "ENTER")
    assert page.run(trail) != whole
    widest = "document.querySelector('.icicle g rect').getBoundingClientRect().width"
    assert page.run(widest) > 0.95 * page.run(
        "document.querySelector('.icicle .canvas').clientWidth"
    )
    page.keys(page.driver.switch_to.active_element, "ESCAPE")
    assert page.run(trail) == whole


@pytest.mark.parametrize("width", [1280, 800])
def test_a_button_beside_a_table_hides_none_of_its_columns(page: Browser, width: int) -> None:
    page.width(width)
    page.wait(f"innerWidth === {width}")
    page.wait(
        "[...document.querySelectorAll('.holder.beside > .scroll')]"
        ".every(one => one.scrollWidth <= one.clientWidth)"
    )
    assert page.run("document.querySelectorAll('.holder.beside').length") > 0
    gaps = page.run(
        "[...document.querySelectorAll('.holder.beside')].map(one => "
        "one.querySelector('.tools').getBoundingClientRect().left"
        " - one.querySelector('table').getBoundingClientRect().right)"
    )
    assert all(0 < gap < 40 for gap in gaps)


def test_a_table_shows_the_order_of_its_rows(page: Browser) -> None:
    layers = page.find("#layers th[data-title=time_ns]")
    assert layers.get_attribute("aria-sort") == "descending"
    kernels = page.find("#kernels th[data-title=time_ns]")
    assert kernels.get_attribute("aria-sort") == "descending"
    assert "click a title to sort" in page.find("#kernels .tools").text


@pytest.mark.parametrize("width", [760, 390])
def test_a_table_that_is_cut_has_a_shadow_at_its_edge(page: Browser, width: int) -> None:
    page.width(width)
    page.wait(f"innerWidth === {width}")
    scroll = page.find("#layers .scroll")
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", scroll)
    assert page.run("arguments[0].scrollWidth - arguments[0].clientWidth", scroll) > 40

    inside = page.run("arguments[0].clientWidth", scroll)

    def edge() -> int:
        """Return the median brightness of the pixels at the right edge, inside the scrollbar."""
        return int(np.median(page.pixels(scroll)[:, inside - 2]))

    assert edge() < 230
    page.driver.execute_script("arguments[0].scrollLeft = 10_000", scroll)
    assert edge() > 250


def test_names_in_a_table_keep_their_ends_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.name("k", category="conv", algorithm="direct")
    for at in range(3):
        layer = b.layer(f"TimesformerModel_0.TimeSformerAttention_{at}.SelfAttention_{at}", "A")
        b.kernel("k", at * 1_000_000, 900_000, layer=layer)
    browser.width(390)
    browser.open(b.build().report().save(tmp_path / "report.html"))
    ends = browser.run(
        "[...document.querySelectorAll('#summary td.long div')]"
        ".map(one => one.scrollHeight - one.clientHeight)"
    )
    assert ends
    assert max(ends) <= 1


def test_long_labels_of_bars_are_cut_in_their_middle_on_a_phone(
    browser: Browser, tmp_path: Path
) -> None:
    b = TraceBuilder()
    for at in range(3):
        b.name(f"a_kernel_with_a_long_name_{at}", category="conv", algorithm="direct")
        b.kernel(f"a_kernel_with_a_long_name_{at}", at * 1_000_000, 900_000)
    browser.width(390)
    browser.open(b.build().kernels().save(tmp_path / "kernels.html"))
    labels = browser.run(
        "[...document.querySelectorAll('figure svg .role-axis-label text')]"
        ".map(one => one.textContent).filter(text => text.startsWith('a_'))"
    )
    assert sorted(one[-2:] for one in labels) == ["_0", "_1", "_2"]
    assert all("…" in one for one in labels)


@pytest.mark.parametrize("width", [1280, 390])
def test_labels_of_bars_stay_different(browser: Browser, tmp_path: Path, width: int) -> None:
    b = TraceBuilder()
    names = [f"clover::prepare_{one}<64>::run::lambda#8>" for one in ("input", "output", "inputs")]
    for at, name in enumerate(names):
        b.name(name, category="conv", algorithm="direct")
        b.kernel(name, at * 1_000_000, 900_000)
    browser.width(width)
    browser.open(b.build().kernels().save(tmp_path / "kernels.html"))
    labels = browser.run(
        "[...document.querySelectorAll('figure svg .role-axis-label text')]"
        ".map(one => one.textContent).filter(text => text.startsWith('clo'))"
    )
    assert len(labels) == len(set(labels)) == 3


def test_titles_of_axes_are_whole_on_a_phone(page: Browser) -> None:
    page.width(390)
    page.driver.refresh()
    page.wait("document.documentElement.dataset.ready === 'yes'")
    edges = page.run(
        "[...document.querySelectorAll('figure.chart svg .role-axis-title text')].map(one => {"
        "const [own, all] = [one, one.ownerSVGElement].map(two => two.getBoundingClientRect());"
        "return [one.textContent, own.left - all.left, all.right - own.right]; })"
    )
    shown = [text for text, _, _ in edges]
    assert any("critical path" in text for text in shown)
    assert [one for one in edges if min(one[1:]) < -1] == []
    assert not any(text.count("(ms)") > 1 for text in shown)


@pytest.mark.parametrize("width", [1280, 390])
def test_labels_of_the_ruler_fit(page: Browser, width: int) -> None:
    page.width(width)
    page.driver.refresh()
    page.wait("document.documentElement.dataset.ready === 'yes'")
    page.driver.execute_script(
        "window.texts = []; const pen = CanvasRenderingContext2D.prototype, old = pen.fillText;"
        "pen.fillText = function (text, x, y) {"
        "if (y < 15) texts.push([x, x + this.measureText(text).width]);"
        "return old.call(this, text, x, y); };"
    )
    # At each of these views other ticks are at the edges.
    canvas = page.find("figure.timeline .canvas")
    for key in "wdddddddsss":
        page.driver.execute_script("window.texts = []")
        page.keys(canvas, key)
        page.wait("texts.length > 0")
        spans = page.run("texts")
        wide = page.run("document.querySelector('.timeline .scroller').clientWidth")
        assert all(right <= wide for _, right in spans)
        assert all(one[1] + 4 < other[0] for one, other in pairwise(spans))


def test_a_phone_shows_time_and_share_right_after_the_name(browser: Browser, written: Path) -> None:
    browser.width(390)
    browser.open(written)
    layers = browser.run(TITLES, "#layers")
    assert layers[:3] == ["layer", "time_ns", "share"]
    assert browser.run(TITLES, "#critical")[:3] == ["class", "part", "step_ns"]
    shown = browser.run(
        "(cell => cell.getBoundingClientRect().right)"
        "(document.querySelector('#layers th[data-title=time_ns]'))"
    )
    assert shown <= 390
    # The cells moved with their titles.
    at = layers.index("share")
    first = browser.run(
        f"document.querySelector('#layers table.data tbody tr').cells[{at}].textContent"
    )
    assert first.endswith("%")


def test_rows_have_no_blank_lines_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    b = TraceBuilder()
    layer = b.layer("a_network_of_a_long_name.conv2d_12", "Conv2d")
    for at, algorithm in enumerate(("implicit_precomp_gemm", "winograd_nonfused", "fft_tiling")):
        b.name(f"k{at}", category="conv", algorithm=algorithm, direction="fprop")
        b.kernel(f"k{at}", at * 1_000_000, 900_000, layer=layer)
    browser.width(390)
    browser.open(b.build().layers().save(tmp_path / "layers.html"))
    assert browser.run(TITLES, "main")[:3] == ["layer", "time_ns", "share"]
    # The name has three lines at most; the algorithms beside it no more than it.
    lines = browser.run(
        "[...document.querySelectorAll('table.data tbody td')].map(cell => {"
        "const range = document.createRange(); range.selectNodeContents(cell);"
        "return range.getBoundingClientRect().height; })"
    )
    assert max(lines[1:]) <= lines[0]


def test_labels_of_the_timeline_are_whole_on_a_phone(page: Browser) -> None:
    page.width(390)
    page.driver.refresh()
    page.wait("document.documentElement.dataset.ready === 'yes'")
    page.driver.execute_script(
        "window.texts = []; const pen = CanvasRenderingContext2D.prototype, old = pen.fillText;"
        "pen.fillText = function (text, ...rest)"
        "{ texts.push(text); return old.call(this, text, ...rest); };"
    )
    page.keys(page.find("figure.timeline .canvas"), "w")
    page.wait("texts.length > 0")
    labels = [
        f"{track['of']} {track['kind']}".strip()
        for track in page.run(
            "JSON.parse(document.getElementById('pictures').textContent)"
            "[document.querySelector('figure.timeline').dataset.picture].windows[0].tracks"
        )
    ]
    shown = set(page.run("texts")) & set(labels)
    assert len(shown) > 4
    assert not [text for text in page.run("texts") if re.match(r"thread.*…", text)]


def test_the_answer_stands_above_the_fold(browser: Browser, tmp_path: Path) -> None:
    """At 1440 x 900: step time, bottleneck, the plan, its picture and the timeline of one step."""
    trace = open_trace(FIXTURE.parent / "gpu" / "alexnet_b128.json.gz")
    browser.open(trace.report().save(tmp_path / "report.html"))
    metrics = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.wait("innerWidth === 1440")
    for shown in ("dl.large", ".lead", ".columns .findings", ".columns .chart", "figure.strip"):
        bottom = f"document.querySelector('{shown}').getBoundingClientRect().bottom"
        assert 0 < browser.run(bottom) <= 900, shown
    strip = browser.find("figure.strip .canvas")
    assert _colours(browser, strip) > 4
    assert browser.run("document.querySelectorAll('figure.strip .tools').length") == 0
    # Links from names in tables go to the whole timeline.
    assert browser.run("document.querySelectorAll('a.event').length") > 0
    browser.run("document.querySelector('a.event').click()")
    assert browser.run("document.querySelector('figure.timeline input').value")


def test_a_label_of_the_icicle_keeps_its_end(page: Browser) -> None:
    cut = page.run(
        "[...document.querySelectorAll('.icicle foreignObject div')].map(one => "
        "[...one.children].map(part => [part.textContent, part.scrollWidth - part.clientWidth]))"
        ".filter(parts => parts.length === 2)"
    )
    assert cut
    assert all(hidden <= 1 for _, (_, hidden) in cut)
    assert any(hidden > 1 for (_, hidden), _ in cut)


def test_the_legend_of_the_roofline_has_each_class_once(page: Browser) -> None:
    labels = page.run(
        "[...document.querySelectorAll('#roofline svg .role-legend-label text')]"
        ".map(one => one.textContent)"
    )
    assert "convolution" in labels
    assert len(set(labels)) == len(labels)


def test_a_plot_without_a_roof_has_the_reason_and_the_rows_that_are_not_drawn(
    page: Browser,
) -> None:
    assert page.find("#roofline figcaption").text == (
        "FLOP/s and arithmetic intensity by class of kernels"
    )
    notes = page.find("#roofline figure + .notes").text
    assert "no roof CPU peak unknown" in notes
    assert "rows not drawn" in notes


def test_ticks_of_the_roofline_are_powers_of_ten_on_a_phone(page: Browser) -> None:
    page.width(390)
    page.driver.refresh()
    page.wait("document.documentElement.dataset.ready === 'yes'")
    labels = page.run(
        "[...document.querySelectorAll('#roofline svg .role-axis-label text')]"
        ".filter(one => one.getAttribute('opacity') !== '0').map(one => one.textContent)"
    )
    assert len(labels) > 4
    assert all(re.fullmatch(r"10*[kMGT]?|0\.0*1", one) for one in labels)


def test_arrow_keys_show_the_values_of_a_chart(page: Browser) -> None:
    canvas = page.find("figure.chart .canvas")
    page.keys(canvas, "ARROW_RIGHT")
    assert page.run("document.getElementById('tip').textContent").startswith("work\n")
    assert page.run("!document.getElementById('tip').hidden")
    page.keys(canvas, "ESCAPE")
    assert page.run("document.getElementById('tip').hidden")


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_the_page_is_never_wider_than_the_view(page: Browser, width: int) -> None:
    page.width(width)
    page.wait(f"innerWidth === {width}")
    page.wait(f"document.documentElement.scrollWidth <= {width}")
    page.wait(f"document.querySelector('figure.chart svg').clientWidth <= {width}")


def test_a_long_word_of_a_finding_is_broken_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    finding = Finding("title", "effect", "module" * 30)
    empty = Data(Rows(pl.DataFrame()))
    shown = Page("advise", (Findings((finding,)), Notes((("", "note" * 40),))), empty)
    path = tmp_path / "page.html"
    path.write_text(html_file.render(shown))
    browser.width(390)
    browser.open(path)
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_legends_of_charts_fit_a_phone(page: Browser) -> None:
    page.width(390)
    page.driver.refresh()
    page.wait("document.documentElement.dataset.ready === 'yes'")
    ends = page.run(
        "[...document.querySelectorAll('#roofline svg .role-legend-label text')]"
        ".map(one => one.getBoundingClientRect().right)"
    )
    assert max(ends) <= 390


def test_dark_colours_follow_the_system(page: Browser) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(paper)
    page.emulate(prefers_color_scheme="dark")
    page.wait(f"{paper} !== {json.dumps(light)}")
    label = "getComputedStyle(document.querySelector('figure.chart svg text')).fill"
    page.wait(f"{label} === 'rgb(228, 233, 238)'")


def test_a_link_opens_a_folded_section(page: Browser) -> None:
    open_ = "document.querySelector('#operators > details').open"
    assert not page.run(open_)
    page.driver.execute_script("document.querySelector('nav a[href=\"#operators\"]').click()")
    page.wait(open_)
    page.wait("document.querySelector('#operators figure.chart svg').clientWidth > 300")


def test_the_link_of_a_finding_opens_its_own_evidence(page: Browser) -> None:
    link = page.find("#summary .findings a")
    target = page.run("arguments[0].hash", link)
    assert target == "#recommendation-host_bound"
    opened = f"document.querySelector('{target} > details').open"
    assert not page.run(opened)
    page.driver.execute_script("arguments[0].click()", link)
    page.wait(opened)
    top = f"document.querySelector('{target}').getBoundingClientRect().top"
    page.wait(f"{top} >= document.querySelector('nav').offsetHeight && {top} < innerHeight / 2")
    assert page.run(f"document.querySelectorAll('{target} tbody tr').length") > 12


def test_long_names_are_shown_whole_on_demand(browser: Browser, tmp_path: Path) -> None:
    trace = hostile("void " + "kernel_with_many_parameters<float, int>, " * 20)
    browser.open(trace.kernels().save(tmp_path / "long.html"))
    height = "document.querySelector('td.long').offsetHeight"
    cut = browser.run(height)
    button = browser.find("[aria-pressed]")
    browser.keys(button, "ENTER")
    assert button.get_attribute("aria-pressed") == "true"
    assert browser.run(height) > 2 * cut


def test_the_page_prints(page: Browser) -> None:
    printed = base64.b64decode(page.driver.print_page())
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 9


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_runs_nothing(browser: Browser, tmp_path: Path, text: str) -> None:
    browser.open(hostile(text).report().save(tmp_path / "report.html"))
    assert browser.run("document.querySelectorAll('img, #top script').length") == 0
    assert browser.console() == []


def test_tables_are_saved_as_csv_with_exact_values(
    page: Browser, alexnet: Trace, tmp_path: Path
) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    button = page.find("#layers .tools button[aria-label*=CSV]")
    page.driver.execute_script("arguments[0].click()", button)
    saved = tmp_path / "layers.csv"
    page.wait("true")
    for _ in range(100):
        if saved.exists():
            break
        page.driver.execute_async_script("setTimeout(arguments[0], 50)")
    with saved.open(newline="") as file:
        total = sum(int(row["time_ns"]) for row in csv.DictReader(file))
    # The page has means per step.
    assert total == alexnet.layers().frame["step_ns"].sum()


def test_the_timeline_shows_the_busiest_tracks_and_selects_by_keyboard(page: Browser) -> None:
    canvas = page.find("figure.timeline .canvas")
    figure = "document.querySelector('figure.timeline').dataset"
    page.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    assert _colours(page, canvas) > 6
    page.keys(canvas, "ARROW_DOWN")
    first = page.run(f"{figure}.selected")
    page.keys(canvas, "ARROW_DOWN", "ARROW_RIGHT")
    assert page.run(f"{figure}.selected") != first
    labels = page.run(
        "[...document.querySelectorAll('.timeline .details dt')].map(one => one.textContent)"
    )
    assert {"event", "track", "start", "duration"} <= set(labels)
    page.keys(canvas, "ESCAPE")
    assert page.run("document.querySelector('.timeline .details').children.length") == 0


def test_the_legend_of_the_timeline_has_the_classes_by_track(page: Browser) -> None:
    terms = page.run(
        "[...document.querySelectorAll('.timeline .legend dt')].map(one => one.textContent)"
    )
    assert terms == ["critical path", "idle", "class"]
    classes = page.run(
        "[...document.querySelectorAll('.timeline .legend dd')][2].textContent.trim()"
    )
    assert classes.startswith("convolution")


def test_moments_of_the_ruler_keep_the_zeros_of_whole_numbers(page: Browser) -> None:
    moments = page.run("[0, 500, 20_000_000, 1_500_000_000, 1_234_000].map(traceana.moment)")
    assert moments == ["0 ns", "500 ns", "20 ms", "1.5 s", "1.234 ms"]


@pytest.mark.parametrize("width", [1280, 800])
def test_all_sections_are_reached_without_scrolling_sideways(page: Browser, width: int) -> None:
    page.width(width)
    page.wait(f"innerWidth === {width}")
    assert page.run("(nav => nav.scrollWidth <= nav.clientWidth)(document.querySelector('nav'))")


def test_the_timeline_zooms_and_moves_by_keyboard(page: Browser) -> None:
    def view() -> list[int]:
        shown: str = page.run("document.querySelector('figure.timeline').dataset.view")
        return [int(number) for number in shown.split()]

    whole = view()
    canvas = page.find("figure.timeline .canvas")
    page.keys(canvas, "w")
    near = view()
    assert whole[0] < near[0] < near[1] < whole[1]
    page.keys(canvas, "d")
    assert view()[0] > near[0]
    page.keys(canvas, "HOME")
    assert view() == whole


def test_the_timeline_finds_events_by_their_layer(page: Browser, alexnet: Trace) -> None:
    search = page.find("figure.timeline input")
    page.keys(search, "conv2")
    note = page.find("figure.timeline .tools .remark").text
    count, _, events = note.replace(",", "").removesuffix(" events").partition(" of ")
    assert 0 < int(count) < int(events)
    page.keys(search, "ENTER")
    assert "conv2" in page.find("figure.timeline .details").text


def test_a_layer_of_a_table_is_a_link_to_its_events(page: Browser) -> None:
    link = page.find("#layers table.data a.event")
    name = link.text
    page.run("arguments[0].click()", link)
    assert page.run("location.hash") == "#timeline"
    assert page.run("document.querySelector('figure.timeline input').value") == name
    assert name in page.find("figure.timeline .details").text


def test_a_line_of_the_source_marks_its_work_and_back(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    text = "\n".join(f"    <b>line</b> {n}" for n in range(1, 60))
    (tmp_path / "source" / "model.py").write_text(text)
    listing = {"files": {"model.py": "model.py"}, "folder": "/w/"}
    (tmp_path / "source" / "files.json").write_text(json.dumps(listing))
    trace = training(source=str(tmp_path / "trace.json"))
    browser.open(report(trace).save(tmp_path / "report.html"))
    row = "document.querySelector('#source tr[data-line=\"model.py:41\"]')"
    assert browser.run(f"{row}.querySelector('td.code').textContent") == "    <b>line</b> 41"
    browser.run(f"{row}.querySelector('a.event').click()")
    figure = "document.querySelector('#timeline figure.timeline')"
    assert browser.run(f"{figure}.parentElement.querySelector('input[type=search]').value") == (
        "model.py:41"
    )
    link = f"[...{figure}.querySelectorAll('dl.details a')].at(-1)"
    assert browser.run(f"{link}.textContent") == "model.py:41"
    browser.run(f"{link}.click()")
    assert browser.run(f"{row}.classList.contains('marked')")
    assert browser.console() == []
