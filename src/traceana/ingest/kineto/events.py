"""The events of Kineto's JSON as typed structs: only the fields that a table keeps.

Every generation of the format is covered by one struct: torch 1.7 wrote ``external id`` and
``Input dims`` where later ones write ``External id`` and ``Input Dims``. Numbers may come as text
(``"tid": "stream 7"``, AMD's ``"bytes": "800"``), so they are typed loosely here and made integers
column by column. Times stay raw text: a float64 of microseconds since the epoch has a step of
0.25 µs.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Raw, Struct, field

Number: TypeAlias = int | str | float | None
"""An integer as the trace spells it."""

ABSENT: Final = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The ``args`` of an event, of whatever category."""

    correlation: Number = None
    device: Number = None
    context: Number = None
    stream: Number = None
    bytes: Number = None
    size: Number = None  # AMD's memory calls
    # Three numbers of a kernel; Triton's launches on the host have a "grid" of any kind.
    grid: object = None
    block: object = None
    registers: Number = field(default=None, name="registers per thread")
    shared_memory: Number = field(default=None, name="shared memory")
    graph_node: Number = field(default=None, name="graph node id")
    event_stream: Number = field(default=None, name="wait_on_stream")
    event_correlation: Number = field(default=None, name="wait_on_cuda_event_record_corr_id")
    external: Number = field(default=None, name="External id")
    external_old: Number = field(default=None, name="external id")
    sequence: Number = field(default=None, name="Sequence number")
    forward_thread: Number = field(default=None, name="Fwd thread id")
    shapes: Raw = field(default=ABSENT, name="Input Dims")
    shapes_old: Raw = field(default=ABSENT, name="Input dims")
    types: Raw = field(default=ABSENT, name="Input type")
    strides: Raw = field(default=ABSENT, name="Input Strides")
    inputs: Raw = field(default=ABSENT, name="Concrete Inputs")
    module: str | None = field(default=None, name="Module Hierarchy")
    # Of a collective. Other events have a "dtype" of any kind.
    message_elements: object = field(default=None, name="In msg nelems")
    message_type: object = field(default=None, name="dtype")
    collective: object = field(default=None, name="Collective name")
    group_size: object = field(default=None, name="Group size")
    device_type: Number = field(default=None, name="Device Type")
    device_id: Number = field(default=None, name="Device Id")
    address: Number = field(default=None, name="Addr")
    memory_bytes: Number = field(default=None, name="Bytes")
    allocated: Number = field(default=None, name="Total Allocated")
    reserved: Number = field(default=None, name="Total Reserved")


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
