"""What runs inside the recorded process: it counts steps, records a window of them, and reports.

Standard library alone, and the Python of the script, whichever that is (3.9 and newer).
"""

from __future__ import annotations

import atexit
import os
import sys


def start() -> None:
    """Prepare this process as ``TRACEANA_RECORD`` says; nothing may go wrong in the script."""
    from .report import Report, guarded
    from .settings import Settings

    settings = Settings.of_environment()
    if settings is None:
        return
    report = Report(settings)
    from .install import install

    guarded(lambda: install(settings, report), report)
    os.register_at_fork(after_in_child=report.forget)
    atexit.register(_end, report)


def _end(report: object) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    report.close(error)  # type: ignore[attr-defined]
    report.exiting()  # type: ignore[attr-defined]
