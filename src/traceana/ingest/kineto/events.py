"""Kineto's events: the JSON fields that are read, and the frames that the decoder fills from them.

Every generation of the format is covered by one struct: torch 1.7 wrote ``external id`` and
``Input dims`` where later ones write ``External id`` and ``Input Dims``. Numbers may come as text
(``"tid": "stream 7"``, AMD's ``"bytes": "800"``): their fields here accept both, and each column
is converted to integers at once. Times stay raw text: a float64 of microseconds since the epoch has
a step of 0.25 µs.

A decoder makes :class:`Columns` of JSON text: int64 nanoseconds on the file's clock, categories in
the file's spelling, rows in the order of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import polars as pl
from msgspec import Raw, Struct
from msgspec import field as named

from traceana.ingest.chrome.event_decoder import Counted

Number: TypeAlias = int | str | float | None
"""An integer as the trace spells it."""
ABSENT: Final = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The ``args`` of an event of any category."""

    correlation: Number = None
    device: Number = None
    context: Number = None
    stream: Number = None
    bytes: Number = None
    size: Number = None  # AMD's memory calls
    # Three numbers of a kernel; Triton's launches on the host have a "grid" of any kind.
    grid: object = None
    block: object = None
    registers: Number = named(default=None, name="registers per thread")
    shared_memory: Number = named(default=None, name="shared memory")
    graph_node: Number = named(default=None, name="graph node id")
    event_stream: Number = named(default=None, name="wait_on_stream")
    event_correlation: Number = named(default=None, name="wait_on_cuda_event_record_corr_id")
    external: Number = named(default=None, name="External id")
    external_old: Number = named(default=None, name="external id")
    sequence: Number = named(default=None, name="Sequence number")
    forward_thread: Number = named(default=None, name="Fwd thread id")
    shapes: Raw = named(default=ABSENT, name="Input Dims")
    shapes_old: Raw = named(default=ABSENT, name="Input dims")
    types: Raw = named(default=ABSENT, name="Input type")
    strides: Raw = named(default=ABSENT, name="Input Strides")
    inputs: Raw = named(default=ABSENT, name="Concrete Inputs")
    module: str | None = named(default=None, name="Module Hierarchy")
    # Collectives; other events have a "dtype" of any kind.
    message_elements: object = named(default=None, name="In msg nelems")
    message_type: object = named(default=None, name="dtype")
    collective: object = named(default=None, name="Collective name")
    group_size: object = named(default=None, name="Group size")
    output_elements: object = named(default=None, name="Out msg nelems")
    group_name: object = named(default=None, name="Process Group Name")
    group_description: object = named(default=None, name="Process Group Description")
    group_ranks: object = named(default=None, name="Process Group Ranks")
    collective_sequence: object = named(default=None, name="Seq")
    destination_rank: Number = named(default=None, name="Dst Rank")
    source_rank: Number = named(default=None, name="Src Rank")
    device_type: Number = named(default=None, name="Device Type")
    device_id: Number = named(default=None, name="Device Id")
    address: Number = named(default=None, name="Addr")
    memory_bytes: Number = named(default=None, name="Bytes")
    allocated: Number = named(default=None, name="Total Allocated")
    reserved: Number = named(default=None, name="Total Reserved")


NO_ARGS: Final = Args()


class Event(Struct, gc=False):
    """One element of ``traceEvents``."""

    ph: str
    name: str = ""
    cat: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    id: Number = None
    args: Args = NO_ARGS


_TEXT = pl.Categorical
_COMMON: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "category": _TEXT,
    "name": _TEXT,
    "pid": pl.Int64,
    "tid": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
}

_GROUP: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "group_name": _TEXT,
    "group_description": _TEXT,
    "group_ranks": _TEXT,
    "group_size": pl.Int64,
    "collective_sequence": pl.Int64,
    "peer": pl.Int64,
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
        **_GROUP,
        "output_bytes": pl.Int64,
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
    # c10d's operator around the launch of a collective's kernel; also a row of "op".
    "launch": {"external": pl.Int64, **_GROUP},
    # Only c10d's annotations have shapes.
    "range": {**_COMMON, "input_shapes": pl.String, "input_types": pl.String},
    # Collectives of c10d's host backends, which Kineto writes as annotations.
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


class Columns(Counted):
    """The events of one stretch of the file, by frame."""

    frames: dict[str, list[pl.DataFrame]] = msgspec.field(
        default_factory=lambda: {name: [] for name in FRAMES}
    )

    def take(self, other: Columns) -> None:
        """Append another stretch."""
        self.add(other)
        for name, frames in other.frames.items():
            self.frames[name] += frames

    def frame(self, name: str) -> pl.DataFrame:
        """Return the rows of one frame so far."""
        frames: Sequence[pl.DataFrame] = self.frames[name]
        return pl.concat(frames) if frames else pl.DataFrame(schema=FRAMES[name])
