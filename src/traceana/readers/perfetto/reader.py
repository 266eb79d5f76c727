"""Reads Perfetto traces into the canonical tables, by the decoder of the profiler that wrote them.

PyTorch writes one recording as Chrome's JSON or as packets. So packets become the events of that
JSON, with the same categories and arguments, and Kineto's decoder makes the tables. Render stages
become the JSON's events of device work. rocprofv3's slices go to its own assembly.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import CorruptError, NotATraceError
from traceana.readers.chrome.event_decoder import UndecodableError
from traceana.readers.chrome.stream import Document
from traceana.readers.kineto.decode import COMPLETE as KINETO_CATEGORIES
from traceana.readers.kineto.decode import Columns
from traceana.readers.kineto.reader import assemble
from traceana.readers.kineto.scan import DECODER
from traceana.readers.perfetto.events import BEGIN, END, INSTANT, Events, Frames, slices
from traceana.readers.perfetto.packets import Packets
from traceana.readers.rocprof import pftrace as rocprof
from traceana.readers.source import ByteSource, Progress
from traceana.trace import Trace
from traceana.trace.schema import DEVICES

_OVERHEAD_PID: Final = (1 << 31) - 1
"""PyTorch's process of the profiler's overhead, -1, without its sign."""
_FIRST_DEPENDENCY: Final = 1 << 40
"""The first number of PyTorch's arrows between nodes of CUDA graphs."""
_ARROW: Final = "ac2g"
_ARCHITECTURE: Final = re.compile(r"sm_(\d{1,3})(\d)")
_ROWS: Final = 1 << 15
"""Events whose text is decoded at once."""
_MOST_NAMED: Final = 4


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Perfetto trace, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    traces without work of a GPU, operators or calls, which names what they have, and
    ``CorruptError`` where the file ends before the first packet.
    """
    # Imported on demand: few formats have messages that are decoded one by one.
    from google.protobuf.message import DecodeError

    source = ByteSource(path, progress)
    packets, events = Packets(), Events()
    for packet in packets.read(source):
        try:
            events.take(packet)
        except DecodeError:
            packets.malformed += 1
    frames = events.frames(packets)
    if not packets.tracks and frames.events.is_empty() and frames.stages.is_empty():
        _refuse_empty(path, packets)
    source.truncated |= packets.truncated
    categories = frames.events["category"].drop_nulls().unique()
    if any(rocprof.is_activity(category) for category in categories):
        return _rocprof(source, packets, events, frames)
    has_kineto = categories.str.to_lowercase().is_in(list(KINETO_CATEGORIES)).any()
    if frames.stages.is_empty() and not has_kineto:
        raise NotATraceError(
            f"{path} is a Perfetto trace without GPU work and without operators of PyTorch; it has "
            f"{_content(packets, events, frames)}: record the GPU with torch.profiler, nsys or "
            "rocprofv3"
        )
    columns, end = _kineto(packets, events, frames)
    trace = assemble(columns, source, end)
    trace = trace.with_meta(properties={**trace.meta.properties, "printed": "Perfetto"})
    if not has_kineto and not frames.stages["has_correlation"].any():
        trace = trace.with_meta(format="perfetto", producer=None)
    return _with_architecture(trace, events.architecture)


def _refuse_empty(path: Path, packets: Packets) -> None:
    if packets.zstd:
        raise NotATraceError(
            f"{path} is a Perfetto trace compressed with zstd, which is not supported: record it "
            "with deflate, or decompress it with traceconv"
        )
    if (packets.truncated or packets.malformed) and not packets.counts:
        raise CorruptError(f"{path} is truncated or damaged before its first event: copy it again")


def _content(packets: Packets, events: Events, frames: Frames) -> str:
    """Return what a trace has in place of GPU work, the most frequent first."""
    by_category = Counter(frames.events.filter(pl.col("type") != END)["category"])
    counts = {f"{name or 'uncategorized'} events": count for name, count in by_category.items()}
    counts |= {f"{kind} packets": count for kind, count in packets.counts.items()}
    counts |= {"counter samples": events.counters} if events.counters else {}
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    named = [f"{count:,} {kind[:60]}" for kind, count in ordered[:_MOST_NAMED]]
    others = [f"{len(ordered) - _MOST_NAMED} other kinds"] if len(ordered) > _MOST_NAMED else []
    return ", ".join([*named, *others]) or "no events"


def _rocprof(source: ByteSource, packets: Packets, events: Events, frames: Frames) -> Trace:
    names = {uuid: track.name for uuid, track in packets.tracks.items()}
    processes = {track.process for track in packets.tracks.values()} - {None, 0}
    begins = frames.events.filter(pl.col("type") == BEGIN)
    tracks = [names.get(track, "") for track in begins["track"]]
    return rocprof.trace_of(
        source,
        begins.select("category", "name", "args", pl.Series("track", tracks, dtype=pl.String)),
        next(iter(processes)) if len(processes) == 1 else None,
        {
            "counter": events.counters,
            "instant": frames.events.filter(pl.col("type") == INSTANT).height,
            "malformed": packets.malformed,
        },
    )


def _kineto(packets: Packets, events: Events, frames: Frames) -> tuple[Columns, Document]:
    """Return the columns of Kineto's frames, and what its JSON has beside the events."""
    whole, unpaired = slices(frames.events)
    is_mark = pl.col("type") == INSTANT
    is_overhead = (pl.col("category") == "") & (pl.col("pid") == _OVERHEAD_PID)
    whole = whole.with_columns(
        pl.when(is_mark).then(pl.lit("i")).otherwise(pl.lit("X")).alias("ph"),
        pl.when(is_overhead).then(pl.lit("overhead")).otherwise("category").alias("category"),
        pl.when(pl.col("pid") == _OVERHEAD_PID).then(-1).otherwise("pid").alias("pid"),
        pl.col("tid").cast(pl.String),
    )
    stages = frames.stages.join(
        frames.launches, on="id", how="left", maintain_order="left"
    ).with_columns(
        pl.lit("X").alias("ph"),
        pl.col("device").alias("pid"),
        pl.col("lane").alias("tid"),
        pl.when(pl.col("has_correlation") | pl.col("correlation").is_null())
        .then("args")
        .otherwise(
            pl.concat_str(
                pl.col("args").str.strip_suffix("}"), pl.lit(',"correlation":'), "correlation",
                pl.lit("}"),
            )
        )
        .alias("args"),
    )  # fmt: skip
    columns = Columns()
    for frame in (whole, stages, _flows(frames.flows), _dependencies(stages, frames.waits)):
        texts = _json_of(frame)
        for first in range(0, len(texts), _ROWS):
            stretch = [content.encode() for content in texts[first : first + _ROWS]]
            try:
                columns.take(DECODER.decode(b",".join(stretch)))
            except UndecodableError:
                columns.take(DECODER.decode_singly(stretch))
    counts = {
        ("counter", ""): events.counters,
        ("malformed", "packets"): packets.malformed,
        ("malformed", "packets compressed with zstd"): packets.zstd,
        ("malformed", "begins and ends of slices without the other"): unpaired,
        ("unknown_category", "types of track events"): events.unread,
        **{("unknown_category", kind): count for kind, count in packets.counts.items()},
    }
    for (reason, detail), count in counts.items():
        columns.count(reason, detail, count)
        columns.events += count
    problems = {
        ("unnamed", "names in lost packets"): events.unnamed,
        ("dropped_by_profiler", "packets before others of their sequence"): packets.dropped,
        ("cut_end", "Perfetto"): _touching(whole, stages),
    }
    keys = {} if packets.base_ns is None else {"baseTimeNanoseconds": packets.base_ns}
    return columns, Document(keys, bare=True, whole=True, problems=problems)


