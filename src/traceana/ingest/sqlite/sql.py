"""Text of SQL and of URIs, and SQLite's errors in our words."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from traceana.errors import CorruptError


def read_only_uri(path: Path) -> str:
    """Return the SQLite URI that opens ``path`` read-only, takes no lock and makes no file.

    Every byte outside the unreserved set is escaped: ``?``, ``#``, ``%`` and spaces of a path
    would otherwise end it or begin the options.
    """
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"


def identifier(name: str) -> str:
    """Return ``name`` quoted as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def damaged(path: Path, error: Exception) -> CorruptError:
    """Return the error that says that SQLite met damage in ``path``."""
    what = " ".join(str(error).split())
    return CorruptError(f"{path} is damaged ({what}): copy or export it again")
