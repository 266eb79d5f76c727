"""Pages pass axe-core, which checks the accessibility of markup, names and contrast."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.report.html.browser import Browser, needs_chromium
from tests.support.once import once
from tests.support.opened import opened
from traceana import compare, diff

pytestmark = [needs_chromium, pytest.mark.slow]

FIXTURES = Path(__file__).parents[3] / "fixtures"
AXE = "axe-core@4.14.1"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core, which npm fetches once for all workers."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which brings axe-core, is not installed")

    def fetch(folder: Path) -> None:
        folder.mkdir()
        subprocess.run([npm, "pack", AXE], cwd=folder, capture_output=True, timeout=120)

    folder = once(tmp_path_factory, "axe", fetch)
    packages = list(folder.glob("*.tgz"))
    if not packages:
        pytest.skip(f"npm did not fetch {AXE}")
    with tarfile.open(packages[0]) as package:
        script = package.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


def violations(browser: Browser, axe: str) -> list[str]:
    """Return the rules that the page violates, with an element each."""
    browser.driver.execute_script(axe)
    found: list[str] = browser.driver.execute_async_script(
        "axe.run(document).then(result => arguments[0](result.violations.map("
        "one => `${one.impact}: ${one.id}: ${one.nodes[0].html.slice(0, 200)}`)))"
    )
    return found


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_report_has_no_violation(
    browser: Browser, axe: str, tmp_path: Path, colours: str
) -> None:
    trace = opened(FIXTURES / "alexnet-cpu-ranges.json.gz")
    page = trace.report().save(tmp_path / "report.html")
    browser.emulate(prefers_color_scheme=colours)
    browser.open(page)
    assert violations(browser, axe) == []


def test_a_diff_has_no_violation(browser: Browser, axe: str, tmp_path: Path) -> None:
    names = ("alexnet-cpu-ranges.json.gz", "alexnet-cpu-stack.json.gz")
    found = diff(*(opened(FIXTURES / name) for name in names))
    browser.open(found.save(tmp_path / "diff.html"))
    assert violations(browser, axe) == []


def test_a_comparison_has_no_violation(browser: Browser, axe: str, tmp_path: Path) -> None:
    names = ("alexnet-cpu-ranges.json.gz", "alexnet-cpu-stack.json.gz")
    found = compare([opened(FIXTURES / name) for name in names], by="kernel")
    browser.open(found.save(tmp_path / "compare.html"))
    assert violations(browser, axe) == []
