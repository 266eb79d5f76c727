"""All changes in one table, most effect on the step first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from traceana.compare.changes import in_layers, of_run
from traceana.compare.changes.model import Change, Half
from traceana.compare.judging import SCHEMA, Series, Things, Times, step_times
from traceana.compare.verdict import Criteria, Step
from traceana.compare.views import doubtful

COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "change": pl.String,
    "subject": pl.String,
    "before": pl.String,
    "after": pl.String,
    "count_a": pl.Float64,
    "count_b": pl.Float64,
    "layers": pl.Int64,
    "layer_a": pl.String,
    "layer_b": pl.String,
}

_FIGURES: Final = (
    *("time_a_ns", "time_b_ns", "delta_ns", "low_ns", "high_ns", "of_step", "p", "verdict"),
)
_OF_STEP: Final = ("idle", "data_loader")
_TIME_ALONE: Final = ("idle", "data_loader", "communication")
"""These are there in every run, so they are a change only by their time."""


def found_changes(a: Half, b: Half, pairs: pl.DataFrame) -> list[Change]:
    """Return what may be another on both sides, in no order."""
    return list(_all(a, b, pairs))


def things(found: Sequence[Change], a: Half, b: Half) -> Things:
    """Return the times of the changes in each step, as they are judged."""
    of_step = np.array([one.kind in _OF_STEP for one in found], dtype=bool)
    sides = [([one.a for one in found], a), ([one.b for one in found], b)]
    all_a, all_b = (_series(times, half.sample.count) for times, half in sides)
    return Things(all_a, all_b, of_step)


def changes(
    found: Sequence[Change],
    figures: pl.DataFrame,
    steps: tuple[Half, Half],
    step: Step,
    criteria: Criteria,
) -> pl.DataFrame:
    """Return one row a change: :data:`COLUMNS`, times, ``of_step``, ``p``, ``verdict``, ``least``.

    ``figures`` are what :func:`traceana.compare.judging.judged` says of :func:`things`; another
    batch is the whole step, and has the verdict of its mean. Changes are views of the same work
    from different sides (an algorithm switches *and* its kernels are on one side only), so their
    times do not add up. What is neither another in kind nor differs in time for real is left out.
    ``least`` tells that the effect on the step is below the least effect; those come last.
    """
    if not found:
        return pl.DataFrame(schema={**COLUMNS, **_figures(), "least": pl.Boolean})
    named = pl.DataFrame(
        [[getattr(one, column) for column in ("kind", *list(COLUMNS)[1:])] for one in found],
        schema=COLUMNS,
        orient="row",
    )
    rows = _of_batch(named.hstack(figures.select(_FIGURES)), step)
    smallest = criteria.least(*step_times(*(half.sample for half in steps)))
    counts = pl.col("count_b") - pl.col("count_a")
    fewer = criteria.minimum_effect * pl.min_horizontal("count_a", "count_b")
    least = (
        pl.when(pl.col("change") == "launches")
        .then(counts.abs() < fewer)
        .otherwise((pl.col("delta_ns").abs() < smallest) & (pl.col("change") != "batch"))
    )
    told = rows.with_columns(least.alias("least"))
    by_time = pl.col("change").is_in(_TIME_ALONE)
    return (
        told.filter(~by_time | (~pl.col("least") & (pl.col("verdict") != "same")))
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort(
            *("least", "_size", "change", "subject", "before", "after"),
            descending=[False, True, False, False, False, False],
            nulls_last=True,
        )
        .drop("_size")
    )


def _series(times: Sequence[Times], steps: int) -> Series:
    together = np.column_stack([np.zeros((steps, 0), dtype=np.int64), *times])
    return Series(together, np.ones_like(together))


def _of_batch(rows: pl.DataFrame, step: Step) -> pl.DataFrame:
    mean = step.mean
    bounds = (None, None) if mean.interval is None else (mean.interval.low, mean.interval.high)
    told = {
        "low_ns": None if bounds[0] is None else round(bounds[0]),
        "high_ns": None if bounds[1] is None else round(bounds[1]),
        "p": mean.p,
        "verdict": mean.verdict,
    }
    batch = pl.col("change") == "batch"
    return rows.with_columns(
        pl.when(batch).then(pl.lit(value, SCHEMA[name])).otherwise(name).alias(name)
        for name, value in told.items()
    )


def _sure(a: Half, b: Half, pairs: pl.DataFrame) -> tuple[Half, Half, pl.DataFrame]:
    """Return both sides and the pairs without what is told of doubtful pairs of layers."""
    numbered = pairs.with_row_index("pair")
    unsure = numbered.filter(doubtful())["pair"].implode()
    halves = [
        replace(
            half,
            cells=half.cells.with_columns(
                pl.when(~pl.col("pair").is_in(unsure)).then("pair").alias("pair")
            ),
        )
        for half in (a, b)
    ]
    told = [f"{what}_{side}" for what in ("shape", "weight", "memory_format") for side in "ab"]
    sure = pairs.with_columns(pl.when(~doubtful()).then(one).alias(one) for one in told)
    return halves[0], halves[1], sure


def _all(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    yield from of_run.batches(a, b)
    yield from of_run.idle(a, b)
    yield from of_run.data_loader(a, b)
    yield from of_run.communication(a, b)
    yield from of_run.copies(a, b)
    yield from of_run.layouts(a, b)
    yield from of_run.launches(a, b)
    yield from of_run.one_sided(a, b)
    yield from of_run.compiled(a, b)
    yield from of_run.layers(a, b, pairs)
    a, b, pairs = _sure(a, b, pairs)
    yield from in_layers.algorithms(a, b, pairs)
    yield from in_layers.biases(a, b, pairs)
    yield from in_layers.shapes(a, b, pairs)
    yield from in_layers.memory_formats(a, b, pairs)
    yield from in_layers.precisions(a, b, pairs)


def _figures() -> dict[str, pl.DataType | type[pl.DataType]]:
    return {name: SCHEMA[name] for name in _FIGURES}
