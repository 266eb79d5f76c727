"""Work of two runs side by side, step by step: rows whose differences add up to the whole's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.compare.resample import family_p
from traceana.compare.samples import Sample
from traceana.compare.verdict import Criteria

IDLE: Final = "(idle)"
"""Time of the step in which a device did nothing, added up over the devices."""

REMAINDER: Final = "(remainder)"
"""What makes the rows add up to the step: work of several streams at once counts less than its sum,
work that a step launched may run behind its end, and means are rounded down."""

Times = npt.NDArray[np.int64]

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "calls_a": pl.Float64,
    "calls_b": pl.Float64,
    "time_a_ns": pl.Int64,
    "time_b_ns": pl.Int64,
    "delta_ns": pl.Int64,
    "relative": pl.Float64,
    "of_step": pl.Float64,
    "p": pl.Float64,
    "verdict": pl.String,
}
"""What :func:`compared` says of each row, per step: mean calls and times, ``delta_ns`` (b less a),
``relative`` (that over the time of a), ``of_step`` (that over a's whole step, device time), ``p``
(for all rows of work together; of idle time and of the remainder each alone) and the verdict."""


@dataclass(frozen=True, slots=True)
class Series:
    """Time (ns) and calls of some rows in each step: steps by rows."""

    times: Times
    calls: Times


def series(sample: Sample, rows: pl.Series, count: int) -> Series:
    """Return the cells of ``sample`` added up by step and row; ``rows`` has each cell's row."""
    kept = rows.is_not_null()
    cells, places = sample.cells.filter(kept), rows.filter(kept).cast(pl.Int64).to_numpy()
    at = (cells["step"].cast(pl.Int64).to_numpy(), places)
    times = np.zeros((sample.count, count), dtype=np.int64)
    calls = np.zeros_like(times)
    np.add.at(times, at, cells["time_ns"].to_numpy())
    np.add.at(calls, at, cells["calls"].to_numpy())
    return Series(times, calls)


def whole(a: Sample, b: Sample, rows_a: Series, rows_b: Series, criteria: Criteria) -> pl.DataFrame:
    """Return :data:`SCHEMA` for rows that hold all work, with :data:`IDLE` and :data:`REMAINDER`.

    Those two are the last rows. The times of a side add up to the mean of its steps' device time
    (``available_ns``).
    """
    full_a, full_b = _with_rest(a, rows_a), _with_rest(b, rows_b)
    frame = compared(full_a, full_b, criteria, _available(a), _available(b), rest=2, apart=2)
    last = pl.int_range(pl.len()) == frame.height - 1
    for side, sample in (("a", a), ("b", b)):
        column = f"time_{side}_ns"
        rest = _available(sample) - int(frame[column].head(frame.height - 1).sum())
        frame = frame.with_columns(pl.when(last).then(rest).otherwise(column).alias(column))
    # What is over or under the sum is no share of anything.
    none = pl.when(last).then(None).otherwise("relative").alias("relative")
    return _with_deltas(frame, _available(a)).with_columns(none)


def compared(
    a: Series,
    b: Series,
    criteria: Criteria,
    step_a: int,
    step_b: int,
    *,
    rest: int = 0,
    apart: int = 0,
) -> pl.DataFrame:
    """Return :data:`SCHEMA`, a row each of the series' rows.

    ``step_a`` and ``step_b`` are the steps' mean device time (ns); of the last ``rest`` rows, which
    may be negative, the effect is measured by it. The last ``apart`` rows have p values of their
    own, which do not hold for all rows together.
    """
    steps_a, steps_b = len(a.times), len(b.times)
    enough = criteria.enough(steps_a, steps_b)
    p: Sequence[float | None] = [None] * a.times.shape[1]
    if enough:
        x, y = a.times.astype(np.float64), b.times.astype(np.float64)
        rows = a.times.shape[1] - apart
        each = [family_p(x[:, [at]], y[:, [at]]) for at in range(rows, rows + apart)]
        p = np.concatenate([family_p(x[:, :rows], y[:, :rows]), *each]).tolist()
    frame = pl.DataFrame(
        {
            "calls_a": a.calls.mean(axis=0),
            "calls_b": b.calls.mean(axis=0),
            "time_a_ns": a.times.sum(axis=0) // steps_a,
            "time_b_ns": b.times.sum(axis=0) // steps_b,
            "p": pl.Series(p, dtype=pl.Float64),
        }
    )
    real = pl.col("p") <= 1 - criteria.level + 1e-12
    least = np.log1p(criteria.minimum_effect)
    ratio = (pl.col("time_b_ns").log() - pl.col("time_a_ns").log()).abs() >= least
    of_rest = pl.col("time_b_ns").sub(pl.col("time_a_ns")).abs() >= criteria.minimum_effect * min(
        step_a, step_b
    )
    is_rest = pl.int_range(pl.len()) >= frame.height - rest
    large = pl.when(is_rest).then(of_rest).otherwise(ratio)
    slower = pl.col("time_b_ns") > pl.col("time_a_ns")
    verdict = (
        pl.when(~is_rest & (pl.col("calls_a") == 0) & (pl.col("calls_b") > 0))
        .then(pl.lit("only in b"))
        .when(~is_rest & (pl.col("calls_b") == 0) & (pl.col("calls_a") > 0))
        .then(pl.lit("only in a"))
        .when(pl.lit(not enough))
        .then(pl.lit("not enough steps"))
        .when(real & large & slower)
        .then(pl.lit("slower"))
        .when(real & large)
        .then(pl.lit("faster"))
        .otherwise(pl.lit("same"))
    )
    return _with_deltas(frame.with_columns(verdict.alias("verdict")), step_a)


def _with_deltas(frame: pl.DataFrame, step_a: int) -> pl.DataFrame:
    delta = pl.col("time_b_ns") - pl.col("time_a_ns")
    positive = pl.col("time_a_ns") > 0
    of_step = delta / step_a if step_a else pl.lit(None, pl.Float64)
    return frame.with_columns(
        delta.alias("delta_ns"),
        pl.when(positive).then(delta / pl.col("time_a_ns")).alias("relative"),
        of_step.alias("of_step"),
    ).select(*SCHEMA)


def _with_rest(sample: Sample, rows: Series) -> Series:
    steps = sample.steps
    available, busy = (steps[c].to_numpy() for c in ("available_ns", "busy_ns"))
    rest = np.column_stack([available - busy, busy - rows.times.sum(axis=1)])
    return Series(np.hstack([rows.times, rest]), np.hstack([rows.calls, np.zeros_like(rest)]))


def _available(sample: Sample) -> int:
    return int(sample.steps["available_ns"].sum()) // sample.count
