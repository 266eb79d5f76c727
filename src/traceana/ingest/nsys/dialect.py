"""Which program wrote an SQLite database: the one place that tells."""

from __future__ import annotations

from typing import Final

from traceana.errors import ForeignDatabaseError, UnknownFormatError
from traceana.ingest.nsys.database import Database

EXPORT_FACTS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The table in which nsys says what exported the file: schema 3, schema 2."""

_EVENTS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")


def require_nsys(database: Database) -> None:
    """Return when ``database`` is an export of Nsight Systems.

    nvprof and its Visual Profiler use CUPTI's names for their tables too, but number their rows in
    a column ``_id_`` and keep their texts in ``StringTable``. Raises ``UnknownFormatError`` on
    those and ``ForeignDatabaseError`` on a database of any other program.
    """
    tables = database.tables
    if any(
        name.startswith("CUPTI_ACTIVITY_KIND_") and "_id_" in columns
        for name, columns in tables.items()
    ):
        raise UnknownFormatError(
            f"{database.path} is a database of nvprof; nvprof databases are not read yet: "
            "record the program with nsys or torch.profiler"
        )
    if any(name in tables for name in EXPORT_FACTS):
        return
    if any("start" in tables.get(name, ()) for name in _EVENTS):
        return
    raise ForeignDatabaseError(
        f"{database.path} is an SQLite database that no profiler wrote: "
        "give the file of 'nsys export --type sqlite'"
    )
