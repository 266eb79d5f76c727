"""The pictures of the documentation, of the page of a built trace: ``python -m tools.screenshots``.

The trace is :func:`tests.support.synthetic.cnn.cnn_training`: no recording of a GPU is in the
repository. The pictures are made by Chromium, so they differ from machine to machine by its fonts;
no test compares them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import traceana
from tests.report.html.browser import chromium
from tests.support.synthetic.cnn import cnn_training
from tests.support.synthetic.kineto import write_kineto

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images"
TRACE: Final = "built-vgg11-v100.json"
SHOTS: Final = {"summary": ("top", 730), "timeline": ("timeline", 515), "layers": ("layers", 790)}
"""By file: the section at the top of the picture, and its height in pixels."""
_WIDTH: Final = 1200


def main() -> None:
    """Write the pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        trace = traceana.open(write_kineto(cnn_training(), Path(scratch) / TRACE))
        page = trace.report().save(Path(scratch) / "report.html")
        for name, (section, height) in SHOTS.items():
            metrics = {"width": _WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.open(page)
            nav = "document.querySelector('nav').offsetHeight"
            top = f"document.getElementById(arguments[0]).getBoundingClientRect().top - {nav}"
            browser.driver.execute_script(f"scrollTo(0, {top})", section)
            browser.driver.execute_async_script(
                "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
            )
            (FOLDER / f"{name}.png").write_bytes(browser.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
