"""Reads Chrome traces other than Kineto's and MXNet's into the canonical tables.

TensorFlow's and JAX's profilers write ``trace.json.gz`` beside their XPlane file: its processes are
the planes, its threads the lines. Any other trace is read generically: every span is a range on its
thread, and there are no devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.ingest.chrome.decode import (
    BEGINS_AND_ENDS,
    COMPLETE,
    Columns,
    read_columns,
    spans,
    whole_numbers,
)
from traceana.ingest.chrome.stream import Document, extent, ledger_of
from traceana.ingest.integrity import possible
from traceana.ingest.source import ByteSource, Progress
from traceana.ingest.xplane.facts import framework
from traceana.ingest.xplane.hlo import HloPrograms
from traceana.ingest.xplane.reader import Tables, is_stream
from traceana.ingest.xplane.space import Line, Plane, Space
from traceana.ingest.xplane.wire import Buffer, Mask, Numbers
from traceana.trace import Trace, TraceMeta

_ENDS: Final = {"B": "E"}
_PROCESS: Final = "process_name"
_THREAD: Final = "thread_name"
_PLANES: Final = ("/host:", "/device:")


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Chrome trace file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    JSON without events and ``CorruptError`` where the file ends before the first.
    """
    return _trace(*read_columns(path, progress, _ENDS, "a profiler exported"))


def _trace(columns: Columns, source: ByteSource, end: Document) -> Trace:
    ledger = ledger_of(columns, source, end)
    complete = possible(pl.concat([pl.DataFrame(schema=COMPLETE), *columns.complete]), "-", ledger)
    begins_and_ends = pl.concat(
        [pl.DataFrame(schema=BEGINS_AND_ENDS), *columns.begins_and_ends]
    ).drop("category", "phase")
    names = {pid: name for (kind, pid, _), name in columns.labels.items() if kind == _PROCESS}
    planes = {pid: name for pid, name in names.items() if name.startswith(_PLANES)}
    tables = Tables(HloPrograms(Buffer.of([]), Space(), ledger), ledger)
    space = Space()
    of_plane = pl.col("pid").cast(pl.String).is_in(list(planes))
    for pid, name in planes.items():
        events = complete.filter(pl.col("pid").cast(pl.String) == pid)
        space.planes.append(_add_plane(tables, name, pid, events, columns))
    paired = spans(begins_and_ends)
    ledger.add("range_end", paired.height, table="ranges")
    ledger.add(
        "malformed",
        begins_and_ends.height - 2 * paired.height,
        table="ranges",
        detail="unpaired",
    )
    others = complete.filter(~of_plane.fill_null(False))
    tables.keep_ranges(_ranges(pl.concat([others.select(paired.columns), paired])))
    made, _ = tables.finish(space)
    return Trace(
        TraceMeta(
            format="xplane-json" if planes else "chrome",
            framework=framework(space) if planes else None,
            properties={} if planes else {"read_as": "spans on threads, unknown profiler"},
            **extent(columns, source, end),
        ),
        made,
    )


def _add_plane(
    tables: Tables, name: str, pid: str, events: pl.DataFrame, columns: Columns
) -> Plane:
    """Add the events of one process, which is a plane, to ``tables``."""
    threads = events["tid"].unique(maintain_order=True)
    numbers = whole_numbers(threads).to_list()
    plane = Plane(name=name)
    for tid, number in zip(threads.cast(pl.String).to_list(), numbers, strict=True):
        label = columns.labels.get((_THREAD, pid, tid or ""), "")
        plane.lines.append(Line(number=number or 0, name=label))
    numbered = pl.DataFrame({"tid": threads, "line": range(len(threads))})
    of_lines = events.join(numbered, on="tid", how="left", nulls_equal=True, maintain_order="left")
    streams = [i for i, line in enumerate(plane.lines) if is_stream(plane, line)]
    on_stream = pl.col("line").is_in(streams)
    for part in (of_lines.filter(on_stream), of_lines.filter(~on_stream)):
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


class JsonEvents(msgspec.Struct, frozen=True):
    """Events of ``trace.json``, as :class:`~traceana.ingest.xplane.events.PlaneEvents`."""

    names: list[str | None]
    frame: pl.DataFrame

    @classmethod
    def of(cls, frame: pl.DataFrame) -> JsonEvents:
        """Return the events of the decoder's columns and a column ``line``."""
        names = frame["name"].unique(maintain_order=True)
        numbered = pl.DataFrame({"name": names, "number": range(len(names))})
        found = frame.join(numbered, on="name", how="left", nulls_equal=True, maintain_order="left")
        return cls(names.cast(pl.String).to_list(), found.cast({"line": pl.Int64}))

    @property
    def line(self) -> Numbers:
        """Index of each event's line."""
        return self.frame["line"].to_numpy()

    @property
    def name(self) -> Numbers:
        """Index of each event's name in ``names``."""
        return self.frame["number"].to_numpy()

    @property
    def start(self) -> Numbers:
        """Nanoseconds on the file's clock."""
        return self.frame["start"].to_numpy()

    @property
    def duration(self) -> Numbers:
        """Nanoseconds."""
        return self.frame["duration"].to_numpy()

    def pick(self, rows: Mask) -> JsonEvents:
        """Return some rows."""
        return JsonEvents(self.names, self.frame.filter(pl.Series(rows, dtype=pl.Boolean)))

    def has(self, stat: str) -> Mask:
        """Return which rows have a stat."""
        if stat not in self.frame.columns:
            return pl.repeat(False, self.frame.height, eager=True).to_numpy()
        return self.frame[stat].is_not_null().to_numpy()

    def integers(self, stat: str) -> pl.Series:
        """Return an integer stat as Int64, null for rows without one."""
        return self.texts(stat).cast(pl.String).cast(pl.Int64, strict=False)

    def texts(self, stat: str) -> pl.Series:
        """Return a text stat as Categorical, null for rows without one."""
        if stat not in self.frame.columns:
            return pl.repeat(None, self.frame.height, dtype=pl.Categorical(), eager=True)
        return self.frame[stat]
