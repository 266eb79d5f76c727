"""The events in the packets of a Perfetto trace as frames: slices, marks, render stages, flows."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import polars as pl

from traceana.readers.chrome.reader import durations
from traceana.readers.perfetto.packets import (
    Argument,
    Packet,
    Packets,
    PacketSequence,
    message_class,
    text,
)

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
"""TrackEvent.Type"""
COMPLETE: Final = 0
"""A slice with its duration, which only events converted from Chrome's JSON have."""
_LEGACY: Final = {
    ord(phase): type_
    for phase, type_ in (
        *(("B", BEGIN), ("E", END), ("X", COMPLETE)),
        *(("i", INSTANT), ("I", INSTANT), ("C", COUNTER)),
    )
}
_CORRELATION: Final = "correlation"
_LONGEST: Final = (1 << 63) - 1
_PAGE: Final = 1 << 17
"""Rows that are kept as Python's objects."""

_EVENT: Final[dict[str, Any]] = {
    "type": pl.Int8,
    "sequence": pl.Int64,
    "track": pl.UInt64,
    "start": pl.Int64,
    "duration": pl.Int64,
    "category": pl.String,
    "name": pl.String,
    "args": pl.String,
}
_STAGE: Final[dict[str, Any]] = {
    "id": pl.UInt64,
    "device": pl.Int64,
    "lane": pl.String,
    "start": pl.Int64,
    "duration": pl.Int64,
    "category": pl.String,
    "name": pl.String,
    "has_correlation": pl.Boolean,
    "args": pl.String,
}
_FLOW: Final[dict[str, Any]] = {
    "id": pl.UInt64,
    "track": pl.UInt64,
    "time": pl.Int64,
    "category": pl.String,
}
_WAIT: Final[dict[str, Any]] = {"id": pl.UInt64, "waited": pl.UInt64}
_LAUNCH: Final[dict[str, Any]] = {"id": pl.UInt64, "correlation": pl.String}

# The stages that PyTorch names, and copies by other names.
_STAGE_CATEGORIES: Final = {
    "memcpy": "gpu_memcpy",
    "copy": "gpu_memcpy",
    "transfer": "gpu_memcpy",
    "memset": "gpu_memset",
    "annotation": "gpu_user_annotation",
    "eventrecord": "graph_event_node",
    "hostnode": "graph_host_node",
}
_OF_EXTRA: Final = {"device id": "device", "context id": "context", "stream id": "stream"}
_INTEGERS: Final = {"Seq"}
"""Arguments that Kineto writes as numbers only; a render stage has texts."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


class _Rows:
    """Rows of a frame, which are put into columns page by page: Python's objects are large."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._pages: list[pl.DataFrame] = []
        self._rows: list[tuple[Any, ...]] = []

    def add(self, *row: Any) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) == _PAGE:
            self._put()

    def _put(self) -> None:
        self._pages.append(pl.DataFrame(self._rows, schema=self._schema, orient="row"))
        self._rows.clear()

    def frame(self) -> pl.DataFrame:
        """Return all rows."""
        self._put()
        return pl.concat(self._pages)


