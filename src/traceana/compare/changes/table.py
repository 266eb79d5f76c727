"""All changes in one table, most effect on the step first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import polars as pl

from traceana.compare.changes import in_layers, of_run
from traceana.compare.changes.model import Change, Half
from traceana.compare.rows import SCHEMA, Series, compared
from traceana.compare.verdict import Criteria

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


def changes(a: Half, b: Half, pairs: pl.DataFrame, criteria: Criteria) -> pl.DataFrame:
    """Return one row a change: :data:`COLUMNS`, then times, ``of_step``, ``p`` and ``verdict``.

    Changes are views of the same work from different sides (an algorithm switches *and* its kernels
    are on one side only), so their times do not add up. What is neither another in kind nor
    differs in time for real is left out.
    """
    found = list(_all(a, b, pairs))
    if not found:
        return pl.DataFrame(schema={**COLUMNS, **_figures()})
    times = [np.column_stack([getattr(one, side) for one in found]) for side in ("a", "b")]
    sides = [Series(side, np.ones_like(side)) for side in times]
    step_a, step_b = (
        int(half.sample.steps["available_ns"].sum()) // half.sample.count for half in (a, b)
    )
    figures = compared(sides[0], sides[1], criteria, step_a, step_b, rest=len(found))
    named = pl.DataFrame(
        [
            (c.kind, c.subject, c.before, c.after, c.count_a, c.count_b, c.layers, c.layer_a,
             c.layer_b)
            for c in found
        ],
        schema=COLUMNS,
        orient="row",
    )  # fmt: skip
    rows = named.hstack(figures.select(*_figures()))
    only_time = pl.col("change").is_in(["idle", "data_loader", "communication"])
    of_step = (pl.col("delta_ns").abs() >= criteria.minimum_effect * min(step_a, step_b)) & (
        pl.col("verdict") != "same"
    )
    return (
        rows.filter(~only_time | of_step)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort(
            "_size",
            *("change", "subject", "before", "after"),
            descending=[True, False, False, False, False],
            nulls_last=True,
        )
        .drop("_size")
    )


def _all(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    yield from of_run.batches(a, b)
    yield from of_run.idle(a, b)
    yield from of_run.data_loader(a, b)
    yield from of_run.communication(a, b)
    yield from of_run.copies(a, b)
    yield from of_run.layouts(a, b)
    yield from of_run.launches(a, b)
    yield from of_run.one_sided(a, b)
    yield from of_run.layers(a, b, pairs)
    yield from in_layers.algorithms(a, b, pairs)
    yield from in_layers.biases(a, b, pairs)
    yield from in_layers.shapes(a, b, pairs)
    yield from in_layers.precisions(a, b, pairs)


def _figures() -> dict[str, pl.DataType | type[pl.DataType]]:
    wanted = ("time_a_ns", "time_b_ns", "delta_ns", "of_step", "p", "verdict")
    return {name: SCHEMA[name] for name in wanted}
