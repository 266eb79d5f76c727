"""Reads Chrome traces other than Kineto's and MXNet's into the canonical tables.

TensorFlow's and JAX's profilers write ``trace.json.gz`` beside their XPlane file: its processes are
the planes, its threads the lines. Any other trace is read generically: every span is a range on its
thread, and there are no devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl
from msgspec import Raw, Struct
from msgspec.structs import replace

from traceana.errors import NotATraceError, UnknownFormatError
from traceana.readers.chrome.event_decoder import Counted, EventDecoder, to_nanoseconds
from traceana.readers.chrome.stream import Document, extent, ledger_of, read_stream
from traceana.readers.integrity import possible
from traceana.readers.source import ByteSource, Progress
from traceana.readers.xplane.events import DEVICE_STATS, HOST_STATS
from traceana.readers.xplane.hlo import HloPrograms
from traceana.readers.xplane.reader import EventTables, framework, is_stream
from traceana.readers.xplane.space import Line, Plane, Space
from traceana.readers.xplane.wire import Buffer, Mask, Numbers
from traceana.trace import Ledger, Tables, Trace, TraceMeta

_ENDS: Final = {"B": "E"}
_PROCESS: Final = "process_name"
_THREAD: Final = "thread_name"
_TF1_GPU: Final = re.compile(
    r"(?i)^(?:/job:[^ ]*)?/(?:device:)?gpu:(\d+)/(?:stream:(\d+|all)|memcpy)(?: compute)?$"
)
"""A process of TensorFlow 1's timelines: the work of a stream of a GPU, or of all of them again."""
_TF1_HOST: Final = re.compile(r"(?i)^/job:[^ ]*/(?:device:)?[cg]pu:\d+(?: compute)?$")
"""The operators that TensorFlow 1's executor ran, on lanes that do not overlap."""
_TF1_COPY: Final = r"(?i)^memcpy([hd])to([hd])$"
_LEGACY_TORCH: Final = "CUDA functions"
_ONNX_SESSION: Final = (
    *("model_loading_uri", "model_loading_array", "model_loading_from_saved_model"),
    "session_initialization",
)
_ONNX_DEVICE: Final = "-1"
"""The process of ONNX Runtime's kernels."""
_PLANES: Final = ("/host:", "/device:")


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Chrome trace file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    JSON without events, ``UnknownFormatError`` on timelines of devices that are not supported, and
    ``CorruptError`` where the file ends before the first.
    """
    columns, source, end = read_columns(path, progress, _ENDS, "a profiler exported")
    _refuse_devices(path, columns)
    ledger = ledger_of(columns, source, end)
    complete = possible(pl.concat([pl.DataFrame(schema=COMPLETE), *columns.complete]), "-", ledger)
    begins_and_ends = pl.concat(
        [pl.DataFrame(schema=BEGINS_AND_ENDS), *columns.begins_and_ends]
    ).drop("category", "phase")
    names = {pid: name for (kind, pid, _), name in columns.labels.items() if kind == _PROCESS}
    is_tensorflow_1 = any(_TF1_GPU.match(name) or _TF1_HOST.match(name) for name in names.values())
    if is_tensorflow_1:
        complete, names = _as_planes(complete, names, columns, ledger)
    planes = {pid: name for pid, name in names.items() if name.startswith(_PLANES)}
    tables = EventTables(HloPrograms(Buffer.of([]), Space(), ledger), ledger)
    space = Space()
    process = pl.col("pid").cast(pl.String)
    for pid, name in planes.items():
        events = complete.filter(process == pid)
        space.planes.append(_add_plane(tables, name, pid, events, columns))
    paired = spans(begins_and_ends)
    ledger.add("range_end", paired.height, table="ranges")
    unpaired = begins_and_ends.height - 2 * paired.height
    ledger.add("malformed", unpaired, table="ranges", detail="unpaired")
    outside_planes = complete.filter(~process.is_in(list(planes)).fill_null(False))
    on_threads = pl.concat([outside_planes.select(paired.columns), paired])
    is_mark = pl.col("duration") == 0
    tables.keep_ranges(
        on_threads.select(
            pl.col("name").alias("text"),
            pl.when(is_mark).then(pl.lit("mark")).otherwise(pl.lit("annotation")).alias("kind"),
            whole_numbers(on_threads["pid"]).alias("process"),
            whole_numbers(on_threads["tid"]).alias("thread"),
            "start",
            "duration",
        )
    )
    finished, _ = tables.finish(space)
    meta = TraceMeta(format="chrome", **extent(columns, source, end))
    if is_tensorflow_1:
        read_as = "kernels by their operator's type, times of whole microseconds"
        meta = replace(
            meta,
            framework="TensorFlow",
            producer="TensorFlow 1, RunMetadata",
            properties={"read_as": read_as},
        )
    elif planes:
        meta = replace(meta, format="xplane-json", framework=framework(space))
    else:
        meta = replace(meta, properties={"read_as": "spans on threads, unknown profiler"})
    return Trace(meta, Tables(finished))


def _refuse_devices(path: Path, columns: Columns) -> None:
    """Raise ``UnknownFormatError`` for two profilers' timelines with device spans.

    Read as spans on threads, these would be the host's work. PyTorch's legacy profiler nests the
    times of operators on the device; ONNX Runtime does not record on which device a kernel ran.
    """
    processes = {
        *(name for (kind, _, _), name in columns.labels.items() if kind == _PROCESS),
        *(
            pid
            for frame in columns.complete
            for pid in frame["pid"].unique().cast(pl.String)
            if pid
        ),
    }
    if _LEGACY_TORCH in processes:
        spans = sum(frame.height for frame in columns.complete)
        raise UnknownFormatError(
            f"{path} is a timeline of PyTorch's legacy profiler: {spans:,} times of operators on "
            "CPU and GPU, and no kernels: record with torch.profiler (PyTorch 1.8.1 and later)"
        )
    if _ONNX_DEVICE in processes and any(
        frame["name"].cast(pl.String).is_in(_ONNX_SESSION).any() for frame in columns.complete
    ):
        raise UnknownFormatError(
            f"{path} is a timeline of ONNX Runtime, whose events of the GPU are not supported: "
            "record it with nsys"
        )


def _as_planes(
    complete: pl.DataFrame, names: dict[str, str], columns: Columns, ledger: Ledger
) -> tuple[pl.DataFrame, dict[str, str]]:
    """Convert the events of TensorFlow 1's timeline to XPlane's, and return the planes' names too.

    A stream is a process, and its events have the operator's type and scope instead of the kernel's
    name. The processes ``stream:all`` and ``memcpy`` repeat single streams, where these are
    recorded. The executor's events are the operators; lanes stand for its threads.
    """
    gpus = {pid: match for pid, name in names.items() if (match := _TF1_GPU.match(name))}
    with_streams = {match[1] for match in gpus.values() if match[2] not in (None, "all")}
    planes: dict[str, str] = {}
    place: dict[str, tuple[str, str]] = {}
    repeated: list[str] = []
    for pid, name in names.items():
        if pid in gpus:
            device, stream = gpus[pid].groups()
            plane = f"/device:GPU:{device}"
            if stream in (None, "all"):
                if device in with_streams:
                    repeated.append(pid)
                    continue
                stream = "0" if stream else "1"
            planes[plane] = plane
            place[pid] = plane, stream
            columns.labels[_THREAD, plane, stream] = f"Stream #{stream}"
        elif _TF1_HOST.match(name):
            planes[pid] = f"/host:{name}"
    process, lane, text = (pl.col(column).cast(pl.String) for column in ("pid", "tid", "name"))
    is_repeated = process.is_in(repeated).fill_null(False)
    ledger.add("repeated", complete.filter(is_repeated).height, table="activities")
    on_gpu = process.is_in(list(place))
    copied = text.str.replace(_TF1_COPY, "Memcpy${1}2$2")
    moved = complete.filter(~is_repeated).with_columns(
        process.replace({pid: plane for pid, (plane, _) in place.items()}).alias("pid"),
        pl.when(on_gpu)
        .then(process.replace({pid: stream for pid, (_, stream) in place.items()}))
        .otherwise(lane)
        .alias("tid"),
        # The executor's operators are named as XPlane names them: scope:Type.
        pl.when(on_gpu).then(copied).otherwise(pl.coalesce("tf_op", text)).alias("name"),
    )
    return moved.cast({"pid": _TEXT, "tid": _TEXT, "name": _TEXT}), planes


def _add_plane(
    tables: EventTables, name: str, pid: str, events: pl.DataFrame, columns: Columns
) -> Plane:
    """Add the events of one process, which is a plane, to ``tables``."""
    threads = events["tid"].unique(maintain_order=True)
    numbers = whole_numbers(threads).to_list()
    plane = Plane(name=name)
    for tid, number in zip(threads.cast(pl.String).to_list(), numbers, strict=True):
        label = columns.labels.get((_THREAD, pid, tid or ""), "")
        plane.lines.append(Line(number=number or 0, name=label))
    numbered = pl.DataFrame({"tid": threads, "line": range(len(threads))})
    on_lines = events.join(numbered, on="tid", how="left", nulls_equal=True, maintain_order="left")
    streams = [number for number, line in enumerate(plane.lines) if is_stream(plane, line)]
    on_stream = pl.col("line").is_in(streams)
    for part in (on_lines.filter(on_stream), on_lines.filter(~on_stream)):
        if part.height:
            used = part["line"].unique(maintain_order=True)
            line = pl.col("line").replace_strict(used, pl.Series(range(len(used))))
            plane_events = JsonEvents.of(part.with_columns(line))
            first = len(plane.event_names)
            plane.event_names |= dict(enumerate(plane_events.names, first))
            lines = [plane.lines[number] for number in used]
            tables.add(plane, lines, plane_events.names, [plane_events])
    return plane


class JsonEvents(msgspec.Struct, frozen=True):
    """Events of ``trace.json``, as :class:`~traceana.readers.xplane.events.PlaneEvents`."""

    names: list[str]
    frame: pl.DataFrame

    @classmethod
    def of(cls, frame: pl.DataFrame) -> JsonEvents:
        """Return the events of the decoder's columns and a column ``line``.

        An event without a name has an empty one.
        """
        frame = frame.with_columns(pl.col("name").fill_null(""))
        names = frame["name"].unique(maintain_order=True)
        numbered = pl.DataFrame({"name": names, "number": range(len(names))})
        frame = frame.join(numbered, on="name", how="left", maintain_order="left")
        return cls(names.cast(pl.String).to_list(), frame.cast({"line": pl.Int64}))

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


STATS: Final = tuple(dict.fromkeys((*DEVICE_STATS, *HOST_STATS)))
"""Arguments that are XPlane's stats; their values are texts."""

