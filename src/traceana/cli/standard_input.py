"""Standard input as a trace: ``-`` stands for it where a command takes a file.

Readers map and seek their files, so it is written to a temporary one, which has its name wherever
it is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import typer

from traceana.errors import CannotWriteError, UnreadableError

NAME: Final = "standard input"
_DASH: Final = Path("-")


def replaced(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``arguments`` with the file of standard input in place of ``-``.

    Raises ``typer.BadParameter`` where it is given twice, and the errors of :func:`spooled`.
    """
    given = [value if isinstance(value, list) else [value] for value in arguments.values()]
    count = sum(one == _DASH for values in given for one in values if isinstance(one, Path))
    if not count:
        return dict(arguments)
    if count > 1:
        raise typer.BadParameter("standard input can be read once", param_hint="-")
    path = spooled()

    def of(one: Any) -> Any:
        return path if isinstance(one, Path) and one == _DASH else one

    return {
        name: [of(one) for one in value] if isinstance(value, list) else of(value)
        for name, value in arguments.items()
    }


def spooled() -> Path:
    """Return a file with the bytes of standard input; it is removed as the process ends.

    Raises ``UnreadableError`` if standard input is a terminal, closed, or cannot be read,
    ``CannotWriteError``.
    """
    import atexit
    import shutil
    import tempfile

    if sys.stdin is None or sys.stdin.isatty():
        raise UnreadableError(
            "standard input is closed or a terminal: pipe the profiler's output into traceana"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix="traceana-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        target = (folder / NAME).open("wb")
    except OSError as error:
        raise CannotWriteError(f"no room for standard input: {error.strerror}") from error
    from traceana.files import show_as

    show_as(folder / NAME, NAME)
    with target:
        while block := _block():
            try:
                target.write(block)
            except OSError as error:
                raise CannotWriteError(f"no room for standard input: {error.strerror}") from error
    return folder / NAME


def _block() -> bytes:
    try:
        return sys.stdin.buffer.read(1 << 20)
    except OSError as error:
        raise UnreadableError(f"standard input cannot be read: {error.strerror}") from error
