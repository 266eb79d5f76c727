"""The segments of the critical path of each step, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.critical.device import device_work
from traceana.analyze.critical.host import host
from traceana.analyze.critical.labels import labelled
from traceana.analyze.critical.threads import Threads, of_process
from traceana.analyze.critical.walk import GAP, LAUNCH, WORK, Stretches, Walk
from traceana.analyze.critical.windows import windows
from traceana.enrich.nesting import NONE
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace


def segments(trace: Trace) -> pl.DataFrame:
    """Return the critical path of every step of ``trace``, in the order of the steps and of time.

    The path of a step is found from its end: a piece of device work waited for the latest of the
    work before it on its stream, its launch, and what its stream was told to wait for; a call that
    returned after device work had ended waited for that; a thread that was at nothing waited for
    the thread that was last at something. The segments of a step are without gaps, and add up to
    its window (:func:`traceana.analyze.critical.windows.windows`), to the nanosecond.

    Columns: ``step_row`` (row of ``steps``; of a trace without steps that of the window), ``step``
    (its number), ``start_ns``, ``time_ns``, and those of
    :func:`traceana.analyze.critical.labels.labelled`.
    """
    whole = trace.whole
    own = windows(trace).with_row_index("step_row")
    threads = Threads.of(whole, own)
    parts = [path for steps in _processes(own) for path in _paths(trace, steps, threads)]
    raw = pl.concat(parts) if parts else _frame(0, Stretches())
    ordered = labelled(whole, raw, threads).sort("step_row", "start_ns", maintain_order=True)
    return ordered.with_columns(own["number"].gather(ordered["step_row"]).alias("step"))


def _processes(own: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Return the windows of each process that marked steps; of each rank where one process did."""
    for rank in own.partition_by("rank", maintain_order=True):
        yield from rank.partition_by("process", maintain_order=True)


def _paths(trace: Trace, steps: pl.DataFrame, threads: Threads) -> Iterator[pl.DataFrame]:
    """Return the path of each of ``steps``, the windows of one process, last stretch first."""
    whole = trace.whole
    rank = steps["rank"][0]
    alone = whole.steps.filter(of_process(whole.steps, rank, None))["process"].n_unique() <= 1
    process = None if alone else steps["process"][0]
    op_key = np.where(of_process(whole.ops, rank, process), threads.ops, NONE)
    call_key = np.where(of_process(whole.calls, rank, process), threads.calls, NONE)
    window_key = threads.windows[steps["step_row"].to_numpy()]
    activities = whole.activities.with_row_index("row").filter(
        of_process(whole.activities, rank, process)
    )
    syncs = activities.filter(pl.col("kind") == "sync")
    work = activities.filter(pl.col("kind").is_in(DEVICE_WORK))
    device = device_work(trace, work, syncs, call_key)
    walk = Walk(device, host(trace, device, syncs, op_key, call_key, window_key))
    columns = steps.select("step_row", "begin", "end", "host_end").iter_rows()
    for (row, begin, end, host_end), thread in zip(columns, window_key.tolist(), strict=True):
        path = _frame(row, walk.window(begin, end, host_end, thread))
        at_work = pl.col("what").is_in([WORK, GAP, LAUNCH])
        place = pl.when(at_work).then("of").otherwise(None)
        rows = pl.Series(device.activity, dtype=pl.Int64)
        why = pl.Series(device.why, dtype=pl.Int64)
        places = path.select(place).to_series()
        yield path.with_columns(
            pl.when(at_work).then(rows.gather(places)).otherwise("of").alias("of"),
            why.gather(places).alias("why"),
        )


def _frame(row: int, path: Stretches) -> pl.DataFrame:
    """Return a path as a frame: ``why`` is still to be told of work."""
    return pl.DataFrame(
        {
            "step_row": pl.Series([row] * len(path.begin), dtype=pl.UInt32),
            "begin": pl.Series(path.begin, dtype=pl.Int64),
            "end": pl.Series(path.end, dtype=pl.Int64),
            "what": pl.Series(path.what, dtype=pl.Int64),
            "of": pl.Series(path.of, dtype=pl.Int64),
            "why": pl.Series([None] * len(path.begin), dtype=pl.Int64),
        }
    )
