"""The part of the recording inside the recorded process: step counting, profiling, reports.

It uses the standard library only, and runs on the script's own Python (3.9 or newer).
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # every Python process imports this module
    from typing import Any


def start() -> None:
    """Start the recording with the settings in ``TRACEANA_RECORD``; raises no error."""
    from .process_report import Report, Settings, guarded

    settings = Settings.of_environment()
    if settings is None:
        return
    report = Report(settings)
    guarded(lambda: _end_with(settings.parent), report)
    from .import_hooks import install

    guarded(lambda: install(settings, report), report)
    os.register_at_fork(after_in_child=report.reset)
    atexit.register(_end, report)


def _end_with(parent: int) -> None:
    """End this process by SIGTERM if ``parent``, its parent, is killed (Linux)."""
    if os.getppid() != parent or not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGTERM))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _end(report: Any) -> None:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    report.close(error)
    report.exiting()
    if isinstance(error, KeyboardInterrupt) and report.closed_at_exit:
        import signal

        # Python ends by the signal too, unless C code has run Python code since.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
