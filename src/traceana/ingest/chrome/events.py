"""The events of a Chrome trace as typed structs: what every program's have, and XPlane's stats."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, Struct

from traceana.ingest.xplane.stats import OF_DEVICE_WORK, OF_HOST

ABSENT: Final = Raw(b"")

STATS: Final = tuple(dict.fromkeys((*OF_DEVICE_WORK, *OF_HOST)))
"""Arguments that are XPlane's stats; their values are texts."""


class Event(Struct, gc=False):
    """One element of ``traceEvents``, whatever its fields hold.

    TensorFlow's exporter ends the list with an empty one.
    """

    ph: str = ""
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    args: Any = None
