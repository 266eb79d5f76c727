"""Reads MXNet's ``profile.json`` into the canonical tables.

MXNet writes one process per device (``cpu/0``), one per kind of event (``operator``,
``MXNET_C_API``), and one per domain of the program's own frames and tasks. Each operator has two
events, in the process of its device and in ``operator``. Thread numbers are hashes. Shapes and
layers are not recorded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from traceana.readers.chrome.reader import BEGINS_AND_ENDS, read_columns, spans, whole_numbers
from traceana.readers.chrome.stream import extent, ledger_of
from traceana.readers.integrity import rebase, screen
from traceana.readers.source import Progress
from traceana.trace import Tables, Trace, TraceMeta

_ENDS: Final = {"B": "E", "b": "e", "(": ")"}
"""Phases of operators and events; of tasks, which repeat the operators; of frames."""
_DEVICE: Final = re.compile(r"(?:cpu|gpu)/\d+$|cpu (?:pinned|shared)/")
_OPERATOR: Final = "operator"
_API: Final = "MXNET_C_API"
_PROCESS: Final = 0
"""The process of every row; its number is not recorded."""


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a profile of MXNet, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    JSON without events and ``CorruptError`` where the file ends before the first.
    """
    columns, source, end = read_columns(path, progress, _ENDS, "mxnet.profiler dumped")
    ledger = ledger_of(columns, source, end)
    complete = sum(frame.height for frame in columns.complete)
    ledger.add("unknown_category", complete, table="-", detail="X")
    begins_and_ends = pl.concat([pl.DataFrame(schema=BEGINS_AND_ENDS), *columns.begins_and_ends])
    paired = spans(begins_and_ends)
    ledger.add("range_end", paired.height, table="ranges")
    unpaired = begins_and_ends.height - 2 * paired.height
    ledger.add("malformed", unpaired, table="ranges", detail="unpaired")
    devices = [
        pid
        for (kind, pid, _), name in columns.labels.items()
        if kind == "process_name" and _DEVICE.match(name)
    ]
    on_device = pl.col("pid").cast(pl.String).is_in(devices).fill_null(value=False)
    is_operator = pl.col("category") == _OPERATOR
    numbered = paired.with_columns(
        pl.lit(_PROCESS, pl.Int64).alias("process"),
        whole_numbers(paired["tid"]).alias("thread"),
    )
    repeated = numbered.filter(is_operator & ~on_device)
    ledger.add(
        "repeated",
        repeated.height,
        table="ops",
        time_ns=int(repeated["duration"].sum()),
        detail="tasks that repeat operators",
    )
    frames = {
        "ops": numbered.filter(is_operator & on_device).select(
            "name", "process", "thread", "start", "duration"
        ),
        "ranges": numbered.filter(~is_operator.fill_null(value=False)).select(
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
    screened = {name: screen(frame, name, ledger) for name, frame in frames.items()}
    tables, first_ns = rebase(screened, ledger)
    tables["ledger"] = ledger.frame()
    meta = TraceMeta(
        format="mxnet",
        producer="MXNet profiler",
        framework="MXNet",
        epoch_ns=first_ns,
        **extent(columns, source, end),
    )
    return Trace(meta, Tables(tables))
