"""Standard input as a trace: ``-`` stands for it where a command takes a file.

Readers map and seek their files, so it is written to a temporary one, which has its name wherever
it is shown.
"""

from __future__ import annotations

import sys
from pathlib import Path

from traceana.errors import CannotWriteError, UnreadableError


def spooled() -> Path:
    """Return a file with the bytes of standard input; it is removed as the process ends.

    Raises ``UnreadableError`` if standard input is a terminal, closed, or cannot be read,
    ``CannotWriteError``.
    """
    import atexit
    import shutil
    import tempfile

    from traceana.files import STANDARD_INPUT, show_as

    if sys.stdin is None or sys.stdin.isatty():
        raise UnreadableError(
            "standard input is closed or a terminal: pipe the profiler's output into traceana"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="traceana-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        target = (folder / STANDARD_INPUT).open("wb")
    except OSError as error:
        raise CannotWriteError(f"no room for standard input: {error.strerror}") from error
    show_as(folder / STANDARD_INPUT, STANDARD_INPUT)
    with target:
        while block := _block():
            try:
                target.write(block)
            except OSError as error:
                raise CannotWriteError(f"no room for standard input: {error.strerror}") from error
    return folder / STANDARD_INPUT


def _block() -> bytes:
    try:
        return sys.stdin.buffer.read(1 << 20)
    except OSError as error:
        raise UnreadableError(f"standard input cannot be read: {error.strerror}") from error
