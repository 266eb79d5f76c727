"""Joins recordings of one process, windows of the profiler's schedule, into one run.

``tensorboard_trace_handler`` writes a file for each repetition of the schedule. It names its files
after the worker (host and process) and the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from traceana.errors import UsageError
from traceana.plain_text import as_unicode
from traceana.trace import Ledger, Trace
from traceana.trace.schema import TIME_COLUMNS

_WORKER: Final = re.compile(r"(.+)\.\d{10,19}\.pt\.trace\.json(?:\.gz)?")
_PROCESS: Final = ["rank", "process"]


def worker_name(file: Path) -> str | None:
    """Return the worker in the name of ``file``; None for names of other tools."""
    worker = _WORKER.fullmatch(file.name)
    return worker[1] if worker else None


def worker_of(file: Path) -> str | None:
    """Return the folder and the worker in the name of ``file``; None for names of other tools."""
    worker = worker_name(file)
    return None if worker is None else f"{file.parent}\0{worker}"


def processes_of(files: Sequence[Path]) -> list[int]:
    """Return the number of each file's process; a file without a worker is of its own process."""
    numbers: dict[str | int, int] = {}
    return [
        numbers.setdefault(worker_of(file) or place, len(numbers))
        for place, file in enumerate(files)
    ]


def join_windows(
    files: Sequence[Path], traces: Sequence[Trace], processes: Sequence[int], ledger: Ledger
) -> tuple[list[Trace], dict[str, int]]:
    """Return ``traces`` without the time between windows, and the start of each file's window.

    The time in which no process was recorded is taken out of the epochs: it is neither idle time
    nor a part of a step. Starts are in ns from the first event of all. ``ledger`` counts the
    windows. Raises ``UsageError`` for files of one process whose times are unknown or overlap.
    """
    recorded = sorted(
        (trace.meta.epoch_ns, place)
        for place, trace in enumerate(traces)
        if trace.meta.epoch_ns is not None
    )
    if len(recorded) < len(traces):
        raise UsageError(f"{_of_one_process(files, processes)}, without times: pass one of them")
    joined = list(traces)
    starts: dict[str, int] = {}
    first, until = recorded[0][0], recorded[0][0]
    between = window_start = 0
    last_of_process: dict[int, tuple[int, Path]] = {}
    in_window: set[int] = set()
    for begin, place in recorded:
        process, end = processes[place], begin + _recorded_ns(traces[place])
        process_end, earlier = last_of_process.get(process, (begin, files[place]))
        if begin < process_end:
            raise UsageError(
                f"{earlier} and {files[place]} are recordings of one process at the same time: "
                "pass one of them"
            )
        if begin > until or process in in_window:
            between += max(begin - until, 0)
            window_start = begin - first - between
            in_window.clear()
        in_window.add(process)
        last_of_process[process] = (end, files[place])
        until = max(until, end)
        starts[as_unicode(str(files[place]))] = window_start
        joined[place] = traces[place].with_meta(epoch_ns=begin - between)
    ledger.add(
        "windows",
        len(files),
        table="-",
        kept=True,
        time_ns=between,
        detail=f"{len(set(processes))} process{'es' if len(set(processes)) > 1 else ''}",
    )
    return joined, starts


def _of_one_process(files: Sequence[Path], processes: Sequence[int]) -> str:
    repeated = next(number for number in processes if processes.count(number) > 1)
    first, second, *_ = (
        file for file, number in zip(files, processes, strict=True) if number == repeated
    )
    return f"{first} and {second} are recordings of one process"


def with_windows_united(trace: Trace) -> Trace:
    """Return the merged ``trace`` with each device and process group once.

    Steps are numbered in the order of their starts where a process repeats a number.
    """
    groups = trace.tables.process_groups
    distinct_groups = groups.unique(maintain_order=True)
    row_of_group = groups.join(
        distinct_groups.with_row_index("row"),
        on=groups.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["row"]
    activities = trace.tables.activities
    return trace.with_tables(
        steps=_numbered_through(trace.tables.steps),
        devices=trace.tables.devices.unique(["rank", "device"], keep="first", maintain_order=True),
        process_groups=distinct_groups,
        activities=activities.with_columns(
            row_of_group.gather(activities["process_group"]).alias("process_group")
        ),
    )


def _numbered_through(steps: pl.DataFrame) -> pl.DataFrame:
    if not steps.select(pl.struct(*_PROCESS, "number").is_duplicated().any()).item():
        return steps
    order = pl.col("start").rank("ordinal").over(_PROCESS).cast(pl.Int64)
    return steps.with_columns((order - 1 + pl.col("number").min().over(_PROCESS)).alias("number"))


def _recorded_ns(trace: Trace) -> int:
    """Return the time from the first event of ``trace``, its time 0, to the end of the last."""
    ends = [0]
    for name, columns in TIME_COLUMNS.items():
        table = trace.tables[name]
        ends += [end for column in columns if isinstance(end := table[column].max(), int)]
        if {"start", "duration"} <= {*table.columns}:
            last = (table["start"] + table["duration"]).max()
            ends += [last] if isinstance(last, int) else []
    return max(ends)
