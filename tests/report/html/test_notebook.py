"""A notebook shows a result's page in a frame, and without scripts an SVG image and the tables."""

from __future__ import annotations

import base64
import builtins
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from markupsafe import escape

from tests.report.html.browser import Browser, needs_chromium
from tests.report.html.test_document import HARMLESS, HOSTILE, hostile
from tests.support.opened import opened
from tests.support.traces import TraceBuilder, cnn_steps
from traceana import Trace, compare, diff
from traceana.errors import how_to_install
from traceana.report.result import CommandResult

FIXTURES = Path(__file__).parents[3] / "fixtures"
FIXTURE = FIXTURES / "alexnet-cpu-ranges.json.gz"
OTHER = FIXTURES / "alexnet-cpu-stack.json.gz"


def shown(result: CommandResult) -> str:
    return result._repr_html_()


def svg(text: str) -> str:
    """Return the text of the SVG images of a fragment."""
    (image,) = re.findall(r'src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"', text)
    tree = ElementTree.fromstring(base64.b64decode(image))
    return " ".join(
        "".join(one.itertext()) for one in tree.iter("{http://www.w3.org/2000/svg}text")
    )


def framed(text: str) -> str:
    """Return the document of a fragment's frame."""
    (document,) = re.findall("srcdoc='([^']*)'", text)
    return unescape(document)


def test_a_result_is_its_page_in_a_frame_beside_an_image_and_its_table() -> None:
    text = shown(cnn_steps().kernels())
    assert "Kernels with most time" in framed(text)
    outside = re.sub("srcdoc='[^']*'", "", text)
    assert "Kernels with most time" in svg(outside)
    assert ">scudnn</td>" in outside
    # The only script sets the height of the frame; it is the same for all results.
    (script,) = re.findall("<script>(.*?)</script>", outside)
    assert script in shown(cnn_steps().layers())


def test_a_result_without_pictures_has_no_frame() -> None:
    text = shown(cnn_steps().info())
    assert "Tesla V100" in text
    assert not re.search("<script|<iframe|<img", text)


def test_a_result_has_no_library_of_charts() -> None:
    trace = opened(FIXTURE)
    for result in (trace.kernels(), trace.idle(), trace.critical(), trace.flops(), trace.layers()):
        assert len(shown(result)) < 180_000


def test_the_text_of_a_result_is_returned_in_a_notebook_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = cnn_steps().report()
    text = repr(result)
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", shell, raising=False)
    assert repr(result) == text
    assert "GPU time by class" in text


@pytest.mark.slow
def test_a_report_is_its_page_in_a_sandboxed_frame() -> None:
    text = shown(cnn_steps().report())
    assert 'sandbox="allow-scripts allow-downloads"' in text
    assert framed(text).startswith("<!doctype html>")
    assert "default-src 'none'" in unescape(framed(text))
    assert "GPU time by class" in svg(text)


def elements(of: str) -> list[str]:
    return re.findall(r"<(/?[a-zA-Z!][\w-]*)", of)


@pytest.mark.slow
def test_text_of_a_trace_adds_no_element() -> None:
    harmless = [f"{number}{HARMLESS[1:]}" for number in range(len(HOSTILE))]
    assert elements(shown(hostile(*HOSTILE).report())) == elements(
        shown(hostile(*harmless).report())
    )


def test_what_is_not_installed_is_left_out_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    text = shown(cnn_steps().kernels())
    assert "<iframe" not in text
    assert "<img" not in text
    assert text.count(escape(how_to_install("html"))) == 1
    assert ">scudnn</td>" in text


def written(result: CommandResult, path: Path) -> Path:
    path.write_text(f"<!doctype html><meta charset=utf-8><body>{shown(result)}")
    return path


def open_frame(browser: Browser, path: Path) -> None:
    """Open ``path``, and continue inside its frame when its pictures are drawn."""
    browser.driver.get(path.as_uri())
    assert not browser.find("img").is_displayed()
    browser.driver.switch_to.frame(browser.find("iframe"))
    browser.wait("document.documentElement.dataset.ready === 'yes'")


