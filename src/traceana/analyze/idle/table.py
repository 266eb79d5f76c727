"""Idle time by cause, and by what the host was in; or gap by gap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from traceana.analyze.idle.moments import Moments, moments
from traceana.analyze.idle.notes import notes
from traceana.analyze.idle.windows import PLACE, by_steps, within
from traceana.analyze.numbering import first_rows, numbered
from traceana.result import Result, sums

if TYPE_CHECKING:
    from traceana.trace import Trace

By = Literal["cause", "operator", "range", "step", "gap"]
"""What a row of idle time is of, beside device and cause: nothing else, the innermost operator or
annotation that the host was in, the step in which the time lies, or each gap by itself."""

COLUMNS: Final = (
    *("rank", "device", "cause", "count", "time_ns", "share", "mean_ns", "max_ns"),
    *("step_count", "step_ns", "step_share"),
)


def idle(trace: Trace, by: By = "cause", *, found: Moments | None = None) -> Result:
    """Return the idle time of each device, one row a cause and what ``by`` tells apart.

    What is looked at is the recording, or the steps that were selected
    (:func:`traceana.analyze.idle.windows.windows`); of a gap that reaches beyond, what lies within.
    Columns:

    ``operator``, ``range`` or ``step``
        As ``by`` has it. The operator or annotation is the innermost that the host was in (for work
        that it had launched before the device drained: in which it launched that); null for none.
    ``rank``, ``device``, ``cause``
        One of :data:`traceana.analyze.idle.causes.CAUSES`.
    ``count``, ``time_ns``, ``share``, ``mean_ns`` (rounded down), ``max_ns``
        Number of gaps, their summed time, its part of what is looked at of the device (by step, of
        the step), their mean and longest.
    ``step_count``, ``step_ns``, ``step_share``
        Means over the measured steps of what lies in them (time rounded down), and its part of
        their time. Null without steps; by step, of the row's own.

    Most time first; steps in their order. By gap, one row each, the longest first: ``rank``,
    ``device``, ``cause``, ``start_ns``, ``time_ns``, ``explained_ns`` (for how much of the gap the
    cause accounts), ``share``, ``operator``, ``range``, ``call`` (that the host was in, or that
    launched what was waiting), ``step`` (in which the work behind the gap was launched),
    ``before``, ``after`` (names of the work around it).

    ``found`` is :func:`traceana.analyze.idle.moments.moments` of the trace, where it is at hand.
    """
    found = found or moments(trace)
    frame = _by_gap(trace, found) if by == "gap" else _by(trace, found, by)
    return Result(frame, sums(frame, *_SUMMED[by == "gap"]), notes(trace, frame))


_SUMMED: Final = (("count", "time_ns"), ("time_ns",))


def _pieces(trace: Trace, found: Moments, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``gaps`` with what of each is looked at: further ``piece`` (ns) and ``begin``.

    ``gaps`` are the found ones, with ``rank``, ``device``, ``start`` and ``end`` among their
    columns. Those of which nothing is looked at are left out.
    """
    if not by_steps(trace):
        # A recording holds all its gaps whole.
        end, start = pl.col("end"), pl.col("start")
        return gaps.with_columns((end - start).alias("piece"), start.alias("begin"))
    parts = within(gaps, found.windows)
    first = found.windows["start"].gather(parts["window"])
    return (
        gaps[parts["gap"]]
        .with_columns(parts["time_ns"].alias("piece"), first.alias("begin"))
        .with_columns(pl.max_horizontal("begin", "start").alias("begin"))
    )


