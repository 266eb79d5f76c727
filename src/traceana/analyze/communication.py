"""Communication between the ranks of a distributed run, by step and by message size.

By step: time, exposed time (not overlapped with compute) and bytes, to judge how a run scales. By
message size: bandwidth as the NCCL tests define it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.collective_messages import messages
from traceana.analyze.intervals import COMPUTING, Busy, exposed
from traceana.analyze.per_trace import per_small_trace
from traceana.analyze.steps import measured_steps, step_windows
from traceana.analyze.work import why_no_work, work
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.trace import Trace

_REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")

_KEYS: Final = ("collective", "message_bytes", "ranks")

_SHARED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE: Final = ("broadcast", "reduce", "send_recv")


def communication(trace: Trace) -> Result:
    """Return one row per step of each rank, in order of rank and time.

    ``step``, ``rank``, ``process``, ``wall_ns``, ``available_ns``, ``warm_up``
        The step, its wall time, its wall time times the devices it used, and whether means leave
        it out (:func:`traceana.analyze.steps.measured_steps`). ``rank`` is null where a trace of
        one process does not record it.
    ``collectives``
        Number of activities of class ``collective`` that the step launched.
    ``communication_ns``
        The union of all collectives that ran in the step's window, from any step, summed over the
        devices that the step used. On a GPU they are kernels; on the CPU the operators that start
        them and the backend's operators that perform them, on its thread. Both include the time in
        which they wait for other ranks.
    ``exposed_ns``, ``exposed_share``
        The part of ``communication_ns`` not overlapped with other work of the device; its share of
        ``available_ns``, at most 1.
    ``bytes``, ``reduced_bytes``
        The rank's input to all collectives, and to reductions (all-reduce, reduce-scatter, reduce);
        null where the size of one is not recorded. In data parallelism the latter are the bytes of
        the gradients, 4 per parameter in FP32; the bytes over a link depend on the algorithm (a
        ring: 2 (N - 1) / N times as many).

    ``totals``: ``ranks``, the world size that the files record, else the number of ranks in the
    trace; the sums of ``collectives``, ``communication_ns`` and ``exposed_ns``.
    """
    found = with_messages(trace).filter(pl.col("step").is_not_null())
    size, reduces = pl.col("bytes"), pl.col("part").is_in(_REDUCTIONS)
    sizes = found.group_by("step").agg(
        pl.len().cast(pl.Int64).alias("collectives"),
        _whole_sum(size, pl.col("carries")).alias("bytes"),
        _whole_sum(
            pl.when(reduces.not_()).then(0).when(reduces).then(size), pl.col("carries")
        ).alias("reduced_bytes"),
    )
    measured = measured_steps(trace)
    frame = (
        trace.steps.with_row_index("row")
        .join(sizes, left_on="row", right_on="step", how="left")
        .join(_in_windows(trace), on="row", how="left")
        .sort("rank", "start", "row", nulls_last=True)
        .with_columns(
            pl.col("collectives", "communication_ns", "exposed_ns").fill_null(0),
            (pl.col("duration") * pl.col("devices").fill_null(1)).alias("available_ns"),
        )
        .with_columns(
            pl.when(pl.col("collectives") > 0).then(column).otherwise(0).alias(column)
            for column in ("bytes", "reduced_bytes")
        )
        .select(
            pl.col("number").alias("step"),
            pl.coalesce("rank", pl.lit(trace.meta.rank, pl.Int32)),
            "process",
            pl.col("duration").alias("wall_ns"),
            "available_ns",
            "collectives",
            "communication_ns",
            "exposed_ns",
            pl.when(pl.col("available_ns") > 0)
            .then(pl.col("exposed_ns") / pl.col("available_ns"))
            .alias("exposed_share"),
            "bytes",
            "reduced_bytes",
            pl.col("row").is_in(measured.rows).not_().alias("warm_up"),
        )
    )
    totals = {
        "ranks": trace.meta.world_size or max(1, frame["rank"].n_unique()),
        **sums(frame, "collectives", "communication_ns", "exposed_ns"),
    }
    return Result(frame, totals, (*measured.notes, *_notes(trace, frame, found)))


def by_message(trace: Trace) -> Result:
    """Return one row per collective, message size and number of ranks, most time first.

    ``collective``
        ``all_reduce``, ``all_gather``, …; null where neither arguments nor names record it.
    ``part``
        Its class, from the name of the kernel: NCCL's all-to-all has the kernel ``SendRecv``. Null
        where it is not known, or several kernels differ.
    ``message_bytes``
        The size as the NCCL tests define it: a rank's input, of an all-gather its output. Null
        where it is not recorded.
    ``ranks``
        Size of the group.
    ``count``, ``bytes``, ``time_ns``, ``mean_ns`` (rounded down), ``share``
        Number, a rank's input to all of them, summed durations and their share of the time of all
        collectives. Durations include the time in which a collective waits for other ranks.
    ``exposed_ns``
        Time in which a collective of the row ran and only collectives ran on its device.
        Collectives that overlap count once in their row, and once in the total.
    ``algbw_bytes_per_s``
        Algorithm bandwidth: message size over time.
    ``busbw_bytes_per_s``
        Bus bandwidth: algbw times 2 (n - 1) / n of an all-reduce, (n - 1) / n of an all-gather,
        reduce-scatter, all-to-all, gather and scatter, 1 of a broadcast, reduce and send-receive,
        of n ranks. Null unless n is known and at least 2.
    """
    found = with_messages(trace).filter("carries")
    ranks, size = pl.col("ranks"), pl.col("bytes")
    each = found.with_columns(message_size().alias("message_bytes"))
    rows = each.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.when(pl.col("part").n_unique() == 1).then(pl.col("part").first()),
        pl.when(size.is_not_null().all()).then(size.sum()),
        pl.col("duration").sum().alias("time_ns"),
    )
    time, message = pl.col("time_ns"), pl.col("message_bytes")
    compute = _computing(trace)
    frame = (
        with_share(rows)
        .join(exposed(each, compute, _KEYS), on=_KEYS, how="left", nulls_equal=True)
        .with_columns(
            (time // pl.col("count")).alias("mean_ns"),
            pl.when(time > 0)
            .then(message * pl.col("count") * 1e9 / time)
            .alias("algbw_bytes_per_s"),
        )
        .with_columns((pl.col("algbw_bytes_per_s") * bus_factor(ranks)).alias("busbw_bytes_per_s"))
        .sort("time_ns", *_KEYS, descending=[True, False, False, False], nulls_last=True)
        .select(
            *_KEYS, "part", "count", "bytes", "time_ns", "mean_ns", "share", "exposed_ns",
            "algbw_bytes_per_s", "busbw_bytes_per_s",
        )
    )  # fmt: skip
    together = exposed(each, compute, ())["exposed_ns"].sum()
    totals = {**sums(frame, "count", "time_ns"), "exposed_ns": int(together)}
    return Result(frame, totals, _message_notes(trace, frame))


def message_size() -> pl.Expr:
    """Return the message size as the NCCL tests define it, from the columns of
    :func:`with_messages`."""
    whole = pl.col("collective").eq_missing("all_gather")
    return pl.when(whole).then(pl.col("bytes") * pl.col("ranks")).otherwise("bytes")


def bus_factor(ranks: pl.Expr) -> pl.Expr:
    """Return bus over algorithm bandwidth of a ``collective`` of ``ranks`` ranks, as the NCCL tests
    define it; null unless the number is known and at least 2."""
    shared = (ranks - 1) / ranks
    return (
        pl.when(ranks < 2)
        .then(None)
        .when(pl.col("collective") == "all_reduce")
        .then(2 * shared)
        .when(pl.col("collective").is_in(_SHARED))
        .then(shared)
        .when(pl.col("collective").is_in(_ONCE) & ranks.is_not_null())
        .then(1.0)
    )


def _in_windows(trace: Trace) -> pl.DataFrame:
    """Return ``communication_ns``, ``exposed_ns`` and ``devices`` of each step (``row``)."""
    windows = step_windows(trace)
    found = _of_collectives(trace.whole)
    compute = _computing(trace)
    both = compute.with_also(found)
    return (
        windows.with_columns(
            Busy.of(found).within(windows).alias("communication_ns"),
            (both.within(windows) - compute.within(windows)).alias("exposed_ns"),
        )
        .group_by("row")
        .agg(
            pl.col("communication_ns", "exposed_ns").sum(),
            pl.len().cast(pl.Int64).alias("devices"),
        )
    )


def _computing(trace: Trace) -> Busy:
    """Return when each device ran work other than collectives."""
    whole = trace.whole
    computing = work(whole).filter(pl.col("kind").is_in(COMPUTING))
    return Busy.of(computing.join(_classes(whole), on=SOURCE, how="anti", nulls_equal=True))


@per_small_trace
def with_messages(trace: Trace) -> pl.DataFrame:
    """Return the collectives of ``trace``: activities with their messages.

    Further columns: ``part`` (the function by the kernel's name), and those of
    :func:`~traceana.analyze.collective_messages.messages`, which replace ``bytes`` and
    ``collective``.
    """
    found = _of_collectives(trace)
    return found.with_columns(messages(found, trace))


def _of_collectives(trace: Trace) -> pl.DataFrame:
    return work(trace).join(_classes(trace), on=SOURCE, how="inner", nulls_equal=True)


def _classes(trace: Trace) -> pl.DataFrame:
    """Return the distinct classes of ``trace`` that are collectives: :data:`SOURCE`, ``part``."""
    distinct = work(trace, *SOURCE).unique()
    of_collectives = classified(distinct, trace).filter(pl.col("category") == "collective")
    return of_collectives.select(*SOURCE, "part")


def _whole_sum(sizes: pl.Expr, carries: pl.Expr) -> pl.Expr:
    """Return the sum of the sizes of rows with ``carries``; null where a size is unknown."""
    known = (carries & sizes.is_null()).any().not_() & carries.any()
    return pl.when(known).then(sizes.filter(carries).sum())


def _notes(trace: Trace, frame: pl.DataFrame, found: pl.DataFrame) -> tuple[str, ...]:
    if trace.activities.is_empty():
        return (why_no_work(trace),)
    if frame.is_empty():
        return ("no steps: the trace has no step markers",)
    if found.is_empty():
        return ("no communication: no collectives in any step",)
    return ()


def _message_notes(trace: Trace, frame: pl.DataFrame) -> tuple[str, ...]:
    if trace.activities.is_empty():
        return (why_no_work(trace),)
    if frame.is_empty():
        return ("no communication: no collectives",)
    unknown = int(frame.filter(pl.col("ranks").is_null())["count"].sum())
    unsized = int(frame.filter(pl.col("message_bytes").is_null())["count"].sum())
    return (
        "time includes waiting for other ranks; algbw = size / time, busbw as in NCCL tests",
        *([f"message size not recorded: {unsized:,} collectives"] if unsized else []),
        *([f"group size not recorded: {unknown:,} collectives, no busbw"] if unknown else []),
    )
