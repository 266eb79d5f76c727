"""Ctrl-C, SIGTERM and SIGHUP: one line on stderr and the exit code 130, at whatever moment.

Temporary files are removed before the process ends.

Imports little, because an interrupt before the handler is installed is Python's own.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, Final, NoReturn

EXIT_CODE: Final = 130
_DEFAULTS: Final = {
    signal.SIGINT: signal.default_int_handler,
    **{
        getattr(signal, name): signal.SIG_DFL
        for name in ("SIGTERM", "SIGHUP")
        if hasattr(signal, name)
    },
}
"""The signals, and what Python does with each."""
_seen = False
_last = 0


def install() -> None:
    """Install the handler, except for signals that the process ignores as background jobs do.

    ``ranks`` keeps all cores busy for minutes: it ends by Ctrl-C also where a script has started it
    with ``&``, whose shell has it ignore SIGINT and would leave it behind.
    """
    sys.unraisablehook = _unraisable
    ends_with_script = "ranks" in sys.argv[1:3]
    for number, default in _DEFAULTS.items():
        is_default = signal.getsignal(number) is default
        if is_default or (number == signal.SIGINT and ends_with_script):
            signal.signal(number, _interrupt)


def seen() -> bool:
    """Return whether one of the signals has come.

    A library may turn the exception into another one, such as an ``ImportError``.
    """
    return _seen


def ignore() -> None:
    """Ignore the signals from here on: the exit code is decided."""
    for number in _DEFAULTS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.SIG_IGN)


def end_by_signal(number: int) -> int:
    """Let the process end by the signal ``number`` when its output is written.

    Return the status that a shell shows for that.
    """
    global _last
    _last = number
    return 128 + number


def raise_last() -> None:
    """End the process by the signal of :func:`end_by_signal`, if any, without a core file."""
    if not _last:
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    if _last != signal.SIGKILL:
        signal.signal(_last, signal.SIG_DFL)
    os.kill(os.getpid(), _last)


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


def _unraisable(unraisable: Any) -> None:
    """End the process where the interrupt came in a callback, in which Python drops exceptions."""
    if unraisable.exc_type is KeyboardInterrupt:
        end()
    sys.__unraisablehook__(unraisable)
