"""The seam between bytes and tables: column chunks, as a decoder of Kineto JSON delivers them.

A decoder (``split.Decoder``) makes ``Columns`` of bytes: whole elements of ``traceEvents``,
separated by commas. Whoever writes a faster decoder fills these frames.
Times are int64 nanoseconds as the file counts them; categories are spelt as the file spells them.
The rows of a frame are in the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from traceana.ingest.kineto.event_decoder import Counted

_TEXT = pl.Categorical
_COMMON: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "category": _TEXT,
    "name": _TEXT,
    "pid": pl.Int64,
    "tid": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
}

FRAMES: Final[dict[str, dict[str, pl.DataType | type[pl.DataType]]]] = {
    "device": {
        **_COMMON,
        "device": pl.Int64,
        "context": pl.Int64,
        "stream": pl.Int64,
        "correlation": pl.Int64,
        "external": pl.Int64,
        "grid_x": pl.Int64,
        "grid_y": pl.Int64,
        "grid_z": pl.Int64,
        "block_x": pl.Int64,
        "block_y": pl.Int64,
        "block_z": pl.Int64,
        "registers": pl.Int64,
        "shared_memory": pl.Int64,
        "bytes": pl.Int64,
        "graph_node": pl.Int64,
        "event_stream": pl.Int64,
        "event_correlation": pl.Int64,
        "collective": _TEXT,
        "group_size": pl.Int64,
    },
    "call": {
        **_COMMON,
        "correlation": pl.Int64,
        "external": pl.Int64,
        "bytes": pl.Int64,  # AMD prints a copy's size on the call alone
    },
    "op": {
        **_COMMON,
        "external": pl.Int64,
        "sequence": pl.Int64,
        "forward_thread": pl.Int64,
        "input_shapes": pl.String,
        "input_types": pl.String,
        "input_strides": pl.String,
        "inputs": pl.String,
        "module": _TEXT,
    },
    # Shapes are of c10d's annotations alone.
    "range": {**_COMMON, "input_shapes": pl.String, "input_types": pl.String},
    # Operators of c10d's backends on the host, printed among the annotations.
    "host_collective": {
        **_COMMON,
        "external": pl.Int64,
        "input_shapes": pl.String,
        "input_types": pl.String,
        "inputs": pl.String,
    },
    "flow": {
        "category": _TEXT,
        "id": pl.Int64,
        "ends": pl.Boolean,  # false: the flow starts here
        "pid": pl.Int64,
        "tid": pl.Int64,
        "time": pl.Int64,
    },
    "memory": {
        "pid": pl.Int64,
        "tid": pl.Int64,
        "time": pl.Int64,
        "device_type": pl.Int64,
        "device": pl.Int64,
        "address": pl.Int64,
        "bytes": pl.Int64,
        "allocated": pl.Int64,
        "reserved": pl.Int64,
    },
}


@dataclass(slots=True)
class Columns(Counted):
    """The events of one stretch of the file, by the table they are bound for."""

    frames: dict[str, list[pl.DataFrame]] = field(
        default_factory=lambda: {name: [] for name in FRAMES}
    )

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        for name, frames in other.frames.items():
            self.frames[name] += frames

    def frame(self, name: str) -> pl.DataFrame:
        """Return all rows of one frame so far."""
        frames: Sequence[pl.DataFrame] = self.frames[name]
        return pl.concat(frames) if frames else pl.DataFrame(schema=FRAMES[name])
