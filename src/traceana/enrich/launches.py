"""Launches: the call that launched each activity, and work whose launch was not recorded."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, WIDEST, Flags, Ints, take, to_rows
from traceana.enrich.steps import step_of
from traceana.trace import Ledger
from traceana.trace.schema import DEVICE_WORK

KERNEL_LAUNCH: Final = r"^(?:cu|cuda|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel"
"""The calls that launch a kernel."""
GRAPH_LAUNCH: Final = r"^(?:cu|cuda|hip)GraphLaunch"
"""The calls that launch a CUDA graph."""
BEGIN_CAPTURE: Final = r"^(?:cu|cuda|hip)StreamBeginCapture"
"""The calls from which on launches become nodes of a graph."""
_LONGEST_TABLE: Final = 8
"""Entries of the table of correlation ids, at most, for each call and activity."""


def with_calls(activities: pl.DataFrame, calls: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``activities`` with their launching call, and with its process where theirs is null.

    Correlation ids are unique within a process. Formats of a single process leave the process of
    activities null. Many activities may share one call (a CUDA graph). Device work without a
    recorded call is counted in ``ledger`` and kept.
    """
    per_process = activities["process"].null_count() == 0
    keys = ["correlation", "process"] if per_process else ["correlation"]
    call = to_rows(_first_call(calls.select(keys), activities.select(keys)))
    joined = activities.with_columns(call.alias("call"))
    if not per_process:
        joined = joined.with_columns(pl.coalesce("process", calls["process"].gather(call)))
    # A trace without any call was recorded without them, so none of them is missing.
    if calls.height:
        lost = call.is_null() & activities["kind"].is_in(DEVICE_WORK)
        before = pl.Series(launched_before(joined)) & lost
        for reason, rows in (("launched_before", before), ("no_launch", lost & ~before)):
            ledger.add(
                reason,
                int(rows.sum()),
                table="activities",
                kept=True,
                time_ns=int(activities["duration"].filter(rows).sum()),
            )
    return joined


_QUEUE: Final = ("rank", "device", "context", "stream")


def launched_before(activities: pl.DataFrame) -> Flags:
    """Return which ``activities``, with their calls, were launched before the recording began.

    They are the device work without a recorded call that runs before all work with one: a stream
    runs its work in the order of the launches. On a stream without any recorded launch, the first
    launched work of the device counts.
    """
    work = activities.select(*_QUEUE, "start", pl.col("kind").is_in(DEVICE_WORK), "call")
    launched = work.filter(pl.col("kind") & pl.col("call").is_not_null())
    first = pl.col("start").min().alias("first")
    of_device = launched.group_by("rank", "device").agg(first)
    of_stream = launched.group_by(_QUEUE).agg(first)
    return (
        work.join(of_stream, on=_QUEUE, how="left", nulls_equal=True, maintain_order="left")
        .join(
            of_device, on=["rank", "device"], how="left", nulls_equal=True, suffix="_of_device",
            maintain_order="left",
        )
        .select(
            pl.col("kind")
            & pl.col("call").is_null()
            & (pl.col("start") < pl.coalesce("first", "first_of_device")).fill_null(value=False)
        )
        .to_series()
        .to_numpy()
    )  # fmt: skip


def steps_of_lost_launches(activities: pl.DataFrame, step: Ints) -> Ints:
    """Return ``step`` completed for device work without a recorded launch.

    Work launched before the recording has no step. Other work has the step of the work before it
    on its stream, or without recorded launches there, on its device. Where nothing of a rank has a
    recorded launch, ``step`` is by the clock and stays.
    """
    rows = activities.select(
        *_QUEUE,
        "start",
        pl.Series("step", step),
        pl.col("kind").is_in(DEVICE_WORK).alias("work"),
        pl.col("call").is_null().alias("lost"),
    )
    is_lost = pl.col("work") & pl.col("lost")
    has_launches = (pl.col("work") & ~pl.col("lost")).any().over("rank")
    known_step = pl.when(pl.col("work") & ~pl.col("lost")).then("step")
    completed = (
        rows.with_row_index("row")
        .sort("start", maintain_order=True)
        .select(
            "row",
            pl.when(is_lost & has_launches)
            .then(
                pl.coalesce(
                    known_step.forward_fill().over(_QUEUE),
                    pl.when(known_step.is_not_null().any().over(_QUEUE)).then(NONE),
                    known_step.forward_fill().over("rank", "device"),
                    NONE,
                )
            )
            .otherwise("step")
            .alias("step"),
        )
        .sort("row")["step"]
    )
    return completed.to_numpy()