_SCOPE: Final = re.compile(r"\w+\(.*?\)/")
"""JAX's scopes begin with a transformation: ``jit(step)/net/conv1/conv_general_dilated``."""

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
    events_of_phase: dict[str, list[Event]] = {}
    for event in events:
        events_of_phase.setdefault(event.ph, []).append(event)
    begins_and_ends = [event for event in events if event.ph in begin_of]
    if complete := events_of_phase.pop("X", None):
        columns.complete.append(_complete(complete))
    if begins_and_ends:
        frame = pl.DataFrame(
            {
                **_common(begins_and_ends),
                "category": [_text(event.cat) for event in begins_and_ends],
                "phase": [begin_of[event.ph] for event in begins_and_ends],
                "ends": [event.ph != begin_of[event.ph] for event in begins_and_ends],
            },
            schema=BEGINS_AND_ENDS,
        )
        columns.begins_and_ends.append(frame)
    for event in events_of_phase.get("M", ()):
        if isinstance(event.args, dict) and isinstance(name := event.args.get("name"), str):
            columns.labels[str(event.name), _text(event.pid) or "", _text(event.tid) or ""] = name
    for phase, left_out in events_of_phase.items():
        if phase not in begin_of:
            reason = _LEFT_OUT.get(phase)
            columns.count(reason or "unknown_category", "" if reason else phase, len(left_out))
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
            # The HLO is in the XPlane file only; the scope of XLA's instruction is here the name.
            "tf_op": [
                f"{name}:"
                if "hlo_op" in arg and _SCOPE.match(name := _text(arg.get("name")) or "")
                # TensorFlow 1's timelines have the scope and the type apart.
                else f"{arg['name']}:{event.name}"
                if event.cat == "Op" and isinstance(arg.get("name"), str)
                else _text(arg.get("tf_op"))
                for event, arg in zip(events, args, strict=True)
            ],
        },
        schema=COMPLETE,
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
    alike = begins_and_ends.with_columns(pl.when(named).then("name").alias("_alike"))
    return (
        durations(alike, [*thread, "_alike"])
        .filter("closed")
        .select(*thread, pl.col("name").fill_null(""), "start", "duration")
    )