_FIELDS: Final = {
    "cat": "category",
    "name": "name",
    "pid": "pid",
    "tid": "tid",
    "ts": "start",
    "dur": "duration",
    "id": "arrow",
    "args": "args",
}
"""Fields of an event of Chrome's JSON: the column of each."""


def _json_of(frame: pl.DataFrame) -> pl.Series:
    """Return the JSON text of each event of ``frame``; columns that are null are left out."""
    encoded = {
        name: msgspec.json.encode(name).decode()
        for column in ("name", "category")
        if column in frame.columns
        for name in frame[column].unique().drop_nulls()
    }
    parts = [pl.lit('{"ph":"'), pl.col("ph"), pl.lit('"')]
    for key, column in _FIELDS.items():
        if column not in frame.columns:
            continue
        value = pl.col(column)
        if key in ("ts", "dur"):
            value = _microseconds(value)
        elif key in ("cat", "name"):
            value = value.replace_strict(encoded, default=None, return_dtype=pl.String)
        parts.append(pl.concat_str(pl.lit(f',"{key}":'), value).fill_null(""))
    return frame.select(pl.concat_str(*parts, pl.lit("}"))).to_series()


def _microseconds(time: pl.Expr) -> pl.Expr:
    """Return times (ns) as decimal numbers of microseconds."""
    sign = pl.when(time < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    digits = time.abs()
    decimals = (digits % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(sign, digits // 1000, pl.lit("."), decimals)


def _flows(flows: pl.DataFrame) -> pl.DataFrame:
    """Return the arrows of JSON for ``flows``: from the earliest event of each to the others.

    A flow between operators is of the forward and backward pass; others are launches.
    """
    ordered = flows.filter(pl.col("time").is_not_null()).sort("id", "time", maintain_order=True)
    first = pl.col("id").is_first_distinct()
    between_operators = (pl.col("category") == "cpu_op").all().over("id")
    return ordered.select(
        pl.when(first).then(pl.lit("s")).otherwise(pl.lit("f")).alias("ph"),
        pl.when(between_operators)
        .then(pl.lit("fwdbwd"))
        .otherwise(pl.lit(_ARROW))
        .alias("category"),
        "pid",
        pl.col("tid").cast(pl.String),
        pl.col("time").alias("start"),
        pl.col("id").cast(pl.String).alias("arrow"),
    )


def _dependencies(stages: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return PyTorch's arrows of JSON for ``waits``: from the end of a stage to one that waited."""
    places = stages.select("id", "pid", "tid", "start", "duration").unique("id", keep="first")
    pairs = (
        waits.join(places, on="id")
        .join(places, left_on="waited", right_on="id", suffix="_waited")
        .with_row_index("number")
    )
    arrow = (pl.col("number").cast(pl.Int64) + _FIRST_DEPENDENCY).cast(pl.String)
    common = [pl.lit(_ARROW).alias("category"), arrow.alias("arrow")]
    return pl.concat(
        [
            pairs.select(
                pl.lit("s").alias("ph"),
                *common,
                pl.col("pid_waited").alias("pid"),
                pl.col("tid_waited").alias("tid"),
                (pl.col("start_waited") + pl.col("duration_waited")).alias("start"),
            ),
            pairs.select(pl.lit("f").alias("ph"), *common, "pid", "tid", "start"),
        ]
    )


def _touching(*frames: pl.DataFrame) -> int:
    """Return how much device work ends where the next of its lane begins.

    PyTorch ends overlapping work there, since a lane has no overlaps.
    """
    work = pl.concat(
        [frame.select("category", "pid", "tid", "start", "duration") for frame in frames]
    )
    on_device = [name for name, frame in KINETO_CATEGORIES.items() if frame == "device"]
    on_lane = work.filter(pl.col("category").is_in(on_device), pl.col("duration") > 0).sort("start")
    following = pl.col("start").shift(-1).over("pid", "tid")
    return int(on_lane.select((pl.col("start") + pl.col("duration") == following).sum()).item())


def _with_architecture(trace: Trace, architecture: str | None) -> Trace:
    """Return ``trace`` with the compute capability of its GPUs, for ``sm_90``."""
    match = _ARCHITECTURE.fullmatch(architecture or "")
    if match is None:
        return trace
    devices = trace.tables.devices.with_columns(
        pl.lit(f"{int(match[1])}.{match[2]}", DEVICES["compute_capability"]).alias(
            "compute_capability"
        ),
        pl.lit("NVIDIA", DEVICES["vendor"]).alias("vendor"),
    )
    return trace.with_tables(devices=devices)
