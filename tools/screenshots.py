"""The pictures of the documentation, of the page of a fixture: ``python -m tools.screenshots``.

They are made by Chromium, so they differ from machine to machine by its fonts; no test compares
them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import traceana
from tests.report.html.browser import chromium

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "images"
FIXTURE: Final = ROOT / "fixtures" / "alexnet-cpu-ranges.json.gz"
SHOTS: Final = {"summary": ("top", 700), "timeline": ("timeline", 520), "layers": ("layers", 460)}
"""By file: the section at the top of the picture, and its height in pixels."""
_WIDTH: Final = 1200


def main() -> None:
    """Write the pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        page = traceana.open(FIXTURE).report().save(Path(scratch) / "report.html")
        for name, (section, height) in SHOTS.items():
            metrics = {"width": _WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.open(page)
            top = "document.getElementById(arguments[0]).getBoundingClientRect().top - 44"
            browser.driver.execute_script(f"scrollTo(0, {top})", section)
            browser.driver.execute_async_script(
                "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
            )
            (FOLDER / f"{name}.png").write_bytes(browser.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
