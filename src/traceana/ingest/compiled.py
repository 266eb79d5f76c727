"""Whether this installation has the compiled scanner of events."""

from __future__ import annotations

from typing import Final

VERSION: Final = 3
"""``VERSION`` of ``scanner.c``: a library compiled before it was increased is not used."""


def _is_compiled() -> bool:
    try:
        from traceana.ingest import _scanner
    except ImportError:
        return False
    return getattr(_scanner, "VERSION", None) == VERSION


COMPILED: Final = _is_compiled()
