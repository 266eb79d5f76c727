"""nvprof and the Visual Profiler: their databases (.nvvp, .nvprof, .prof, .sql)."""

from __future__ import annotations

from typing import Final

from traceana.readers.format import Confidence, Format, Head, known


def _is_database(head: Head) -> Confidence:
    """Tables have CUPTI's names, as in nsys's exports, but number their rows in ``_id_``."""
    return known(
        any(
            name.startswith("CUPTI_ACTIVITY_KIND_") and "_id_" in columns
            for name, columns in head.tables.items()
        )
    )


FORMATS: Final = (Format("nvprof", _is_database, "nvprof.reader:read_database", is_database=True),)
