"""Decodes Chrome traces whose events are spans: complete events, or begin and end events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl
from msgspec import Raw, Struct

from traceana.errors import NotATraceError
from traceana.ingest.chrome.event_decoder import Counted, EventDecoder, to_nanoseconds
from traceana.ingest.chrome.stream import Document, read_stream
from traceana.ingest.source import ByteSource, Progress
from traceana.ingest.xplane.events import DEVICE_STATS, HOST_STATS

STATS: Final = tuple(dict.fromkeys((*DEVICE_STATS, *HOST_STATS)))
"""Arguments that are XPlane's stats; their values are texts."""

_Schema = dict[str, pl.DataType | type[pl.DataType]]
_TEXT: Final = pl.Categorical()
_COMMON: Final[_Schema] = {"pid": _TEXT, "tid": _TEXT, "name": _TEXT, "start": pl.Int64}
COMPLETE: Final[_Schema] = {**_COMMON, "duration": pl.Int64, **dict.fromkeys(STATS, _TEXT)}
"""Columns of complete events; times are nanoseconds on the file's clock."""
BEGINS_AND_ENDS: Final[_Schema] = {**_COMMON, "category": _TEXT, "phase": _TEXT, "ends": pl.Boolean}
"""Columns of begin and end events, in the order of the file; ``phase`` is that of the begin."""
_LEFT_OUT: Final = {
    "M": "metadata",
    "": "metadata",
    "i": "instant",
    "I": "instant",
    "R": "instant",
    "C": "counter",
    "s": "flow",
    "t": "flow",
    "f": "flow",
}


class Event(Struct, gc=False):
    """One element of ``traceEvents``, with fields of any type.

    TensorFlow's exporter ends the list with an empty one.
    """

    ph: str = ""
    name: Any = None
    cat: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = Raw(b"")
    dur: Raw = Raw(b"")
    args: Any = None


class Columns(Counted):
    """The events of one stretch of the file."""

    complete: list[pl.DataFrame] = msgspec.field(default_factory=list)
    begins_and_ends: list[pl.DataFrame] = msgspec.field(default_factory=list)
    labels: dict[tuple[str, str, str], str] = msgspec.field(default_factory=dict)
    """(process_name or thread_name, pid, tid) -> the name."""

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        self.complete += other.complete
        self.begins_and_ends += other.begins_and_ends
        self.labels |= other.labels


def read_columns(
    path: Path, progress: Progress, ends: Mapping[str, str], exporter: str
) -> tuple[Columns, ByteSource, Document]:
    """Read the events of ``path``; ``ends`` maps the phase of a begin to that of its end.

    Raises ``NotATraceError`` on JSON without events, which names ``exporter``, and ``CorruptError``
    where the file ends before the first.
    """
    source = ByteSource(path, progress)
    columns = Columns()
    decoder = EventDecoder(Event, partial(_columns, ends=ends))
    end = read_stream(source, decoder, columns.take)
    if columns.left_out.get(("malformed", ""), 0) == columns.events:
        raise NotATraceError(
            f"{path} is JSON without a valid trace event: pass the file that {exporter}"
        )
    return columns, source, end


def _columns(events: list[Event], ends: Mapping[str, str]) -> Columns:
    begin_of = {**{begin: begin for begin in ends}, **{end: begin for begin, end in ends.items()}}
    columns = Columns(events=len(events))
    by_phase: dict[str, list[Event]] = {}
    for event in events:
        by_phase.setdefault(event.ph, []).append(event)
    begins_and_ends = [event for event in events if event.ph in begin_of]
    if complete := by_phase.pop("X", None):
        columns.complete.append(_complete(complete))
    if begins_and_ends:
        columns.begins_and_ends.append(_begins_and_ends(begins_and_ends, begin_of))
    for event in by_phase.get("M", ()):
        if isinstance(event.args, dict) and isinstance(name := event.args.get("name"), str):
            columns.labels[str(event.name), _text(event.pid) or "", _text(event.tid) or ""] = name
    for phase, left in by_phase.items():
        if phase not in begin_of:
            known = _LEFT_OUT.get(phase)
            columns.count(known or "unknown_category", "" if known else phase, len(left))
    return columns


def _complete(events: list[Event]) -> pl.DataFrame:
    args = [event.args if isinstance(event.args, dict) else {} for event in events]
    return pl.DataFrame(
        {
            **_common(events),
            # XPlane's long name is among the arguments where the event has a display name.
            "name": [
                _text(arg.get("long_name")) or _text(event.name)
                for event, arg in zip(events, args, strict=True)
            ],
            "duration": to_nanoseconds([event.dur for event in events]),
            **{stat: [_text(arg.get(stat)) for arg in args] for stat in STATS},
        },
        schema=COMPLETE,
    )


def _begins_and_ends(events: list[Event], begin_of: Mapping[str, str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            **_common(events),
            "category": [_text(event.cat) for event in events],
            "phase": [begin_of[event.ph] for event in events],
            "ends": [event.ph != begin_of[event.ph] for event in events],
        },
        schema=BEGINS_AND_ENDS,
    )


def _common(events: list[Event]) -> dict[str, Any]:
    return {
        "pid": [_text(event.pid) for event in events],
        "tid": [_text(event.tid) for event in events],
        "name": [_text(event.name) for event in events],
        "start": to_nanoseconds([event.ts for event in events]),
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def spans(begins_and_ends: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of begin and end events, with ``duration`` instead of ``ends``.

    The events are in the order of the file; their columns other than ``name``, ``start`` and
    ``ends`` identify a thread. Where the ends of a thread have names, an end closes the latest
    begin of its name; else begins and ends nest like brackets. Names matter where clocks are
    coarse: CNTK and MXNet write the inner of two spans that begin in one microsecond first.
    """
    thread = [
        column for column in begins_and_ends.columns if column not in ("name", "start", "ends")
    ]
    named = (pl.col("ends").not_() | pl.col("name").is_not_null()).all().over(thread)
    group_keys = [*thread, "_alike"]
    step = pl.when("ends").then(-1).otherwise(1)
    depth = (
        begins_and_ends.with_columns(pl.when(named).then("name").alias("_alike"))
        .sort("start", maintain_order=True)
        .with_columns(step.cum_sum().over(group_keys).alias("open"))
        .with_columns((pl.col("open") + pl.col("ends").cast(pl.Int64)).alias("depth"))
    )
    group = [*group_keys, "depth"]
    return (
        depth.with_columns(
            pl.col("ends").shift(-1).over(group).alias("closed"),
            (pl.col("start").shift(-1).over(group) - pl.col("start")).alias("duration"),
        )
        .filter(~pl.col("ends") & pl.col("closed").fill_null(False))
        .select(*thread, "name", "start", "duration")
    )


def whole_numbers(texts: pl.Series) -> pl.Series:
    """Return process or thread numbers as Int64; other texts get negative numbers."""
    distinct = texts.unique(maintain_order=True).drop_nulls()
    spelt = distinct.cast(pl.String).cast(pl.Int64, strict=False)
    numbers = pl.select(pl.coalesce(spelt, -2 - pl.int_range(len(distinct)))).to_series()
    return texts.to_physical().replace_strict(
        distinct.to_physical(), numbers, default=None, return_dtype=pl.Int64
    )
