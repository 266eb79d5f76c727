"""Pages of recorded traces, opened in headless Chromium: ``python -m benchmarks.pages TRACE…``.

A row per trace, and per pair with ``--pair A B``: CPU time of writing the page, as a multiple of
that of the terminal's report; megabytes; pictures; seconds from opening the file to the last
picture; seconds until a zoom of the timeline is drawn; messages of the console. The results stand
in ``docs/performance.md``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import measure
from benchmarks.outcome import table
from tests.report.html.browser import Browser, chromium

_TRACEANA: Final = (sys.executable, "-m", "traceana")
_ZOOM: Final = """
const [canvas, done] = [document.querySelector('figure.timeline .canvas'), arguments[0]];
if (!canvas) done(null);
const begin = performance.now();
canvas.dispatchEvent(new KeyboardEvent('keydown', {key: 'w'}));
requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - begin) / 1000)));
"""


def row(browser: Browser, command: str, inputs: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Return what the page of ``command`` on ``inputs`` cost, and what the browser said of it."""
    page = folder / "page.html"
    written = [*_TRACEANA, command, *map(str, inputs)]
    terminal = measure.run(written)
    whole = measure.run([*written, "-o", str(page), "--force"])
    begun = time.perf_counter()
    browser.open(page)
    opened = time.perf_counter() - begun
    zoomed = browser.driver.execute_async_script(_ZOOM)
    count = "document.querySelectorAll(arguments[0]).length"
    figures = browser.run(count, "section > figure")
    drawn = browser.run(count, "section > figure[data-drawn=yes]")
    return {
        "input": " ".join(one.name for one in inputs)[:60],
        "CPU s": f"{_cpu(whole):.1f}",
        "times the terminal's": f"{_cpu(whole) / _cpu(terminal):.2f}",
        "peak MB": f"{whole.peak_bytes / 1e6:.0f}",
        "MB": f"{page.stat().st_size / 1e6:.1f}",
        "pictures": f"{drawn} of {figures}",
        "open s": f"{opened:.2f}",
        "zoom s": "" if zoomed is None else f"{zoomed:.2f}",
        "console": "; ".join(browser.console()),
    }


def _cpu(run: measure.Run) -> float:
    return run.user_s + run.system_s


def main() -> None:
    """Write and open the pages of the traces of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--pair", type=Path, nargs=2, action="append", default=[])
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        for command, inputs in (
            *(("report", [trace.resolve()]) for trace in options.traces),
            *(("diff", [one.resolve() for one in pair]) for pair in options.pair),
        ):
            try:
                rows.append(row(browser, command, inputs, Path(scratch)))
            except measure.FailedError as error:
                rows.append({"input": inputs[0].name, "console": str(error)})
            print(rows[-1], flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
