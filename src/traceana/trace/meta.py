"""Metadata of a trace: its source, format, epoch, and bytes read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from traceana.files import as_unicode, shown
from traceana.frozen import frozen_mapping

HOW_OPENED: Final = frozenset({"opened", "opened_with"})
"""Fields of the meta that a bundle does not keep."""


class TraceMeta(msgspec.Struct, kw_only=True, frozen=True):
    """Metadata of one trace.

    ``epoch_ns`` is the Unix time in nanoseconds of the trace's time 0, null where the format
    does not record it. ``bytes_read`` and ``bytes_total`` are sizes of the file on disk;
    they differ when it is ``truncated``.
    """

    source: str
    format: str
    format_version: str | None = None
    producer: str | None = None
    framework: str | None = None
    epoch_ns: int | None = None
    rank: int | None = None
    world_size: int | None = None
    truncated: bool = False
    bytes_read: int | None = None
    bytes_total: int | None = None
    events: int | None = None
    """Events found in the file; each is in a table or counted in the ledger."""
    opened: tuple[str, ...] = ()
    """The paths that the trace was opened by, where they may not be ``source``: of a bundle or
    another folder, or the files of several ranks."""
    opened_with: tuple[str, ...] = ()
    """The options that it was opened with, as words of the command line, less the selection."""
    unprofiled_step_ns: float | None = None
    """The step time without the profiler, where the recorded run measured it."""
    steps_run_ahead: bool = False
    """Whether steps were recorded as ended before the device had finished them."""
    properties: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Properties of the format: driver and CUDA versions, host, profiler options."""

    @property
    def host(self) -> str | None:
        """Name of the machine, or names, as recorded: nsys has ``host``, XPlane ``hostnames``."""
        names = self.properties.get("hostnames")
        if isinstance(names, tuple) and names:
            return ", ".join(map(str, names))
        name = self.properties.get("host")
        return str(name) if name else None

    def saved(self) -> TraceMeta:
        """Return the meta as a bundle keeps it: without how the trace was opened."""
        return msgspec.structs.replace(self, **dict.fromkeys(HOW_OPENED, ()))

    def __post_init__(self) -> None:
        """Make the path valid text (a file name may have other bytes), the properties read-only."""
        msgspec.structs.force_setattr(self, "source", shown(as_unicode(self.source)))
        msgspec.structs.force_setattr(self, "properties", frozen_mapping(self.properties))