def _spans(found: Moments) -> pl.DataFrame:
    """Return ``rank``, ``device``, ``span_ns``: how long each device is looked at."""
    length = (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    return found.windows.group_by(PLACE).agg(length)


def _by(trace: Trace, found: Moments, by: By) -> pl.DataFrame:
    if by == "step":
        return _by_step(trace, found)
    keys = [*([] if by == "cause" else [by]), *PLACE, "cause"]
    told = found.gaps.select(*PLACE, "cause", *_label(trace.whole, found.gaps, by)).select(keys)
    (row,) = numbered(told)
    gaps = found.gaps.select(*PLACE, "start", "end", pl.Series("row", row).cast(pl.UInt32))
    frame = (
        told[first_rows(row)]
        .with_row_index("row")
        .join(_pieces(trace, found, gaps).group_by("row").agg(_figures("piece")), on="row")
        .join(_spans(found), on=PLACE, nulls_equal=True)
        .join(_per_step(found, gaps), on="row", how="left")
        .with_columns(_part("time_ns", "span_ns").alias("share"))
    )
    frame = _with_step_figures(found, frame)
    names = [pl.col(key).cast(pl.String) for key in keys if key == by]
    order = [pl.col("time_ns"), *names, *(pl.col(key) for key in (*PLACE, "cause"))]
    descending = [True, *[False] * (len(order) - 1)]
    return (
        frame.sort(order, descending=descending, nulls_last=True)
        .select(*keys[:-3], *COLUMNS)
        .with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    )


def _label(whole: Trace, gaps: pl.DataFrame, by: By) -> list[pl.Series]:
    match by:
        case "operator":
            return [whole.ops["name"].gather(gaps["op"]).alias(by)]
        case "range":
            return [whole.ranges["text"].gather(gaps["range"]).alias(by)]
        case _:
            return []


def _figures(time: str) -> list[pl.Expr]:
    piece = pl.col(time)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        piece.sum().alias("time_ns"),
        (piece.sum() // pl.len()).cast(pl.Int64).alias("mean_ns"),
        piece.max().alias("max_ns"),
    ]


def _part(time: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(time) / pl.col(whole))


def _per_step(found: Moments, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``in_steps`` (ns) and ``gaps_in_steps`` of each ``row``, in the measured steps."""
    parts = within(gaps, found.measured)
    return (
        parts.select("time_ns", gaps["row"].gather(parts["gap"]))
        .group_by("row")
        .agg(
            pl.col("time_ns").sum().alias("in_steps"),
            pl.len().cast(pl.Int64).alias("gaps_in_steps"),
        )
    )


def _with_step_figures(found: Moments, frame: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).sum()
    steps = found.measured.group_by(PLACE).agg(
        pl.len().cast(pl.Int64).alias("steps"), length.alias("steps_ns")
    )
    there = pl.col("steps").is_not_null()
    inside, count = pl.col("in_steps").fill_null(0), pl.col("gaps_in_steps").fill_null(0)
    return frame.join(steps, on=PLACE, how="left", nulls_equal=True).with_columns(
        pl.when(there).then(count / pl.col("steps")).alias("step_count"),
        pl.when(there).then(inside // pl.col("steps")).alias("step_ns"),
        pl.when(there & (pl.col("steps_ns") > 0))
        .then(inside / pl.col("steps_ns"))
        .alias("step_share"),
    )


def _by_step(trace: Trace, found: Moments) -> pl.DataFrame:
    number = trace.steps["number"].gather(found.steps["step"])
    own = found.steps.with_columns(number.alias("step"))
    length = (pl.col("end") - pl.col("start")).sum().alias("span_ns")
    lengths = own.group_by("step", *PLACE).agg(length)
    parts = within(found.gaps, own)
    told = found.gaps.select(*PLACE, "cause")[parts["gap"]].select(
        own["step"].gather(parts["window"]), *PLACE, "cause"
    )
    (row,) = numbered(told)
    frame = (
        told[first_rows(row)]
        .with_row_index("row")
        .join(
            parts.select("time_ns", pl.Series("row", row).cast(pl.UInt32))
            .group_by("row")
            .agg(_figures("time_ns")),
            on="row",
        )
        .join(lengths, on=["step", *PLACE], nulls_equal=True)
        .with_columns(_part("time_ns", "span_ns").alias("share"))
    )
    return (
        frame.with_columns(
            pl.col("count").cast(pl.Float64).alias("step_count"),
            pl.col("time_ns").alias("step_ns"),
            pl.col("share").alias("step_share"),
        )
        .sort("step", *PLACE, "time_ns", "cause", descending=[False, False, False, True, False])
        .select("step", *COLUMNS)
        .with_columns(pl.col("cause").cast(pl.String))
    )


def _by_gap(trace: Trace, found: Moments) -> pl.DataFrame:
    whole = trace.whole
    gaps = (
        _pieces(trace, found, found.gaps)
        .join(_spans(found), on=PLACE, how="left", nulls_equal=True, maintain_order="left")
        .sort("piece", "begin", "rank", "device", descending=[True, False, False, False])
    )
    step = whole.steps["number"].gather(whole.activities["step"].gather(gaps["after"]))
    return gaps.select(
        *PLACE,
        "cause",
        pl.col("begin").alias("start_ns"),
        pl.col("piece").alias("time_ns"),
        pl.min_horizontal("explained", "piece").alias("explained_ns"),
        _part("piece", "span_ns").alias("share"),
        whole.ops["name"].gather(gaps["op"]).alias("operator"),
        whole.ranges["text"].gather(gaps["range"]).alias("range"),
        whole.calls["name"].gather(gaps["call"]).alias("call"),
        step.alias("step"),
        _name(whole, gaps["before"]).alias("before"),
        _name(whole, gaps["after"]).alias("after"),
    ).with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def _name(whole: Trace, activities: pl.Series) -> pl.Series:
    return whole.names["name"].gather(whole.activities["name_id"].gather(activities))