def durations(begins_and_ends: pl.DataFrame, thread: Sequence[str]) -> pl.DataFrame:
    """Return the begin events by start, with their ``duration`` and whether they are ``closed``.

    Begins and ends (``ends``) with equal values of the columns ``thread`` nest like brackets.
    """
    step = pl.when("ends").then(-1).otherwise(1)
    group = [*thread, "depth"]
    return (
        begins_and_ends.sort("start", maintain_order=True)
        .with_columns(step.cum_sum().over(thread).alias("open"))
        .with_columns((pl.col("open") + pl.col("ends").cast(pl.Int64)).alias("depth"))
        .with_columns(
            pl.col("ends").shift(-1).over(group).fill_null(value=False).alias("closed"),
            (pl.col("start").shift(-1).over(group) - pl.col("start")).alias("duration"),
        )
        .filter(~pl.col("ends"))
    )


def whole_numbers(texts: pl.Series) -> pl.Series:
    """Return process or thread numbers as Int64; other texts get negative numbers."""
    distinct = texts.unique(maintain_order=True).drop_nulls()
    spelt = distinct.cast(pl.String).cast(pl.Int64, strict=False)
    numbers = pl.select(pl.coalesce(spelt, -2 - pl.int_range(len(distinct)))).to_series()
    return texts.to_physical().replace_strict(
        distinct.to_physical(), numbers, default=None, return_dtype=pl.Int64
    )
