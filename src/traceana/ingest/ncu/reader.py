"""Tables of Nsight Compute to the table of counters."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from traceana.ingest.demangle import readable
from traceana.ingest.ncu.metrics import combined
from traceana.ingest.ncu.table import by_launch, parsed
from traceana.ingest.progress import Progress
from traceana.ingest.source import ByteSource
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.schema import COUNTERS

_NUMBERS: Final = {
    # column of `counters`: of the file
    "launch": "ID",
    "process": "Process ID",
    "device": "Device",
    "context": "Context",
    "stream": "Stream",
}
_SIZES: Final = {"grid": "Grid Size", "block": "Block Size"}
_THREE: Final = r"\(\s*(\d+),\s*(\d+),\s*(\d+)\s*\)"
_MOST_UNREAD: Final = 50


def read(path: Path, progress: Progress) -> Trace:
    """Read what ``ncu --csv`` printed, page ``raw`` or ``details``, kernel by kernel.

    The trace holds counters and nothing else: Nsight Compute runs each kernel several times, alone,
    and tells no moments. ``meta.events`` counts launches. Values are as exact as they were printed:
    ``--print-units base`` prints them whole. Raises ``CorruptError`` and ``UnreadableError``.
    """
    source = ByteSource(path, progress)
    cells = parsed(path, b"".join(source.blocks()))
    launches, found, unread = by_launch(cells)
    values = launches.with_columns(combined(found))
    numbers = [
        pl.col(source).cast(COUNTERS[column], strict=False).alias(column)
        for column, source in _NUMBERS.items()
        if source in launches.columns
    ]
    names = launches["Kernel Name"]
    plain = readable(names.drop_nulls().unique())
    table = values.select(
        *numbers,
        names.replace(plain).alias("name"),
        *(size for what in _SIZES for size in _three(what, launches.columns)),
        *(column for column in COUNTERS if column in values.columns),
    )
    ledger = Ledger()
    whole = table.filter(pl.col("launch").is_not_null() & pl.col("name").is_not_null())
    ledger.add("malformed", table.height - whole.height, table="counters")
    ledger.add("truncated", int(source.truncated), table="counters", kept=True)
    meta = TraceMeta(
        source=str(path),
        format="ncu",
        producer="NVIDIA Nsight Compute",
        truncated=source.truncated,
        bytes_read=source.bytes_read,
        bytes_total=source.bytes_total,
        events=table.height,
        properties={"metrics_not_read": unread[:_MOST_UNREAD]} if unread else {},
    )
    measured = whole.select(pl.col("name").unique(maintain_order=True))
    return Trace(meta, {"counters": whole, "names": measured, "ledger": ledger.frame()})


def _three(what: str, present: list[str]) -> list[pl.Expr]:
    if _SIZES[what] not in present:
        return []
    return [
        pl.col(_SIZES[what])
        .str.extract(_THREE, group)
        .cast(pl.Int32, strict=False)
        .alias(f"{what}_{axis}")
        for group, axis in enumerate("xyz", 1)
    ]
