"""The site is built without warnings, fetches nothing from other hosts, and is searched offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.report.html.browser import Browser, chromium, needs_chromium
from tools.site import addresses

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Those of kernels, too, which --strict does not count.
    assert "WARNING" not in done.stdout + done.stderr, done.stderr
    return folder


def requested(browser: Browser) -> Any:
    """Return the addresses outside of the site's folder that the page asked for."""
    return browser.run(
        "performance.getEntriesByType('resource').map(entry => entry.name)"
        ".filter(name => !name.startsWith('file:') && !name.startsWith('data:'))"
    )


@pytest.mark.exhaustive
@needs_chromium
def test_the_site_is_searched_from_a_folder(site: Path) -> None:
    with chromium() as browser:
        browser.driver.get((site / "index.html").as_uri())
        browser.wait("document.querySelector('.md-search__input') !== null")
        browser.run("document.getElementById('__search').click()")
        browser.run(
            "(field => { field.focus(); field.value = 'Winograd';"
            " field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})) })"
            "(document.querySelector('.md-search__input'))"
        )
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        assert requested(browser) == []
        assert browser.console() == []


@pytest.mark.exhaustive
def test_no_page_fetches_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 30
    fetching = ('<script src="http', '<img src="http', 'rel="stylesheet" href="http', "unpkg.com")
    found = [
        (page.name, word)
        for page in pages
        for word in fetching
        if word in page.read_text(encoding="utf-8")
    ]
    assert found == []


def test_a_scheme_is_no_address() -> None:
    text = "URLs: s3://, https://. | [Vega](https://vega.github.io/vega-lite/), see http://a.org/b."
    assert addresses(text) == ["https://vega.github.io/vega-lite/", "http://a.org/b"]


def test_every_page_of_the_documentation_has_a_place_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    pages = sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "docs").rglob("*.ipynb"))
    missing = [
        page.name for page in pages if str(page.relative_to(ROOT / "docs")) not in navigation
    ]
    assert missing == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("notebook", "shown"),
    [
        ("first-look", ["97.5 % of step time", "conv2d"]),
        ("two-runs", ["input-bound → transfer-bound", "(idle)", "26.79"]),
        ("kernels-and-flops", ["implicit_gemm", "17103608", "conv2d_3"]),
    ],
)
def test_a_notebook_is_executed_into_its_page(site: Path, notebook: str, shown: list[str]) -> None:
    page = (site / "notebooks" / f"{notebook}.html").read_text(encoding="utf-8")
    assert [text for text in shown if text not in page] == []


def test_notebooks_are_stored_without_outputs() -> None:
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 3
    for notebook in notebooks:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
