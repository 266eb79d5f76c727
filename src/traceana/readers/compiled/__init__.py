"""The compiled scanner of events, and whether this installation has it."""

from __future__ import annotations

from typing import Final

VERSION: Final = 3
"""``VERSION`` of ``module.c``: a library compiled before it was increased is not used."""


def _is_compiled() -> bool:
    try:
        from traceana.readers.compiled import _scanner
    except ImportError:
        return False
    return getattr(_scanner, "VERSION", None) == VERSION


COMPILED: Final = _is_compiled()
