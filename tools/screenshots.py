"""The pictures of the documentation, of pages of recordings: ``python -m tools.screenshots``.

The pictures are made by Chromium, so they differ from machine to machine by its fonts; no test
compares them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.report.html.browser import Browser, chromium
from tools.tutorials import built

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images"
FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
_H100: Final = f"report {FIXTURES}/gpu/alexnet_b128.json.gz"
_H200: Final = f"{FIXTURES}/h200/alexnet-gpu"
SHOTS: Final = {
    "summary": (_H100, "top", 730),
    "timeline": (_H100, "timeline", 515),
    "layers": (_H100, "layers", 790),
    "idle": (f"report {FIXTURES}/gpu/alexnet_b128_wait20.json.gz", "timeline", 515),
    "frameworks": (
        f"compare {_H200}-fp32.json.gz {_H200}-jax-fp32.xplane.pb.gz"
        " --label pytorch --label jax --by layer",
        "top",
        560,
    ),
    "slow-rank": ("ranks job", "top", 560),
}
"""By file: a command, the section at the top of the picture, and its height in pixels."""
_WIDTH: Final = 1200


def main() -> None:
    """Write the pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        for name, (command, section, height) in SHOTS.items():
            page = Path(scratch) / f"{name}.html"
            words = [sys.executable, "-m", "traceana", *command.split(), "-o", str(page)]
            subprocess.run(words, cwd=built(), check=True)
            _picture(browser, page, name, section, height)


def _picture(browser: Browser, page: Path, name: str, section: str, height: int) -> None:
    """Write the picture ``name`` of a page from the top of ``section`` on."""
    metrics = {"width": _WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.open(page)
    nav = "(document.querySelector('nav')?.offsetHeight ?? 0)"
    top = f"document.getElementById(arguments[0]).getBoundingClientRect().top - {nav}"
    browser.driver.execute_script(f"scrollTo(0, {top})", section)
    browser.driver.execute_async_script(
        "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
    )
    (FOLDER / f"{name}.png").write_bytes(browser.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
