"""Chrome traces other than Kineto's to the canonical tables.

TensorFlow's and JAX's profilers write ``trace.json.gz`` beside their XPlane file: the same planes
and lines as processes and threads. Any other program's trace is read generically: every span is a
range on its thread, and nothing is known of devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import NotATraceError
from traceana.ingest.chrome.decode import COMPLETE, DECODER, HALVES, Columns
from traceana.ingest.chrome.halves import spans
from traceana.ingest.chrome.plane_events import JsonEvents
from traceana.ingest.kineto.stream import StreamEnd, ledger_of, read_stream
from traceana.ingest.progress import Progress
from traceana.ingest.source import ByteSource
from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.facts import framework
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.space import Line, Plane, Space
from traceana.ingest.xplane.tables import Tables, is_stream
from traceana.trace import Trace, TraceMeta

_PROCESS: Final = "process_name"
_THREAD: Final = "thread_name"
_PLANES: Final = ("/host:", "/device:")


def read(path: Path, progress: Progress) -> Trace:
    """Read a Chrome trace, plain or gzip.

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
            "give the file that a profiler exported"
        )
    return _trace(columns, source, end)


def _trace(columns: Columns, source: ByteSource, end: StreamEnd) -> Trace:
    ledger = ledger_of(columns, source, end)
    complete = pl.concat([pl.DataFrame(schema=COMPLETE), *columns.complete])
    halves = pl.concat([pl.DataFrame(schema=HALVES), *columns.halves])
    names = {pid: name for (kind, pid, _), name in columns.labels.items() if kind == _PROCESS}
    planes = {pid: name for pid, name in names.items() if name.startswith(_PLANES)}
    tables = Tables(HloPrograms(Buffer.of([]), Space()), ledger)
    space = Space()
    of_plane = pl.col("pid").cast(pl.String).is_in(list(planes))
    for pid, name in planes.items():
        events = complete.filter(pl.col("pid").cast(pl.String) == pid)
        space.planes.append(_add_plane(tables, name, pid, events, columns))
    paired = spans(halves)
    ledger.add("range_end", paired.height, table="ranges")
    ledger.add("malformed", halves.height - 2 * paired.height, table="ranges", detail="no pair")
    others = complete.filter(~of_plane.fill_null(False))
    tables.keep_ranges(_ranges(pl.concat([others.select(paired.columns), paired])))
    made, _ = tables.finish(space)
    return Trace(
        TraceMeta(
            source=str(source.path),
            format="xplane-json" if planes else "chrome",
            framework=framework(space) if planes else None,
            truncated=source.truncated,
            bytes_read=source.bytes_read - (0 if source.compressed else end.cut),
            bytes_total=source.bytes_total,
            events=columns.events + int(end.cut > 0),
            properties={} if planes else {"read_as": "spans on threads, of no known profiler"},
        ),
        made,
    )


def _add_plane(
    tables: Tables, name: str, pid: str, events: pl.DataFrame, columns: Columns
) -> Plane:
    """Hand the events of one process to ``tables``, as the plane that it stands for."""
    threads = events["tid"].unique(maintain_order=True)
    numbers = whole_numbers(threads).to_list()
    plane = Plane(name=name)
    for tid, number in zip(threads.cast(pl.String).to_list(), numbers, strict=True):
        label = columns.labels.get((_THREAD, pid, tid or ""), "")
        plane.lines.append(Line(number=number or 0, name=label))
    numbered = pl.DataFrame({"tid": threads, "line": range(len(threads))})
    placed = events.join(numbered, on="tid", how="left", nulls_equal=True, maintain_order="left")
    streams = [i for i, line in enumerate(plane.lines) if is_stream(plane, line)]
    on_stream = pl.col("line").is_in(streams)
    for part in (placed.filter(on_stream), placed.filter(~on_stream)):
        if part.height:
            used = part["line"].unique(maintain_order=True)
            again = pl.col("line").replace_strict(used, pl.Series(range(len(used))))
            found = JsonEvents.of(part.with_columns(again))
            plane.event_names |= {
                len(plane.event_names) + i: text or "" for i, text in enumerate(found.names)
            }
            tables.add(plane, [plane.lines[i] for i in used], found.names, [found])
    return plane


def _ranges(found: pl.DataFrame) -> pl.DataFrame:
    return found.select(
        pl.col("name").alias("text"),
        pl.when(pl.col("duration") == 0)
        .then(pl.lit("mark"))
        .otherwise(pl.lit("annotation"))
        .alias("kind"),
        whole_numbers(found["pid"]).alias("process"),
        whole_numbers(found["tid"]).alias("thread"),
        "start",
        "duration",
    )


def whole_numbers(texts: pl.Series) -> pl.Series:
    """Return process or thread numbers as Int64; a text that is none gets a negative one."""
    distinct = texts.unique(maintain_order=True).drop_nulls()
    spelt = distinct.cast(pl.String).cast(pl.Int64, strict=False)
    numbers = pl.select(pl.coalesce(spelt, -2 - pl.int_range(len(distinct)))).to_series()
    return texts.to_physical().replace_strict(
        distinct.to_physical(), numbers, default=None, return_dtype=pl.Int64
    )
