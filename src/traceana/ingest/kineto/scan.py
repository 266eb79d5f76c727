"""Scans Kineto's JSON events into column chunks, with the compiled scanner.

The frames are those of :mod:`traceana.ingest.kineto.decode`, whose decoder reads what the scanner
refuses.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.chrome.event_decoder import EventDecoder
from traceana.ingest.chrome.scanner import Column, Rule, Scanned, Scanner
from traceana.ingest.compiled import COMPILED
from traceana.ingest.kineto import decode
from traceana.ingest.kineto.decode import (
    BACKENDS,
    COMPLETE,
    ELEMENT_BYTES,
    FRAMES,
    LAUNCH,
    LAUNCH_FLOWS,
    MEMORY,
    NCCL,
    Columns,
    Event,
    columns_of,
    leave_out,
)

_LARGEST_MESSAGE: Final = 2**59
"""Elements of a collective; the bytes of larger ones may not fit in 64 bits."""


def _each(kind: str, *names: str) -> dict[str, Column]:
    return {name: (kind, name) for name in names}


_COMMON: Final[dict[str, Column]] = {
    "category": ("s", "cat"),
    "name": ("s", "name"),
    "pid": ("i", "pid"),
    "tid": ("i", "tid"),
    "start": ("t", "ts"),
    "duration": ("t", "dur"),
}
_EXTERNAL: Final[dict[str, Column]] = {"external": ("i", "external", "external_old")}
_GROUP: Final[dict[str, Column]] = {
    **_each("s", "group_name", "group_description", "group_ranks"),
    **_each("i", "group_size"),
    **_each("n", "collective_sequence"),
    "peer": ("i", "destination_rank", "source_rank"),
}
_COLUMNS: Final[dict[str, dict[str, Column]]] = {
    "device": {
        **_COMMON,
        **_each("i", "device", "context", "stream", "correlation"),
        **_EXTERNAL,
        **{f"{what}_{axis}": (axis, what) for what in ("grid", "block") for axis in "xyz"},
        **_each("i", "registers", "shared_memory", "bytes", "graph_node"),
        **_each("i", "event_stream", "event_correlation"),
        **_each("s", "collective", "message_type"),
        **_each("i", "message_elements", "output_elements"),
        "annotation": ("s", "annotation", "annotation_text"),
        **_GROUP,
    },
    "call": {
        **_COMMON,
        **_each("i", "correlation"),
        **_EXTERNAL,
        "bytes": ("i", "bytes", "size"),
    },
    "op": {
        **_COMMON,
        **_EXTERNAL,
        **_each("i", "sequence", "forward_thread"),
        "input_shapes": ("r", "shapes", "shapes_old"),
        "input_types": ("r", "types"),
        "input_strides": ("r", "strides"),
        "inputs": ("r", "inputs"),
        "module": ("s", "module"),
        # Of the operators around the launch of a collective, which are picked out of them.
        **_GROUP,
    },
    # With the columns of host collectives, which are picked out of them.
    "range": {
        **_COMMON,
        **_EXTERNAL,
        "input_shapes": ("r", "shapes"),
        "input_types": ("r", "types"),
        "inputs": ("r", "inputs"),
    },
    "flow": {
        "category": ("s", "cat"),
        "id": ("i", "id"),
        "phase": ("s", "ph"),
        **_each("i", "pid", "tid"),
        "time": ("t", "ts"),
    },
    "instant": {
        "name": ("s", "name"),
        **_each("i", "pid", "tid"),
        "time": ("t", "ts"),
        **_each("i", "device_type"),
        "device": ("i", "device_id"),
        "address": ("i", "address"),
        "bytes": ("i", "memory_bytes"),
        **_each("i", "allocated", "reserved"),
    },
}
_NO_INSTANTS: Final = pl.DataFrame(schema={"name": pl.Categorical})
_RULES: Final = [
    *(Rule("X", category, frame) for category, frame in COMPLETE.items()),
    *(
        Rule(phase, category, None if category else "flow")
        for phase in "sf"
        for category in (None, *LAUNCH_FLOWS)
    ),
    *(Rule(phase, None, "instant") for phase in "iI"),
]


class ScanningDecoder(EventDecoder[Event, Columns]):
    """Decodes by the scanner, and what it refuses as :class:`EventDecoder` does."""

    threads = 2
    # No objects are made of the events, and columns cost by their number.
    block = 16 << 20

    def __init__(self) -> None:
        super().__init__(Event, columns_of)
        self._scanner = Scanner(Event, _COLUMNS, _RULES)

    def decode(self, text: bytes, stop: int | None = None) -> Columns:
        """Return the columns of ``text[:stop]``, whole events separated by commas.

        Raises ``UndecodableError``.
        """
        columns = self.scanned(text, len(text) if stop is None else stop)
        return super().decode(text, stop) if columns is None else columns

    def accepts(self, text: bytes) -> bool:
        """Return whether the scanner accepts ``text``."""
        return self._scanner.accepts(text)

    def scanned(self, text: bytes, stop: int) -> Columns | None:
        """Return the columns of ``text[:stop]``; None where the decoder in Python has to."""
        found = self._scanner.scan(text, stop)
        return None if found is None else _columns(found)


DECODER: Final = ScanningDecoder() if COMPILED else decode.DECODER


def _columns(scanned: Scanned) -> Columns | None:
    """Return the columns of Kineto's frames; None where the decoder in Python has to make them."""
    frames = scanned.frames
    columns = Columns(events=scanned.events)
    instants = frames.pop("instant", _NO_INSTANTS)
    memory = _NO_INSTANTS
    if MEMORY in scanned.texts:
        memory = instants.filter(pl.col("name").cast(pl.String) == MEMORY)
    if "device" in frames:
        messages = _with_message_bytes(frames["device"])
        if messages is None:
            return None
        frames["device"] = messages
    if LAUNCH in scanned.texts and "op" in frames:
        launches = frames["op"].filter(pl.col("name").cast(pl.String) == LAUNCH)
        if launches.height:
            frames["launch"] = launches
    if "range" in frames:
        frames |= _split_ranges(frames["range"], scanned.texts)
    if "flow" in frames:
        frames["flow"] = frames["flow"].with_columns(
            (pl.col("phase").cast(pl.String) == "f").alias("ends")
        )
    if memory.height:
        frames["memory"] = memory
    for name, frame in frames.items():
        columns.frames[name].append(_as_decoded(frame, scanned.texts)[[*FRAMES[name]]])
    for route in scanned.routes:
        if route.frame is None:
            leave_out(columns, route.phase, (route.category or "").lower(), route.events)
        elif route.frame == "instant":
            columns.count("instant", "", instants.height - memory.height)
            instants = memory  # counted once, where the first category of them stands
    return columns


