"""MXNet's ``profile.json`` to the canonical tables.

Its processes are no processes: one stands for each device, on which operators ran (``cpu/0``), one
for each kind of events (``operator``, ``MXNET_C_API``) and for each domain of the program's own
frames and tasks. Operators are there twice, on their device and among ``operator``. Thread numbers
are hashes. Shapes and layers are not recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.ingest.chrome.halves import spans
from traceana.ingest.chrome.reader import whole_numbers
from traceana.ingest.integrity import screen
from traceana.ingest.kineto.stream import StreamEnd, ledger_of, read_stream
from traceana.ingest.mxnet.decode import DECODER, HALVES, Columns
from traceana.ingest.progress import Progress
from traceana.ingest.rebase import rebase
from traceana.ingest.source import ByteSource
from traceana.trace import Trace, TraceMeta

_DEVICE: Final = r"^(?:cpu|gpu)/\d+$|^cpu (?:pinned|shared)/"
_OPERATOR: Final = "operator"
_API: Final = "MXNET_C_API"
_PROCESS: Final = 0
"""All rows are of one process, whose number the file does not tell."""


def read(path: Path, progress: Progress) -> Trace:
    """Read a profile of MXNet, plain or gzip.

    A file that ends in the middle is read up to there; ``meta.truncated`` says so. Raises
    ``NotATraceError`` on JSON without events and ``CorruptError`` when the file breaks off before
    the first.
    """
    source = ByteSource(path, progress)
    columns = Columns()
    end = read_stream(source, DECODER, columns.take)
    if columns.left_out.get(("malformed", ""), 0) == columns.events:
        raise NotATraceError(
            f"{path} is JSON, and nothing in it is a trace event: "
            "give the file that mxnet.profiler dumped"
        )
    return _trace(columns, source, end)


def _trace(columns: Columns, source: ByteSource, end: StreamEnd) -> Trace:
    ledger = ledger_of(columns, source, end)
    halves = pl.concat([pl.DataFrame(schema=HALVES), *columns.halves])
    found = spans(halves)
    ledger.add("range_end", found.height, table="ranges")
    ledger.add("malformed", halves.height - 2 * found.height, table="ranges", detail="no pair")
    of_device = [pid for pid, name in columns.processes.items() if _is_device(name)]
    on_device = pl.col("pid").cast(pl.String).is_in(of_device).fill_null(value=False)
    is_operator = pl.col("category") == _OPERATOR
    placed = found.with_columns(
        pl.lit(_PROCESS, pl.Int64).alias("process"), whole_numbers(found["tid"]).alias("thread")
    )
    again = placed.filter(is_operator & ~on_device)
    ledger.add(
        "repeated",
        again.height,
        table="ops",
        time_ns=int(again["duration"].sum()),
        detail="operators as tasks",
    )
    timed = {
        "ops": placed.filter(is_operator & on_device).select(
            "name", "process", "thread", "start", "duration"
        ),
        "ranges": placed.filter(~is_operator.fill_null(value=False)).select(
            pl.col("name").alias("text"),
            pl.when(pl.col("category") == _API)
            .then(pl.lit("runtime"))
            .otherwise(pl.lit("annotation"))
            .alias("kind"),
            "process",
            "thread",
            "start",
            "duration",
        ),
    }
    tables, first_ns = rebase({name: screen(frame, name, ledger) for name, frame in timed.items()})
    tables["ledger"] = ledger.frame()
    return Trace(
        TraceMeta(
            source=str(source.path),
            format="mxnet",
            producer="MXNet profiler",
            framework="MXNet",
            epoch_ns=first_ns,
            truncated=source.truncated,
            bytes_read=source.bytes_read - (0 if source.compressed else end.cut),
            bytes_total=source.bytes_total,
            events=columns.events + int(end.cut > 0),
        ),
        tables,
    )


def _is_device(name: str) -> bool:
    return bool(pl.Series([name]).str.contains(_DEVICE).item())
