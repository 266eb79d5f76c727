"""The work of two runs by layer, class, kernel, GEMM or copy, in rows that add up to the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import polars as pl

from traceana.comparison.compared_run import KEYS, Kind, Run, RunSteps, devices, keyed
from traceana.comparison.layer_alignment import Alignment
from traceana.comparison.layer_features import Layer, RunLayers
from traceana.comparison.verdicts import RowPairs, RowTimes, mean_available, with_deltas
from traceana.settings import LEAST_CONFIDENCE, RUN_TO_RUN_HOST

By = Literal["layer"] | Kind

VIEWS: Final[tuple[By, ...]] = ("layer", *KEYS)

IDLE: Final = "(idle)"
"""Time of the step in which a device was idle, summed over the devices."""

OVERLAP: Final = "(overlap correction)"
"""The difference between the step and the rows' sum: work of several streams overlaps, work of a
step may end after it, and means are rounded down."""

_PAIRS: Final = {
    **{"a": pl.String, "b": pl.String, "role": pl.String},
    **{"type_a": pl.String, "type_b": pl.String},
    **{"confidence": pl.Float64, "how": pl.String},
    **{"shape_a": pl.String, "shape_b": pl.String},
    **{"weight_a": pl.String, "weight_b": pl.String},
    **{"memory_format_a": pl.String, "memory_format_b": pl.String},
    **{"flops_a": pl.Float64, "flops_b": pl.Float64},
}


class PairedRun(msgspec.Struct, frozen=True):
    """A run of a diff: the compared steps, and their cells with ``pair``.

    ``pair`` is the row of :func:`layer_rows` of a cell's layer or role.
    """

    run: Run
    steps: RunSteps
    cells: pl.DataFrame

    @property
    def layers(self) -> RunLayers:
        """The layers of the run."""
        return self.run.layers

    @property
    def about(self) -> dict[str, Any]:
        """``file``, ``devices``, ``framework``, ``steps`` (their number) and ``marked``."""
        return {
            "file": self.run.trace.meta.source,
            "devices": devices(self.run.trace),
            "framework": self.run.trace.meta.framework,
            "steps": self.steps.count,
            "marked": self.steps.marked,
        }


class View(msgspec.Struct, frozen=True):
    """All work of two runs in the rows ``named``, before any test.

    ``row_a`` and ``row_b`` have the row of each cell, ``rows`` the times of the rows in each step.
    """

    by: By
    named: pl.DataFrame
    row_a: pl.Series
    row_b: pl.Series
    rows: RowPairs


def layer_rows(
    layers: tuple[RunLayers, RunLayers],
    alignment: Alignment,
    steps: tuple[RunSteps, RunSteps],
    flops: tuple[Mapping[str, float], Mapping[str, float]],
) -> pl.DataFrame:
    """Return one row per pair of layers, per layer without a match, and per role.

    All arguments are (baseline, candidate); ``flops`` is by layer, per step.

    Columns: ``a`` and ``b`` (names), ``role``, ``type_a``, ``type_b``, ``confidence`` (of a layer
    without a match: of having none), ``how`` (``map``, ``order``, ``moved``), ``shape_a``,
    ``shape_b`` (of the first input of one image, axes by size), ``weight_a``, ``weight_b`` (extents
    of its weight, by size), ``memory_format_a``, ``memory_format_b`` (``contiguous`` or
    ``channels_last``, of its first input), ``flops_a``, ``flops_b`` (per step). Roles (optimizer,
    data …) are paired by their names.
    """
    partner = {pair.a: pair for pair in alignment.pairs}
    paired_b = {pair.b for pair in alignment.pairs}
    rows: list[dict[str, object]] = []
    for place, layer in enumerate(layers[0].layers):
        pair = partner.get(place)
        row: dict[str, object] = {"role": "layer", **_columns(layer, "a", flops[0])}
        if pair is None:
            row["confidence"] = alignment.alone_a[place]
        else:
            row |= _columns(layers[1].layers[pair.b], "b", flops[1])
            row |= {"confidence": pair.confidence, "how": pair.how}
        rows.append(row)
    for place, layer in enumerate(layers[1].layers):
        if place not in paired_b:
            alone = {"role": "layer", "confidence": alignment.alone_b[place]}
            rows.append({**alone, **_columns(layer, "b", flops[1])})
    roles = [
        set(one.cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for one in steps
    ]
    for label, role in sorted(roles[0] | roles[1]):
        in_a, in_b = ((label, role) in own for own in roles)
        rows.append({"a": label if in_a else None, "b": label if in_b else None, "role": role})
    return pl.DataFrame(rows, schema=_PAIRS)


def _columns(layer: Layer, column: str, flops: Mapping[str, float]) -> dict[str, object]:
    return {
        column: layer.label,
        f"type_{column}": layer.type,
        f"shape_{column}": layer.takes,
        f"weight_{column}": layer.kernel,
        f"memory_format_{column}": layer.memory_format,
        f"flops_{column}": flops.get(layer.label),
    }


def low_confidence() -> pl.Expr:
    """Return whether a row of :func:`layer_rows` is a pair below :data:`LEAST_CONFIDENCE`."""
    paired = pl.col("a").is_not_null() & pl.col("b").is_not_null()
    return (paired & (pl.col("confidence") < LEAST_CONFIDENCE)).fill_null(value=False)


def paired_run(
    run: Run, steps: RunSteps, pairs: pl.DataFrame, column: Literal["a", "b"]
) -> PairedRun:
    """Return ``run`` with its cells paired; ``pairs`` is that of :func:`layer_rows`."""
    pair = _pair_of(steps.cells, pairs, column).alias("pair")
    return PairedRun(run, steps, steps.cells.with_columns(pair))


def _pair_of(cells: pl.DataFrame, pairs: pl.DataFrame, column: Literal["a", "b"]) -> pl.Series:
    """Return for each cell the row of ``pairs`` with its layer or role."""
    numbered = pairs.with_row_index("pair").select("pair", pl.col(column).alias("layer"), "role")
    is_layer = (pl.col("role") == "layer").alias("_layer")
    known = numbered.with_columns(is_layer).filter(pl.col("layer").is_not_null())
    joined = cells.select("layer", is_layer).join(
        known.select("pair", "layer", "_layer"),
        on=["layer", "_layer"],
        how="left",
        maintain_order="left",
    )
    return joined["pair"]


def view_of(a: RunSteps, b: RunSteps, by: By, pairs: pl.DataFrame) -> View:
    """Return all work by ``by``; ``pairs`` is that of :func:`layer_rows`."""
    if by == "layer":
        named, row_a, row_b = pairs, _pair_of(a.cells, pairs, "a"), _pair_of(b.cells, pairs, "b")
    else:
        named, row_a, row_b = _by_keys(a, b, by)
    count = named.height
    full_a = _with_rest(a, _row_times(a, row_a, count))
    full_b = _with_rest(b, _row_times(b, row_b, count))
    rows = RowPairs(full_a, full_b, np.arange(full_a.times.shape[1]) >= count)
    rest = pl.DataFrame({named.columns[0]: [IDLE, OVERLAP]})
    if by == "layer":
        rest = rest.with_columns(pl.col("a").alias("b"), pl.lit("unattributed").alias("role"))
    return View(by, pl.concat([named, rest], how="diagonal"), row_a, row_b, rows)


def _by_keys(a: RunSteps, b: RunSteps, by: Kind) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    keys = KEYS[by]
    cells = [keyed(steps.cells, by).select(keys) for steps in (a, b)]
    rows = pl.concat(cells).unique().sort(keys, nulls_last=True)
    numbered = rows.with_row_index("row")
    places = [
        one.join(numbered, on=keys, how="left", nulls_equal=True, maintain_order="left")["row"]
        for one in cells
    ]
    return rows, places[0], places[1]


def _row_times(steps: RunSteps, rows: pl.Series, count: int) -> RowTimes:
    """Return the cells of ``steps`` summed by step and row; ``rows`` has the row of each cell."""
    kept = rows.is_not_null()
    cells, places = steps.cells.filter(kept), rows.filter(kept).cast(pl.Int64).to_numpy()
    at = (cells["step"].cast(pl.Int64).to_numpy(), places)
    times = np.zeros((steps.count, count), dtype=np.int64)
    calls = np.zeros_like(times)
    spread = np.zeros(count)
    np.add.at(times, at, cells["time_ns"].to_numpy())
    np.add.at(calls, at, cells["calls"].fill_null(0).to_numpy())
    np.add.at(spread, places, cells["spread_ns"].to_numpy() / steps.count)
    return RowTimes(times, calls, spread)


def _with_rest(steps: RunSteps, rows: RowTimes) -> RowTimes:
    """Return ``rows`` with :data:`IDLE` and :data:`OVERLAP` appended."""
    available, busy = (steps.frame[c].to_numpy() for c in ("available_ns", "busy_ns"))
    rest = np.column_stack([available - busy, busy - rows.times.sum(axis=1)])
    return RowTimes(
        np.hstack([rows.times, rest]),
        np.hstack([rows.calls, np.zeros_like(rest)]),
        np.hstack([rows.spread, RUN_TO_RUN_HOST * np.abs(rest.mean(axis=0))]),
    )


def view_table(
    view: View,
    figures: pl.DataFrame,
    a: RunSteps,
    b: RunSteps,
    batches: tuple[int | None, int | None] = (None, None),
) -> pl.DataFrame:
    """Return the rows of ``view``, largest difference first; they add up to the step.

    By layer the first columns are those of :func:`layer_rows`, otherwise
    :data:`traceana.comparison.compared_run.KEYS`. Then come ``figures``, those of
    :func:`traceana.comparison.verdicts.verdict_tables`; by layer ``flops_per_s_a``,
    ``flops_per_s_b`` (FLOPs over all time of the layer) and, with ``batches`` that differ,
    ``image_a_ns``, ``image_b_ns`` (time over batch, rounded down; else null); by transfer
    ``bytes_a``, ``bytes_b`` (mean per step, rounded down; null where the size of a copy is
    unknown), ``bytes_per_s_a`` and ``bytes_per_s_b``. Two rows are :data:`IDLE` and
    :data:`OVERLAP`, unless a run is a summary, whose idle time is unknown. ``delta_ns``, its bounds
    and ratios are null for pairs of layers below :data:`LEAST_CONFIDENCE`.
    """
    named = view.named
    figures = _adding_up(figures, a, b)
    if view.by == "layer":
        figures = figures.with_columns(_rates(named, figures, batches))
    elif view.by == "transfer":
        figures = figures.hstack(_bandwidths(a, view.row_a, b, view.row_b, figures.height))
    names = [column for column in named.columns if named.schema[column] == pl.String]
    return (
        named.hstack(figures)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort("_size", *names, descending=[True, *(False for _ in names)], nulls_last=True)
        .drop("_size")
        .filter(pl.lit(a.timed) | ~pl.col(named.columns[0]).is_in([IDLE, OVERLAP]).fill_null(False))
        .with_columns(_unless_low_confidence(view.by))
    )


def _adding_up(figures: pl.DataFrame, a: RunSteps, b: RunSteps) -> pl.DataFrame:
    """Return ``figures`` with the last row's times as the step minus the other rows.

    The times of a run then add up to the mean of its steps' device time (``available_ns``).
    """
    last = pl.int_range(pl.len()) == figures.height - 1
    for letter, steps in (("a", a), ("b", b)):
        column = f"time_{letter}_ns"
        rest = mean_available(steps) - int(figures[column].head(figures.height - 1).sum())
        figures = figures.with_columns(pl.when(last).then(rest).otherwise(column).alias(column))
    # The remainder has no relative change.
    none = pl.when(last).then(None).otherwise("relative").alias("relative")
    return with_deltas(figures, mean_available(a)).with_columns(none)


def _rates(
    named: pl.DataFrame, figures: pl.DataFrame, batches: tuple[int | None, int | None]
) -> list[pl.Series]:
    found = []
    apart = None not in batches and batches[0] != batches[1]
    for column, batch in zip("ab", batches, strict=True):
        time = figures[f"time_{column}_ns"]
        rate = named[f"flops_{column}"] / time.replace(0, None) * 1e9
        image = time // batch if apart and batch else pl.Series([None] * len(time), dtype=pl.Int64)
        found += [rate.alias(f"flops_per_s_{column}"), image.alias(f"image_{column}_ns")]
    return found


def _bandwidths(
    a: RunSteps, row_a: pl.Series, b: RunSteps, row_b: pl.Series, count: int
) -> list[pl.Series]:
    """Return the bytes per step and the bandwidth of each of ``count`` rows in both runs."""
    size, time = pl.col("bytes"), pl.col("time_ns")
    found = []
    for column, steps, row in (("a", a, row_a), ("b", b, row_b)):
        cells = steps.cells.select("copy", "bytes", "time_ns", row.alias("row"))
        sized = size.is_not_null() & pl.col("copy").is_not_null()
        known = cells.filter(sized.all().over("row"))
        rows = known.group_by("row").agg(size.sum(), time.sum())
        every = pl.select(pl.int_range(count, dtype=pl.UInt32).alias("row"))
        figures = every.join(rows, on="row", how="left", maintain_order="left").select(
            (size // steps.count).alias(f"bytes_{column}"),
            pl.when(time > 0).then(size * 1e9 / time).alias(f"bytes_per_s_{column}"),
        )
        found += figures.get_columns()
    return found


def _unless_low_confidence(by: By) -> list[pl.Expr]:
    """Return the columns that compare two runs, null for low-confidence pairs of layers."""
    if by != "layer":
        return []
    differences = ("delta_ns", "low_ns", "high_ns", "relative", "of_step", "p")
    return [
        *(pl.when(~low_confidence()).then(column).alias(column) for column in differences),
        pl.when(low_confidence())
        .then(pl.lit("inconclusive"))
        .otherwise("verdict")
        .cast(pl.String)
        .alias("verdict"),
    ]
