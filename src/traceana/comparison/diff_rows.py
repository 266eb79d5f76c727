"""The work of two runs by layer, class, kernel, product or copy: what is one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from traceana.comparison.compared_run import Sample
from traceana.comparison.layer_alignment import Alignment
from traceana.comparison.layer_features import Side
from traceana.comparison.step_work import KEYS, Kind, keyed
from traceana.comparison.verdicts import Series, Things, mean_available, with_deltas

By = Literal["layer"] | Kind
LEAST_CONFIDENCE: Final = 0.5
"""Layers that are paired with less are not compared."""

VIEWS: Final[tuple[By, ...]] = ("layer", *KEYS)

IDLE: Final = "(idle)"
"""Time of the step in which a device did nothing, added up over the devices."""
REMAINDER: Final = "(remainder)"
"""What makes the rows add up to the step: work of several streams at once counts less than its sum,
work that a step launched may run behind its end, and means are rounded down."""


@dataclass(frozen=True, slots=True)
class View:
    """All work of two runs in the rows ``named``, before it is judged.

    ``place_a`` and ``place_b`` have the row of each cell.
    """

    by: By
    named: pl.DataFrame
    place_a: pl.Series
    place_b: pl.Series
    things: Things


def viewed(a: Sample, b: Sample, by: By, pairs: pl.DataFrame) -> View:
    """Return all work by ``by``; ``pairs`` is that of :func:`layer_rows`."""
    if by == "layer":
        rows, place_a, place_b = _by_layer(a, b, pairs)
    else:
        rows, place_a, place_b = _by_keys(a, b, by)
    count = rows.height
    things = whole(a, b, series(a, place_a, count), series(b, place_b, count))
    rest = pl.DataFrame({rows.columns[0]: [IDLE, REMAINDER]})
    if by == "layer":
        rest = rest.with_columns(pl.col("a").alias("b"), pl.lit("unattributed").alias("role"))
    return View(by, pl.concat([rows, rest], how="diagonal"), place_a, place_b, things)


def told(
    view: View,
    figures: pl.DataFrame,
    a: Sample,
    b: Sample,
    batches: tuple[int | None, int | None] = (None, None),
) -> pl.DataFrame:
    """Return the rows of ``view``, most difference first; they add up to the step.

    By layer the first columns are those of :func:`layer_rows`, otherwise
    :data:`traceana.comparison.step_work.KEYS`. Then come ``figures``, what
    :func:`traceana.comparison.verdicts.judged` says of them; by layer ``flops_per_s_a``,
    ``flops_per_s_b`` (FLOPs over all time of the layer) and, with ``batches`` that differ,
    ``image_a_ns``, ``image_b_ns`` (time over batch, rounded down; else null); by transfer
    ``bytes_a``, ``bytes_b`` (mean per step, rounded down; null where the size of a copy is not
    known), ``bytes_per_s_a`` and ``bytes_per_s_b``. The first column names idle time and the
    remainder. Of a pair of layers with less than :data:`LEAST_CONFIDENCE` no difference is told:
    ``delta_ns``, its bounds and ratios are null.
    """
    named = view.named
    figures = adding_up(figures, a, b)
    if view.by == "layer":
        figures = figures.with_columns(_rates(named, figures, batches))
    elif view.by == "transfer":
        figures = figures.hstack(_moved(a, view.place_a, b, view.place_b, figures.height))
    names = [column for column in named.columns if named.schema[column] == pl.String]
    return (
        named.hstack(figures)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort("_size", *names, descending=[True, *(False for _ in names)], nulls_last=True)
        .drop("_size")
        .with_columns(_unless_doubtful(view.by))
    )


def doubtful() -> pl.Expr:
    """Return whether a row of :func:`layer_rows` pairs two layers that may well be others."""
    paired = pl.col("a").is_not_null() & pl.col("b").is_not_null()
    return (paired & (pl.col("confidence") < LEAST_CONFIDENCE)).fill_null(value=False)


def _unless_doubtful(by: By) -> list[pl.Expr]:
    """Return the columns that compare two sides, null where they may be of different layers."""
    if by != "layer":
        return []
    differences = ("delta_ns", "low_ns", "high_ns", "relative", "of_step", "p")
    return [
        *(pl.when(~doubtful()).then(column).alias(column) for column in differences),
        pl.when(doubtful())
        .then(pl.lit("inconclusive"))
        .otherwise("verdict")
        .cast(pl.String)
        .alias("verdict"),
    ]


def layer_rows(
    side_a: Side,
    side_b: Side,
    alignment: Alignment,
    a: Sample,
    b: Sample,
    flops: tuple[Mapping[str, float], Mapping[str, float]],
) -> pl.DataFrame:
    """Return one row a pair of layers, a layer without partner, and a role.

    ``flops`` are those of each layer on either side, per step.

    Columns: ``a`` and ``b`` (names), ``role``, ``type_a``, ``type_b``, ``confidence`` (of a layer
    without partner, that it has none), ``how`` (``map``, ``order``, ``moved``), ``shape_a``,
    ``shape_b`` (of the first input of one image, axes by size), ``weight_a``, ``weight_b`` (extents
    of its weight, by size), ``memory_format_a``, ``memory_format_b`` (``contiguous`` or
    ``channels_last``, of its first input), ``flops_a``, ``flops_b`` (per step). Roles (optimizer,
    data …) are paired by their names.
    """
    partner = {pair.a: pair for pair in alignment.pairs}
    paired_b = {pair.b for pair in alignment.pairs}
    rows: list[dict[str, object]] = []
    for place, layer in enumerate(side_a.layers):
        pair = partner.get(place)
        other = None if pair is None else side_b.layers[pair.b]
        confidence = alignment.alone_a[place] if pair is None else pair.confidence
        rows.append(
            {
                "a": layer.label,
                "b": None if other is None else other.label,
                "role": "layer",
                "type_a": layer.type,
                "type_b": None if other is None else other.type,
                "confidence": confidence,
                "how": None if pair is None else pair.how,
                "shape_a": layer.takes,
                "shape_b": None if other is None else other.takes,
                "weight_a": layer.kernel,
                "weight_b": None if other is None else other.kernel,
                "memory_format_a": layer.memory_format,
                "memory_format_b": None if other is None else other.memory_format,
                "flops_a": flops[0].get(layer.label),
                "flops_b": None if other is None else flops[1].get(other.label),
            }
        )
    for place, layer in enumerate(side_b.layers):
        if place not in paired_b:
            rows.append(
                {
                    "b": layer.label,
                    "role": "layer",
                    "type_b": layer.type,
                    "confidence": alignment.alone_b[place],
                    "shape_b": layer.takes,
                    "weight_b": layer.kernel,
                    "memory_format_b": layer.memory_format,
                    "flops_b": flops[1].get(layer.label),
                }
            )
    roles = [
        set(cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for cells in (a.cells, b.cells)
    ]
    for label, role in sorted(roles[0] | roles[1]):
        in_a, in_b = ((label, role) in side for side in roles)
        rows.append({"a": label if in_a else None, "b": label if in_b else None, "role": role})
    return pl.DataFrame(
        rows,
        schema={
            "a": pl.String,
            "b": pl.String,
            "role": pl.String,
            "type_a": pl.String,
            "type_b": pl.String,
            "confidence": pl.Float64,
            "how": pl.String,
            "shape_a": pl.String,
            "shape_b": pl.String,
            "weight_a": pl.String,
            "weight_b": pl.String,
            "memory_format_a": pl.String,
            "memory_format_b": pl.String,
            "flops_a": pl.Float64,
            "flops_b": pl.Float64,
        },
    )


def pair_of(cells: pl.DataFrame, pairs: pl.DataFrame, side: Literal["a", "b"]) -> pl.Series:
    """Return for each cell the row of ``pairs`` that its layer or role is in."""
    numbered = pairs.with_row_index("pair").select("pair", pl.col(side).alias("layer"), "role")
    is_layer = (pl.col("role") == "layer").alias("_layer")
    known = numbered.with_columns(is_layer).filter(pl.col("layer").is_not_null())
    joined = cells.select("layer", is_layer).join(
        known.select("pair", "layer", "_layer"),
        on=["layer", "_layer"],
        how="left",
        maintain_order="left",
    )
    return joined["pair"]


def _rates(
    named: pl.DataFrame, figures: pl.DataFrame, batches: tuple[int | None, int | None]
) -> list[pl.Series]:
    found = []
    apart = None not in batches and batches[0] != batches[1]
    for side, batch in zip("ab", batches, strict=True):
        time = figures[f"time_{side}_ns"]
        rate = named[f"flops_{side}"] / time.replace(0, None) * 1e9
        image = time // batch if apart and batch else pl.Series([None] * len(time), dtype=pl.Int64)
        found += [rate.alias(f"flops_per_s_{side}"), image.alias(f"image_{side}_ns")]
    return found


def _by_layer(
    a: Sample, b: Sample, pairs: pl.DataFrame
) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    return pairs, pair_of(a.cells, pairs, "a"), pair_of(b.cells, pairs, "b")


def _by_keys(a: Sample, b: Sample, by: Kind) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    keys = KEYS[by]
    cells = [keyed(sample.cells, by).select(keys) for sample in (a, b)]
    rows = pl.concat(cells).unique().sort(keys, nulls_last=True)
    numbered = rows.with_row_index("row")
    places = [
        one.join(numbered, on=keys, how="left", nulls_equal=True, maintain_order="left")["row"]
        for one in cells
    ]
    return rows, places[0], places[1]


def _moved(
    a: Sample, place_a: pl.Series, b: Sample, place_b: pl.Series, count: int
) -> list[pl.Series]:
    """Return the bytes per step and the throughput of each of ``count`` rows, on both sides."""
    size, time = pl.col("bytes"), pl.col("time_ns")
    found = []
    for side, sample, place in (("a", a, place_a), ("b", b, place_b)):
        cells = sample.cells.select("copy", "bytes", "time_ns", place.alias("row"))
        sized = size.is_not_null() & pl.col("copy").is_not_null()
        known = cells.filter(sized.all().over("row"))
        rows = known.group_by("row").agg(size.sum(), time.sum())
        every = pl.select(pl.int_range(count, dtype=pl.UInt32).alias("row"))
        figures = every.join(rows, on="row", how="left", maintain_order="left").select(
            (size // sample.count).alias(f"bytes_{side}"),
            pl.when(time > 0).then(size * 1e9 / time).alias(f"bytes_per_s_{side}"),
        )
        found += figures.get_columns()
    return found


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


def whole(a: Sample, b: Sample, rows_a: Series, rows_b: Series) -> Things:
    """Return rows that hold all work, with :data:`IDLE` and :data:`REMAINDER` behind them."""
    full_a, full_b = _with_rest(a, rows_a), _with_rest(b, rows_b)
    return Things(full_a, full_b, np.arange(full_a.times.shape[1]) >= rows_a.times.shape[1])


def adding_up(figures: pl.DataFrame, a: Sample, b: Sample) -> pl.DataFrame:
    """Return what is said of :func:`whole` with the last row's times as the others leave them.

    The times of a side then add up to the mean of its steps' device time (``available_ns``).
    """
    last = pl.int_range(pl.len()) == figures.height - 1
    for side, sample in (("a", a), ("b", b)):
        column = f"time_{side}_ns"
        rest = mean_available(sample) - int(figures[column].head(figures.height - 1).sum())
        figures = figures.with_columns(pl.when(last).then(rest).otherwise(column).alias(column))
    # What is over or under the sum is no share of anything.
    none = pl.when(last).then(None).otherwise("relative").alias("relative")
    return with_deltas(figures, mean_available(a)).with_columns(none)


def _with_rest(sample: Sample, rows: Series) -> Series:
    steps = sample.steps
    available, busy = (steps[c].to_numpy() for c in ("available_ns", "busy_ns"))
    rest = np.column_stack([available - busy, busy - rows.times.sum(axis=1)])
    return Series(np.hstack([rows.times, rest]), np.hstack([rows.calls, np.zeros_like(rest)]))
