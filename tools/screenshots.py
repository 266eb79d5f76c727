"""The pictures of the documentation, of pages of built traces: ``python -m tools.screenshots``.

The traces are :func:`tests.support.synthetic.cnn.cnn_training` and those of the tutorials: no
recording of a GPU is in the repository. The pictures are made by Chromium, so they differ from
machine to machine by its fonts; no test compares them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import traceana
from tests.report.html.browser import Browser, chromium
from tests.support.synthetic.cnn import cnn_training
from tests.support.synthetic.kineto import write_kineto
from tools.tutorials import built

FOLDER: Final = Path(__file__).parents[1] / "docs" / "images"
FIXTURES: Final = Path(__file__).parents[1] / "fixtures"
TRACE: Final = "built-vgg11-v100.json"
SHOTS: Final = {"summary": ("top", 730), "timeline": ("timeline", 515), "layers": ("layers", 790)}
"""By file: the section at the top of the picture, and its height in pixels."""
TUTORIALS: Final = {
    "gpu-idles": ("report waiting.json", "timeline", 515),
    "copies": ("report copies.json", "timeline", 515),
    "slow-rank": ("ranks job", "top", 560),
    "nvprof-log": ("report old.log", "top", 560),
    "gate": ("diff waiting.json prefetched.json", "top", 560),
    "frameworks": (
        f"compare {FIXTURES}/alexnet-cpu-ranges.json.gz"
        f" {FIXTURES}/xplane/alexnet-cpu-keras.xplane.pb --label pytorch --label keras --by layer",
        "top",
        560,
    ),
}
"""By file: a command on the traces of the tutorials, the section of its page, and the height."""
_WIDTH: Final = 1200


def main() -> None:
    """Write the pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        browser.driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        trace = traceana.open(write_kineto(cnn_training(), Path(scratch) / TRACE))
        page = trace.report().save(Path(scratch) / "report.html")
        for name, (section, height) in SHOTS.items():
            _picture(browser, page, name, section, height)
        for name, (command, section, height) in TUTORIALS.items():
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