def launches_with_work(calls: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the ``calls`` that launch kernels or graphs, in order of time, with ``worked``:
    whether what they launched is in the trace, and ``lost``: whether it is not, though it should.

    Work of the last launches of a recording runs after its end. Where no launch has its work, all
    of it is lost. A captured launch has none, so that none is lost beside the capture of a graph.
    """
    worked = np.zeros(calls.height, dtype=np.bool_)
    worked[activities["call"].drop_nulls().to_numpy()] = True
    names = Texts.of(calls["name"])
    captures = bool(names.matching(BEGIN_CAPTURE).any())
    return (
        calls.with_columns(pl.Series("worked", worked))
        .filter(pl.Series(names.matching(f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}")))
        .sort("start")
        .with_columns(
            (
                ~pl.col("worked")
                & (pl.col("worked").cum_max(reverse=True) | ~pl.col("worked").any())
                & pl.lit(not captures)
            ).alias("lost")
        )
    )


def with_complete(steps: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return ``steps`` with ``complete``: whether every launch in the step has its work.

    ``launches`` are :func:`launches_with_work`.
    """
    if not launches["worked"].any():
        return steps
    lost = launches.filter(~pl.col("worked"))
    complete = np.ones(steps.height + 1, dtype=np.bool_)
    complete[step_of(steps, lost["process"], lost["start"])] = False
    return steps.with_columns(pl.Series("complete", complete[:-1]))


def launches_of(calls: pl.DataFrame) -> int:
    """Return how many of ``calls`` launched kernels or graphs; 0 beside the capture of a graph."""
    names = Texts.of(calls["name"])
    if names.matching(BEGIN_CAPTURE).any():
        return 0
    return int(names.matching(f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}").sum())


def _first_call(calls: pl.DataFrame, activities: pl.DataFrame) -> Ints:
    """Return the first row of ``calls`` with the correlation, and the process, of each activity.

    A null is equal to nothing.
    """
    call_correlation, wanted_correlation = (frame["correlation"] for frame in (calls, activities))
    if not (call_correlation.count() and wanted_correlation.count()):
        return np.full(len(wanted_correlation), NONE, dtype=np.int64)
    process = [np.zeros(frame.height, dtype=np.int64) for frame in (calls, activities)]
    processes = 1
    if "process" in calls.columns:
        distinct = calls["process"].drop_nulls().unique().sort()
        processes = len(distinct)
        process = [_positions_in(distinct, frame["process"]) for frame in (calls, activities)]
    least = int(call_correlation.min())  # type: ignore[arg-type]
    span = int(call_correlation.max()) - least + 1  # type: ignore[arg-type]
    if span * processes >= WIDEST:
        distinct = call_correlation.drop_nulls().unique().sort()
        call_correlation, wanted_correlation = (
            pl.Series(_positions_in(distinct, correlations))
            for correlations in (call_correlation, wanted_correlation)
        )
        least, span = 0, len(distinct)
    call_key, wanted_key = (
        np.where(
            (correlation < least) | (correlation >= least + span) | (place == NONE),
            NONE,
            place * span + correlation - least,
        )
        for correlation, place in zip(
            (
                correlations.fill_null(least - 1).to_numpy()
                for correlations in (call_correlation, wanted_correlation)
            ),
            process,
            strict=True,
        )
    )
    return _first_equal_rows(call_key, wanted_key, span * processes)


def _first_equal_rows(keys: Ints, wanted: Ints, span: int) -> Ints:
    """Return the first row of ``keys`` equal to each of ``wanted``, or NONE; NONE equals nothing.

    All numbers are below ``span``. Correlation ids count up, so a table of them is short.
    """
    rows = np.flatnonzero(keys != NONE)
    if span > _LONGEST_TABLE * (len(keys) + len(wanted)):
        order = rows[np.argsort(keys[rows], kind="stable")]
        position = np.searchsorted(keys[order], wanted).clip(max=len(order) - 1)
        row = take(order, position)
        return np.where(take(keys, row) == np.where(wanted == NONE, NONE - 1, wanted), row, NONE)
    first = np.full(span, NONE, dtype=np.int64)
    # Of several assignments to one index the last one stays: that of the first call.
    first[keys[rows[::-1]]] = rows[::-1]
    return take(first, wanted)


def _positions_in(distinct: pl.Series, values: pl.Series) -> Ints:
    """Return the place of each of ``values`` in ``distinct``, which is sorted; NONE without one."""
    if len(distinct) == 1:
        return np.where((values == distinct[0]).fill_null(value=False).to_numpy(), 0, NONE)
    numbers = pl.Series(np.arange(len(distinct)))
    positions = values.replace_strict(distinct, numbers, default=NONE, return_dtype=pl.Int64)
    return positions.to_numpy()
