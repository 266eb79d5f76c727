"""Where exports of reports are kept, so that each report is exported once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from traceana.errors import CannotWriteError


def folder() -> Path:
    """Return the folder of the exports, by the XDG Base Directory Specification."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"
    return home / "traceana" / "nsys"


def kept(source: Path, make: Callable[[Path], None]) -> Path:
    """Return the export of ``source``, which ``make`` writes to the path it is given.

    It is made when there is none of a file of that path, size and time of change. It appears whole
    or not at all; exports of what the file was before are deleted. Raises ``CannotWriteError``.
    """
    facts = source.stat()
    of_path = _digest(os.fsencode(source.resolve()))
    of_content = _digest(f"{facts.st_size} {facts.st_mtime_ns}".encode())
    target = folder() / f"{of_path}-{of_content}.sqlite"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as scratch:
            made = Path(scratch) / "export.sqlite"
            make(made)
            made.replace(target)
        for old in target.parent.glob(f"{of_path}-*.sqlite"):
            if old != target:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise CannotWriteError(
            f"the export of {source} cannot be kept in {target.parent} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder with room"
        ) from error
    return target


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
