"""Runs inside the recorded process: counts steps, records a window of them, and reports.

Standard library only, on the script's own Python (3.9 and newer).
"""

from __future__ import annotations

import atexit
import os
import sys


def start() -> None:
    """Prepare this process by the settings in ``TRACEANA_RECORD``; never raises in the script."""
    from .process_report import Report, Settings, guarded

    settings = Settings.of_environment()
    if settings is None:
        return
    report = Report(settings)
    from .import_hooks import install

    guarded(lambda: install(settings, report), report)
    os.register_at_fork(after_in_child=report.forget)
    atexit.register(_end, report)


def _end(report: object) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    report.close(error)  # type: ignore[attr-defined]
    report.exiting()  # type: ignore[attr-defined]
