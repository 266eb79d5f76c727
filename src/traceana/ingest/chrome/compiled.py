"""Whether this installation has the compiled scanner of events."""

from __future__ import annotations

from typing import Final


def _is_compiled() -> bool:
    try:
        from traceana.ingest.chrome import _scanner  # noqa: F401
    except ImportError:
        return False
    return True


COMPILED: Final = _is_compiled()
