"""Ctrl-C: one line on stderr and the exit code 130, at whatever moment it comes.

Imports little, because an interrupt before the handler is installed is Python's own.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, Final, NoReturn

EXIT_CODE: Final = 130
_seen = False


def install() -> None:
    """Install the handler, unless the process ignores SIGINT as background jobs do."""
    sys.unraisablehook = _unraisable
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def seen() -> bool:
    """Return whether SIGINT has come.

    A library may turn the exception into another one, such as an ``ImportError``.
    """
    return _seen


def ignore() -> None:
    """Ignore SIGINT from here on: the exit code is decided."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end() -> NoReturn:
    """Print the line and end the process, without the hooks of modules that are half imported."""
    try:
        os.write(2, b"traceana: interrupted\n")
    finally:
        os._exit(EXIT_CODE)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    global _seen
    _seen = True
    raise KeyboardInterrupt


def _unraisable(found: Any) -> None:
    """End the process where the interrupt came in a callback, in which Python drops exceptions."""
    if found.exc_type is KeyboardInterrupt:
        end()
    sys.__unraisablehook__(found)
