"""Communication step by step: one row a step of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, classified
from traceana.analyze.communication.messages import messages
from traceana.analyze.intervals import Busy
from traceana.analyze.steps import measured_steps, step_windows
from traceana.analyze.transfers.exposed import COMPUTING
from traceana.analyze.work import why_no_work, work
from traceana.result import Result, sums

if TYPE_CHECKING:
    from traceana.trace import Trace

REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")


def communication(trace: Trace) -> Result:
    """Return one row a step of each rank, in order of rank and time.

    ``step``, ``rank``, ``process``, ``wall_ns``, ``available_ns``, ``warm_up``
        The step, how long it took, that times the devices it used, and whether per-step figures
        leave it out (:func:`traceana.analyze.steps.measured_steps`). ``rank`` is null where the
        trace is of one process and says none.
    ``collectives``
        Activities of class ``collective`` that the step launched.
    ``communication_ns``
        The union of all collectives that ran in the step's window, whichever step launched them,
        added up over the devices that the step used. On a GPU they are kernels; on the CPU the
        operators that ask for them and those that carry them out, on a thread of the backend. Both
        last while they wait for other ranks.
    ``exposed_ns``, ``exposed_share``
        What of ``communication_ns`` nothing else of that device runs beside; its part of
        ``available_ns``. Both are of one window (:func:`step_windows`), so it is at
        most 1.
    ``bytes``, ``reduced_bytes``
        What the rank gives to them all, and to those that reduce (all-reduce, reduce-scatter,
        reduce): null where the size of one is not recorded. In data parallelism the latter are
        the bytes of the gradients, 4 a parameter in fp32; how many cross a link depends on the
        algorithm (a ring: 2 (N - 1) / N times as many).

    ``totals``: ``ranks``, how many ranks the run has by what its files say, else how many the
    trace holds; the sums of ``collectives``, ``communication_ns`` and ``exposed_ns``.
    """
    found = collectives(trace).filter(pl.col("step").is_not_null())
    size, reduces = pl.col("bytes"), pl.col("part").is_in(REDUCTIONS)
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


def _in_windows(trace: Trace) -> pl.DataFrame:
    """Return by ``row`` of the steps what ran in their windows, and their ``devices``."""
    windows = step_windows(trace)
    found = _of_collectives(trace.whole)
    computing = beside_collectives(trace)
    both = computing.with_also(found)
    return (
        windows.with_columns(
            Busy.of(found).within(windows).alias("communication_ns"),
            (both.within(windows) - computing.within(windows)).alias("exposed_ns"),
        )
        .group_by("row")
        .agg(
            pl.col("communication_ns", "exposed_ns").sum(),
            pl.len().cast(pl.Int64).alias("devices"),
        )
    )


def beside_collectives(trace: Trace) -> Busy:
    """Return when each device computed: what hides a collective, of whatever step."""
    whole = trace.whole
    computing = work(whole).filter(pl.col("kind").is_in(COMPUTING))
    return Busy.of(computing.join(_classes(whole), on=SOURCE, how="anti", nulls_equal=True))


def collectives(trace: Trace) -> pl.DataFrame:
    """Return the collectives of ``trace``, with their messages.

    Columns beside those of activities: ``part``, what their names tell, and those of
    :func:`~traceana.analyze.communication.messages.messages`, which ``bytes`` and ``collective``
    are of, too.
    """
    found = _of_collectives(trace)
    return found.with_columns(messages(found, trace))


def _of_collectives(trace: Trace) -> pl.DataFrame:
    return work(trace).join(_classes(trace), on=SOURCE, how="inner", nulls_equal=True)


def _classes(trace: Trace) -> pl.DataFrame:
    """Return the distinct classes of ``trace`` that are collectives: :data:`SOURCE`, ``part``."""
    distinct = work(trace).select(SOURCE).unique()
    of_collectives = classified(distinct, trace).filter(pl.col("category") == "collective")
    return of_collectives.select(*SOURCE, "part")


def _whole_sum(sizes: pl.Expr, carries: pl.Expr) -> pl.Expr:
    """Return the sum of the sizes that ``carries``, null where one is not known or none does."""
    known = (carries & sizes.is_null()).any().not_() & carries.any()
    return pl.when(known).then(sizes.filter(carries).sum())


def _notes(trace: Trace, frame: pl.DataFrame, found: pl.DataFrame) -> tuple[str, ...]:
    if trace.activities.is_empty():
        return (why_no_work(trace),)
    if frame.is_empty():
        return ("no steps: the trace marks no iterations",)
    if found.is_empty():
        return ("no communication: no collective ran in a step",)
    return ()