class Events:
    """The events of the packets that :meth:`take` has got.

    ``counters``: samples of counters. ``unnamed``: events whose name was defined in a lost packet.
    ``architecture``: of the GPU, as ``sm_90``.
    """

    def __init__(self) -> None:
        self.counters = self.unnamed = self.unread = 0
        self.architecture: str | None = None
        self._events = _Rows(_EVENT)
        self._stages = _Rows(_STAGE)
        self._flows = _Rows(_FLOW)
        self._waits = _Rows(_WAIT)
        self._launches = _Rows(_LAUNCH)
        self._old_stages: list[str] = []
        """Names of render stages by number, in traces older than interned specifications."""

    def take(self, packet: Packet) -> None:
        """Take the event of a packet, if it has one. Raises ``DecodeError``."""
        message = packet.message
        if message.HasField("event"):
            self._take_event(message.event, packet.sequence, packet.time)
        elif message.HasField("stage"):
            self._take_stage(message.stage, packet.sequence, packet.time)
        elif message.HasField("gpu_counters"):
            # Samples of a GPU's counters begin here: descriptors are interned (field 47), or in the
            # event (field 1).
            self.counters += len(message.gpu_counters.counters)

    def _take_event(self, event: Any, sequence: PacketSequence, time: int | None) -> None:
        type_, duration = event.type, None
        if event.HasField("legacy") and not type_:
            type_ = _LEGACY.get(event.legacy.phase, -1)
            if type_ == COMPLETE:
                duration = max(min(event.legacy.duration_us * 1000, _LONGEST), -_LONGEST)
        if type_ == COUNTER or type_ not in (COMPLETE, BEGIN, END, INSTANT):
            self.counters += type_ == COUNTER
            self.unread += type_ != COUNTER
            return
        track = event.track if event.HasField("track") else sequence.track
        if type_ == END:
            self._events.add(type_, sequence.number, track, time, None, None, None, None)
            return
        texts = sequence.texts
        interned = (texts["categories"].get(iid) for iid in event.category_iids)
        category = next(filter(None, interned), "") or next(map(text, event.categories), "")
        name = texts["names"].get(event.name_iid) if event.name_iid else text(event.name)
        self.unnamed += name is None
        decode = sequence.annotation
        arguments = [sequence.decoded(content, decode) for content in event.annotations]
        args = {argument.name: argument for argument in arguments}
        if not category and "cuda_sync_kind" in args:
            category = "cuda_sync"  # PyTorch writes none.
        if event.HasField("launched") and (stages := event.launched.stages):
            if _CORRELATION not in args or type(args[_CORRELATION].value) is not int:
                args[_CORRELATION] = Argument.of(_CORRELATION, stages[0])
            for stage in stages:
                self._launches.add(stage, str(args[_CORRELATION].value))
        for ids in (event.flows, event.flows_old, event.ending_flows, event.ending_flows_old):
            for flow in ids:
                self._flows.add(flow, track, time, category)
        self._events.add(
            type_, sequence.number, track, time, duration, category, name or "", _json_of(args)
        )

    def _take_stage(self, stage: Any, sequence: PacketSequence, time: int | None) -> None:
        self._old_stages = [
            text(described.name) for described in stage.specifications.stages
        ] or self._old_stages
        if stage.HasField("specifications") and not stage.HasField("id"):
            return
        texts = sequence.texts
        described: str | None = texts["stages"].get(stage.stage)
        if described is None and 0 <= stage.stage_old < len(self._old_stages):
            described = self._old_stages[stage.stage_old]
        name = (
            texts["names"].get(stage.name_iid)
            or text(stage.name)
            or texts["kernels"].get(stage.kernel)
            or described
        )
        self.unnamed += name is None
        category = _STAGE_CATEGORIES.get((described or "").lower(), "kernel")
        if stage.launch or stage.stage in sequence.compute_stages:
            category = "kernel"
        args = {
            argument.name: argument
            for argument in (
                *(sequence.decoded(content, _extra) for content in stage.extra),
                *(sequence.decoded(stage.launch, sequence.launch) if stage.launch else ()),
            )
        }
        if "arch" in args:
            self.architecture = str(args["arch"].value)
        queue = stage.queue if stage.HasField("queue") else None
        if stage.HasField("queue_old") and queue is None:
            queue = stage.queue_old
        context = stage.context if stage.HasField("context") else None
        # What PyTorch adds is of CUDA: its context and stream, not those of the viewer.
        for key, number in (("device", stage.gpu), ("context", context), ("stream", queue)):
            if number is not None and key not in args:
                args[key] = Argument.of(key, number)
        for waited in stage.waits:
            self._waits.add(stage.id, waited)
        self._stages.add(
            stage.id,
            stage.gpu,
            msgspec.json.encode(args["stream"].value).decode() if "stream" in args else None,
            time,
            min(stage.duration, _LONGEST),
            category,
            name or "",
            _CORRELATION in args,
            _json_of(args),
        )

    def frames(self, packets: Packets) -> Frames:
        """Return the events, with the processes and threads that ``packets`` describes."""
        events = self._events.frame()
        tracks = events["track"].unique()
        places = [packets.place(track) for track in tracks]
        placed = pl.DataFrame(
            {
                "track": tracks,
                "pid": pl.Series([process for process, _ in places], dtype=pl.Int64),
                "tid": pl.Series([thread for _, thread in places], dtype=pl.Int64),
            }
        )
        return Frames(
            events.join(placed, on="track", how="left", maintain_order="left"),
            self._stages.frame(),
            self._flows.frame().join(placed, on="track", how="left", maintain_order="left"),
            self._waits.frame(),
            self._launches.frame().unique("id", keep="first"),
        )


