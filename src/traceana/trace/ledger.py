"""The integrity ledger: events of a file that are missing from the tables, or suspect.

A *note* is by design and loses no data (launch flows that repeat the correlation id). A *problem*
means that the trace is incomplete; ``--strict`` rejects it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import polars as pl

from traceana.plain_text import as_unicode
from traceana.trace.schema import TABLES, empty

REASONS: Final[dict[str, tuple[Literal["note", "problem"], str]]] = {
    # reason: (severity, meaning)
    "launch_flow": ("note", "flow arrows from launch to kernel; they repeat the correlation id"),
    "flow": ("note", "other flow arrows"),
    "metadata": ("note", "names and labels of processes and threads"),
    "instant": ("note", "instantaneous marks of the profiler"),
    "counter": ("note", "counter samples"),
    "no_value": ("note", "counter samples without a finite number"),
    "span": ("note", "the profiler's own recording span"),
    "event_record": ("note", "records of CUDA events; a wait has the stream of its event"),
    "range_end": ("note", "ends of ranges; start and end are one row of the table"),
    "repeated": ("note", "events that the file repeats in another form"),
    "aggregate": ("note", "events that aggregate several and have no time"),
    "rounded": ("note", "events with times finer than a nanosecond, rounded"),
    "cut_end": (
        "note",
        "device work that ends where the next of its stream begins: an exporter without overlaps "
        "may have cut its end",
    ),
    "few_digits": ("note", "times and sizes printed with fewer digits than nanoseconds and bytes"),
    "other_run": ("note", "rows of the printed tables of other runs: the first run is shown"),
    "several_reports": ("note", "printed reports of several processes or runs, added up"),
    "system_call": ("note", "calls of the operating system"),
    "unknown_category": ("note", "events of an unsupported category"),
    "unmatched": ("note", "measured launches and kernels that do not match"),
    "untimed": ("note", "allocator events recorded without a time, in the order of the file"),
    "lost_field": ("note", "unparsed fields of events; the events are kept"),
    "other_recording": (
        "note",
        "recordings beside another one, which is read: of the same name, or the newest run",
    ),
    "windows": (
        "note",
        "recordings of one process, one after the other: the time between them is left out",
    ),
    "cut": ("note", "events outside the steps that were cut from the recording"),
    "missing_rank": ("note", "ranks of the run without a file"),
    "not_demangled": ("note", "C++ names that could not be demangled"),
    "deep_range": (
        "note",
        "ranges nested too deep for a layer of their own: part of the enclosing one",
    ),
    "cut_step": (
        "note",
        "last steps that the end of the recording cut: not among the steps",
    ),
    "by_repetition": (
        "note",
        "device work whose layer is inferred from a repetition of its context",
    ),
    "graph_node": ("note", "records of CUDA graph nodes: the capture of each is that of its work"),
    "graph_capture": (
        "note",
        "work of CUDA graph replays whose layer is that of its node's capture",
    ),
    "graph_sequence": (
        "note",
        "work of CUDA graph replays whose layer is that of an equal sequence launched by call",
    ),
    "graph_unknown": (
        "note",
        "work of CUDA graph replays without a layer: give a recording of the capture, or of the "
        "network without graphs (--capture)",
    ),
    "launched_before": (
        "note",
        "device work launched before the recording, normal for asynchronous training: in no step",
    ),
    "no_launch": ("problem", "device work whose launch was lost"),
    "no_work": ("problem", "launches whose work was lost: the device did more than was recorded"),
    "no_device_work": (
        "problem",
        "launches of GPU work that was not recorded: all times are of the host",
    ),
    "no_device": ("problem", "device work without a device: in no device's utilization"),
    "no_direction": ("problem", "copies without a direction: in no advice on copies"),
    "no_size": ("problem", "copies without a size: in no bandwidth"),
    "unread_work": ("problem", "events of an unsupported category that look like device work"),
    "zero_timestamp": ("problem", "events with a start of 0: the profiler lost their times"),
    "duplicate": ("problem", "events recorded twice, identical"),
    "negative_duration": ("problem", "events that end before they start"),
    "impossible_time": (
        "problem",
        "events a year or more from the others, or longer than a year",
    ),
    "impossible_overlap": (
        "problem",
        "device work that outlasts later work of its stream: its duration cannot be right",
    ),
    "missing_time": ("problem", "events without a start or a duration"),
    "unclosed": ("problem", "ranges without an end, from one step into later ones"),
    "malformed": ("problem", "events that cannot be decoded"),
    "oversized": ("problem", "names over 64 KiB, cut; events or keys beside them over 16 MiB"),
    "repaired": ("problem", "passages of invalid JSON, repaired before decoding"),
    "truncated": ("problem", "the file is truncated"),
    "cut_table": ("problem", "printed tables without all their rows"),
    "damaged": ("problem", "the file is damaged: events lost or wrong"),
    "empty": ("problem", "events without a name, a time and values"),
    "unnamed": ("problem", "events whose name is missing from the file"),
    "skipped_file": ("problem", "unreadable files of the folder"),
    "apart": ("problem", "ranks by file name whose captures do not overlap"),
    "no_epoch": ("problem", "files without a start time, beside files with one"),
    "missing_table": ("problem", "tables of the format that are missing from the file"),
    "other_end": (
        "problem",
        "allocations that the history leaves allocated and the blocks of the snapshot do not have",
    ),
    "dropped_by_profiler": ("problem", "events dropped by the profiler"),
}

_MOST: Final = 2**63 - 1
"""The largest number of a table; no sum of a sound file is as large."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the ledger; ``time_ns`` is null for events without a duration."""

    reason: str
    table: str
    kept: bool
    count: int
    time_ns: int | None
    detail: str | None


class Ledger:
    """Collects the entries of one reader."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(
        self,
        reason: str,
        count: int,
        *,
        table: str,
        kept: bool = False,
        time_ns: int | None = None,
        detail: str | None = None,
    ) -> None:
        """Count ``count`` events under ``reason``; a count of 0 leaves no entry.

        Raises ``KeyError`` on a reason that is not in :data:`REASONS`.
        """
        if reason not in REASONS:
            raise KeyError(reason)
        if count:
            text = None if detail is None else as_unicode(detail)  # it may name a file
            self._entries.append(Entry(reason, table, kept, count, time_ns, text))

    def __bool__(self) -> bool:
        return bool(self._entries)

    def frame(self) -> pl.DataFrame:
        """Return the ledger as a table; equal reasons of one table are added up."""
        if not self._entries:
            return empty("ledger")
        # Added in Python: a sweep has hundreds of small ledgers, and a query takes longer.
        added: dict[tuple[str, str, bool, str | None], tuple[int, int | None]] = {}
        for entry in self._entries:
            key = entry.reason, entry.table, entry.kept, entry.detail
            count, time = added.get(key, (0, None))
            if entry.time_ns is not None:
                time = (time or 0) + entry.time_ns
            added[key] = count + entry.count, time
        rows = [
            {
                "reason": reason,
                "severity": REASONS[reason][0],
                "table": table,
                "kept": kept,
                "count": min(count, _MOST),
                "time_ns": None if time is None or abs(time) > _MOST else time,
                "detail": detail,
                "rank": None,
            }
            for (reason, table, kept, detail), (count, time) in added.items()
        ]
        return pl.DataFrame(rows, schema=TABLES["ledger"])
