"""Which program wrote a database: the one place that tells."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

EXPORT_FACTS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The table in which nsys says what exported the file: schema 3, schema 2."""

_EVENTS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")


class Dialect(Enum):
    """The programs whose tables have a reader."""

    NSYS = "nsys"
    NVPROF = "nvprof"


def dialect(tables: Mapping[str, tuple[str, ...]]) -> Dialect | None:
    """Return who wrote a database with ``tables`` (columns by table), None for any other program.

    nvprof and its Visual Profiler use CUPTI's names for their tables, as nsys does, but number
    their rows in a column ``_id_`` and keep their texts in ``StringTable``.
    """
    if any(
        name.startswith("CUPTI_ACTIVITY_KIND_") and "_id_" in columns
        for name, columns in tables.items()
    ):
        return Dialect.NVPROF
    exported = any(name in tables for name in EXPORT_FACTS)
    if exported or any("start" in tables.get(name, ()) for name in _EVENTS):
        return Dialect.NSYS
    return None
