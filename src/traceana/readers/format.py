"""What a format says of itself: how a file of it is known, and where its reader is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path

import msgspec


class Confidence(IntEnum):
    """How sure a format is that a file is of it; the surest reads the file.

    Of two that are equally sure, it is the first in :data:`traceana.readers.detect.FORMATS`.
    """

    NONE = 0
    TITLES = 1
    """A title or two of its tables; the rest of the file may have more."""
    LOG = 2
    """The messages that the profiler prints; the rest of the file may have its tables."""
    JSON = 3
    """JSON that may have events further on."""
    EVENTS = 4
    """Events of a Chrome trace, without anything that is of one profiler only."""
    COUNTERS = 5
    """A printed table of counters."""
    SUMS = 6
    """A printed table of names with their sums."""
    TIMELINE = 7
    """A printed table with a row for each activity, which has more than the sums beside it."""
    CERTAIN = 8


class Head(msgspec.Struct, frozen=True):
    """The beginning of a file, as a format is asked about it. Empty for a folder.

    ``content`` are its first 64 KiB, inflated, in UTF-8 without a byte order mark; ``text`` is that
    without what terminals, launchers and web pages put around a profiler's text. ``tables`` are the
    columns of each table of an SQLite database. ``is_json``: it begins as JSON that may have events
    does, and ``has_events``, if one of them is a Chrome trace's. ``is_whole``: these are all.
    """

    path: Path
    content: bytes = b""
    text: bytes = b""
    tables: Mapping[str, tuple[str, ...]] = {}
    is_json: bool = False
    has_events: bool = False
    is_inflated: bool = False
    is_utf_16: bool = False
    is_whole: bool = False

    @property
    def is_trace(self) -> bool:
        """Whether it is JSON with events, in which no printed table is searched."""
        return self.is_json and self.has_events


class Format(msgspec.Struct, frozen=True):
    """A format that is known. ``reader`` is the function that reads a path, as ``module:function``
    below ``traceana.readers``, imported when a file needs it; of ``is_database`` it reads the
    tables of an opened :class:`~traceana.readers.sqlite.Database`.

    ``instead``: no reader; what to do with a file in place of reading it. ``{file}`` is its name.
    """

    name: str
    sniff: Callable[[Head], Confidence]
    reader: str = ""
    instead: str = ""
    is_database: bool = False
    has_counters: bool = False
    """It can be a table of counters of kernel launches, for ``--counters``."""
    is_printed: bool = False
    """Its table can be behind any amount of a program's output."""
    in_folders: bool = True
    """A folder's files of it are read: no tables of counters, and no printed tables, which are
    often logs."""
    run_of: Callable[[Path], Path] = lambda file: file
    """Returns the path of the run that a file is a part of."""


def known(is_known: object, confidence: Confidence = Confidence.CERTAIN) -> Confidence:
    """Return ``confidence`` where ``is_known``, else none."""
    return confidence if is_known else Confidence.NONE
