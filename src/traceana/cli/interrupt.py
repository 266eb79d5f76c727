"""Ctrl-C, SIGTERM and SIGHUP: one line on stderr and the exit code 130, at whatever moment.

Temporary files are removed before the process ends.

Imports little, because an interrupt before the handler is installed is Python's own.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
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
_CLEANING_S: Final = 5
"""Seconds after the first signal in which others are passed over: temporary files are removed."""
_AGAIN_S: Final = 0.1
"""Seconds until the interrupt comes again where a library has dropped it."""
_HAS_TIMER: Final = hasattr(signal, "setitimer")
_seen = 0.0
"""The monotonic time of the first signal, 0 before it."""
_said = False
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

    A library may turn the exception into another one, such as an ``ImportError``, or into an exit.
    """
    return _seen > 0


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


def say() -> None:
    """Print the line."""
    global _said
    _said = True
    if sys.stderr is not None:
        sys.stderr.write("traceana: interrupted\n")
        sys.stderr.flush()


def end() -> NoReturn:
    """Print the line, unless it has been, and end the process, without the hooks of modules that
    are half imported."""
    try:
        if not _said:
            say()
    finally:
        os._exit(EXIT_CODE)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt`` at the first signal, and again where it was dropped.

    A bare ``except`` of a library drops it, as those around optional imports do. Ends the process
    at a signal while cleaning takes long.
    """
    global _seen
    now = time.monotonic()
    if not _seen:
        _seen = now
        if "logging" in sys.modules:
            # A server logs the exception with its traceback.
            sys.modules["logging"].disable()
        if _HAS_TIMER:
            signal.signal(signal.SIGALRM, _interrupt)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)
    elif _is_handled():
        if number in _DEFAULTS and now - _seen > _CLEANING_S:
            end()
        return
    raise KeyboardInterrupt


def _is_handled() -> bool:
    """Return whether code runs that an interrupt has begun: of ``finally``, or at a ``with``'s
    end."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _unraisable(unraisable: Any) -> None:
    """Pass over an interrupt in a callback, in which Python drops exceptions: it comes again."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
    elif not _HAS_TIMER:
        end()