class Frames(msgspec.Struct, frozen=True):
    """The events of a trace, in the order of the file; times are ns.

    ``events``: beginnings and ends of slices, whole slices and marks, on tracks. ``stages``: work
    of GPUs. ``flows``: events with the number of a flow. ``waits``: stages and those that they
    waited for. ``launches``: stages and the correlation of the call that submitted them.
    """

    events: pl.DataFrame
    stages: pl.DataFrame
    flows: pl.DataFrame
    waits: pl.DataFrame
    launches: pl.DataFrame


def _json_of(args: dict[str, Argument]) -> str:
    return f"{{{','.join(argument.json for argument in args.values())}}}"


def _extra(content: bytes) -> Argument:
    """Return an entry of a stage's ``extra_data`` as an argument of Kineto's events."""
    entry = message_class("ExtraData").FromString(content)
    name, value = text(entry.name), text(entry.value)
    is_number = name in _INTEGERS and _NUMBER.fullmatch(value)
    return Argument.of(_OF_EXTRA.get(name, name), int(value) if is_number else value)


def slices(events: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the slices and marks of ``events`` with their durations, and how many edges are left.

    The end of a track's slice is the next one that closes it, by time, as brackets nest. PyTorch
    writes all begins of a kind and then all their ends, in one order; by time alone, slices that
    touch or overlap would exchange their ends. An edge that is left has no end or no begin.
    """
    numbered = events.with_row_index("row")
    is_end, has_time = pl.col("type") == END, pl.col("start").is_not_null()
    edges = numbered.filter(pl.col("type").is_in([BEGIN, END]), has_time).select(
        "row", "sequence", "track", "start", is_end.alias("ends")
    )
    in_turn = _paired_in_turn(edges)
    by_time = edges.join(in_turn, on="sequence", how="anti", maintain_order="left")
    nested = durations(by_time, ["track"]).filter("closed")
    paired = pl.concat([pairs.select("row", "duration") for pairs in (in_turn, nested)])
    whole = (
        numbered.filter(~is_end)
        .join(paired, on="row", how="left", suffix="_paired", maintain_order="left")
        .with_columns(pl.coalesce("duration", "duration_paired").alias("duration"))
    )
    is_open = (pl.col("type") == BEGIN) & pl.col("duration").is_null() & has_time
    unpaired = edges.height - 2 * paired.height + numbered.filter(is_end, ~has_time).height
    return whole.filter(~is_open).drop("row", "duration_paired"), unpaired


def _paired_in_turn(edges: pl.DataFrame) -> pl.DataFrame:
    """Return the begins, with ``duration``, of sequences that write begins and then their ends."""
    runs = edges.with_columns(pl.col("ends").rle_id().over("sequence").alias("run")).with_columns(
        pl.int_range(pl.len()).over("sequence", "run").alias("place"), pl.col("run") // 2
    )
    pairs = runs.filter(~pl.col("ends")).join(
        runs.filter("ends"),
        on=["sequence", "run", "place"],
        how="full",
        suffix="_end",
        coalesce=True,
    )
    # Of a file that breaks off, the last ends are missing.
    is_last = pl.col("run") == pl.col("run").max().over("sequence")
    is_cut = pl.col("row_end").is_null() & is_last
    fits = (pl.col("track") == pl.col("track_end")) & (pl.col("start") <= pl.col("start_end"))
    # In the order of time, brackets nest.
    goes_back = edges.group_by("sequence").agg((pl.col("start").diff() < 0).any().alias("back"))
    return (
        pairs.with_columns(
            (fits | is_cut).fill_null(value=False).all().over("sequence").alias("fits")
        )
        .join(goes_back, on="sequence")
        .filter("fits", "back", pl.col("row_end").is_not_null())
        .with_columns((pl.col("start_end") - pl.col("start")).alias("duration"))
    )