def _as_decoded(frame: pl.DataFrame, texts: list[str | None]) -> pl.DataFrame:
    """Return ``frame`` with an absent name as an empty one, and an empty module as absent."""
    if "name" in frame.columns and frame["name"].null_count():
        frame = frame.with_columns(pl.col("name").fill_null(""))
    if "module" in frame.columns and "" in texts:
        frame = frame.with_columns(pl.when(pl.col("module") != "").then("module").alias("module"))
    return frame


def _with_message_bytes(device: pl.DataFrame) -> pl.DataFrame | None:
    """Return device rows whose bytes are those of a collective's message where it is recorded."""
    elements = device.select("message_elements", "output_elements")
    if all(column.null_count() == len(column) for column in elements):
        return device.with_columns(pl.col("output_elements").alias("output_bytes"))
    if not all(column.drop_nulls().is_between(0, _LARGEST_MESSAGE).all() for column in elements):
        return None
    size = (
        pl.col("message_type")
        .cast(pl.String)
        .replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    )
    message = pl.col("message_elements")
    return device.with_columns(
        pl.when(message.is_null()).then("bytes").otherwise(message * size).alias("bytes"),
        (pl.col("output_elements") * size).alias("output_bytes"),
    )


def _split_ranges(ranges: pl.DataFrame, texts: list[str | None]) -> dict[str, pl.DataFrame]:
    """Return the ranges, with shapes only where c10d wrote them, and host collectives."""
    found = {"range": ranges}
    name = pl.col("name").cast(pl.String)
    if any(text is not None and text.startswith(BACKENDS) for text in texts):
        of_backend = pl.any_horizontal(name.str.starts_with(backend) for backend in BACKENDS)
        is_one = (pl.col("category").cast(pl.String) == "user_annotation") & of_backend
        found["host_collective"] = ranges.filter(is_one)
        found["range"] = ranges = ranges.filter(~is_one.fill_null(False))
    shapes = ["input_shapes", "input_types"]
    if any(ranges[shape].null_count() < ranges.height for shape in shapes):
        found["range"] = ranges.with_columns(
            pl.when(name.str.starts_with(NCCL)).then(pl.col(shapes))
        )
    return found