@pytest.mark.slow
@needs_chromium
def test_the_pictures_of_the_frame_are_drawn(browser: Browser, tmp_path: Path) -> None:
    open_frame(browser, written(opened(FIXTURE).report(), tmp_path / "notebook.html"))
    figures = browser.run("document.querySelectorAll('figure').length")
    assert figures > 5
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") == figures
    assert browser.console() == []


def copies_and_memory() -> Trace:
    builder = TraceBuilder()
    builder.row("devices", device=0, name="Tesla V100-SXM2-16GB", vendor="NVIDIA")
    builder.copy("HtoD", 0, 1_000_000, bytes=4_000_000, source_memory="pinned")
    for time, size in ((0, 4_000_000), (500_000, 500), (900_000, -500)):
        builder.row("memory", device=0, process=1, address=size % 7, time=time, bytes=size)
    return builder.build()


RESULTS: dict[str, Callable[[], CommandResult]] = {
    "kernels": lambda: opened(FIXTURE).kernels(),
    "layers": lambda: opened(FIXTURE).layers(),
    "types": lambda: opened(FIXTURE).layers(by="type"),
    "idle": lambda: opened(FIXTURE).idle(),
    "critical": lambda: opened(FIXTURE).critical(),
    "flops": lambda: opened(FIXTURE).flops(),
    "roofline": lambda: opened(FIXTURE).flops(by="class"),
    "transfers": lambda: copies_and_memory().transfers(),
    "memory": lambda: copies_and_memory().memory(),
    "compare": lambda: compare([opened(FIXTURE), opened(OTHER)]),
}


@pytest.mark.exhaustive(after=3)
@needs_chromium
@pytest.mark.parametrize("name", RESULTS)
def test_every_result_has_the_pictures_of_its_page(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    result = RESULTS[name]()
    titles = "[...document.querySelectorAll('figcaption')].map(one => one.textContent)"
    browser.open(result.save(tmp_path / "page.html"))
    of_page = browser.run(titles)
    open_frame(browser, written(result, tmp_path / "notebook.html"))
    assert browser.run(titles) == of_page
    figures = browser.run("document.querySelectorAll('figure[data-drawn=yes]').length")
    assert figures == len(of_page) > 0
    assert browser.console() == []


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_chromium
def test_a_frame_saves_a_table_and_reaches_no_other_page(browser: Browser, tmp_path: Path) -> None:
    open_frame(browser, written(opened(FIXTURE).report(), tmp_path / "notebook.html"))
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    button = browser.find("#kernels .tools button[aria-label*=CSV]")
    browser.driver.execute_script("arguments[0].click()", button)
    saved = tmp_path / "kernels.csv"
    for _ in range(100):
        # The file is there before its content.
        if saved.exists() and saved.read_text():
            break
        browser.driver.execute_async_script("setTimeout(arguments[0], 50)")
    assert saved.read_text().startswith("name,")
    assert browser.run("window.origin") == "null"


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_chromium
def test_a_frame_is_as_high_as_its_page(browser: Browser, tmp_path: Path) -> None:
    open_frame(browser, written(opened(FIXTURE).report(), tmp_path / "notebook.html"))
    inside = "document.documentElement.scrollHeight - innerHeight"
    browser.wait(f"{inside} <= 0")
    within = (
        "[...document.querySelectorAll('.scroll')].map(one => one.scrollHeight - one.clientHeight)"
    )
    assert max(browser.run(within)) <= 1


@needs_chromium
def test_a_diff_is_its_page_in_a_frame(browser: Browser, tmp_path: Path) -> None:
    found = diff(opened(FIXTURE), opened(OTHER))
    open_frame(browser, written(found, tmp_path / "notebook.html"))
    assert browser.run("document.querySelectorAll('figure[data-drawn=yes]').length") >= 2


@pytest.mark.exhaustive
@pytest.mark.slow
@needs_chromium
def test_without_scripts_the_image_and_the_tables_are_shown(
    browser: Browser, tmp_path: Path
) -> None:
    path = written(opened(FIXTURE).report(), tmp_path / "notebook.html")
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.driver.get(path.as_uri())
        assert browser.find("img").is_displayed()
        assert browser.find("img").size["height"] > 500
        assert browser.find("table.data").is_displayed()
        assert not browser.find("iframe").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
