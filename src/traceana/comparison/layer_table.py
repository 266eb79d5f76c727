"""The time of each layer in several runs, forward and backward (Kim et al. 2017, Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import polars as pl

from traceana.analyze.layers import DIRECTIONS, by_direction
from traceana.comparison.compared_run import Run
from traceana.comparison.fused_layers import fused_alike
from traceana.comparison.layer_alignment import align
from traceana.comparison.run_inputs import forced_pairs
from traceana.comparison.run_tables import (
    ITEM,
    RATIO,
    RUN,
    Table,
    basis,
    comparable,
    unmarked,
    with_ratio,
)
from traceana.result import with_share
from traceana.settings import LEAST_CONFIDENCE

_KEYS: Final = ("layer", "type", "role")
_TIMES: Final = (*DIRECTIONS, "time_ns")


def layer_table(runs: Sequence[Run]) -> Table:
    """Return all work by layer, the layers of all runs aligned.

    The items are ``layer`` (its name in the first run that has it; roles such as the optimizer are
    in parentheses), ``type`` and ``role``. Columns: ``path`` (the layer's name in the run),
    ``confidence`` (probability that it belongs to the item; null for roles, and in the run that the
    others are aligned with), ``calls``, ``forward_ns``, ``backward_ns``, ``optimizer_ns``,
    ``other_ns`` (unknown direction) and ``time_ns`` of the whole recording; ``step_calls``,
    ``step_forward_ns``, ``step_backward_ns``, ``step_optimizer_ns``, ``step_other_ns``, ``step_ns``
    (means over the measured steps, rounded down; ``step_other_ns`` is the rest); ``share``,
    ``to_first``. In the order of the model; the rows of a run add up to all its work.
    """
    runs = fused_alike(runs)
    items = _items(runs)
    labels = tuple(run.label for run in runs)
    rows = pl.concat(
        [
            items.filter(pl.col(RUN) == run.label).join(_times(run), on=["path", "role"])
            for run in runs
        ]
    )
    time, _ = basis(runs)
    unsure = (pl.col("confidence") < LEAST_CONFIDENCE).fill_null(value=False)
    prefix = "step_" if time == "step_ns" else ""
    frame = with_ratio(rows, labels, time, ratios=comparable(runs)).select(
        *(RUN, ITEM, *_KEYS, "path", "confidence", "calls", *_TIMES),
        *map(_of_step, ("calls", *_TIMES)),
        "share",
        pl.when(~unsure).then(RATIO).alias(RATIO),
    )
    shown = [f"{prefix}{column}" for column in DIRECTIONS]
    figures = (*(one for one in shown if rows[one].sum()), time, "confidence", RATIO)
    none = [f"{run.label}: no layers" for run in runs if not run.layers.layers]
    return Table(frame, _KEYS, figures, time, labels, (*unmarked(runs), *none))


def _items(runs: Sequence[Run]) -> pl.DataFrame:
    """Return ``run``, ``item``, the keys, ``path`` and ``confidence`` of each layer and role."""
    found: list[dict[str, Any]] = []
    rows = aligned(runs)
    for item, row in enumerate(rows):
        there = [(runs[at], row[at]) for at in sorted(row)]
        seen = [run.layers.layers[one.index] for run, one in there]
        named = {
            "layer": seen[0].label,
            "type": next((layer.type for layer in seen if layer.type is not None), None),
            "role": "layer",
        }
        found += [
            {RUN: run.label, ITEM: item, **named, "path": own.label, "confidence": one.confidence}
            for (run, one), own in zip(there, seen, strict=True)
        ]
    roles = [
        set(run.whole.cells.filter(pl.col("role") != "layer").select("layer", "role").iter_rows())
        for run in runs
    ]
    for item, (label, role) in enumerate(sorted(set().union(*roles)), start=len(rows)):
        named = {"layer": label, "type": None, "role": role, "path": label, "confidence": None}
        found += [
            {RUN: run.label, ITEM: item, **named}
            for run, own in zip(runs, roles, strict=True)
            if (label, role) in own
        ]
    text = dict.fromkeys((RUN, *_KEYS, "path"), pl.String)
    return pl.DataFrame(found, schema={**text, ITEM: pl.Int64, "confidence": pl.Float64})


def _times(run: Run) -> pl.DataFrame:
    """Return calls and times of each layer and role, named as in the run (``path``)."""
    keys = [pl.col("layer").alias("path"), "role"]
    frame = run.whole.cells.group_by(keys).agg(_summed())
    if not run.measured.marked:
        return with_share(frame).with_columns(
            pl.lit(None, pl.Float64 if one == "calls" else pl.Int64).alias(_of_step(one))
            for one in ("calls", *_TIMES)
        )
    steps = run.measured.count
    means = (
        run.measured.cells.group_by(keys)
        .agg(_summed())
        .select(
            "path",
            "role",
            (pl.col("calls") / steps).alias("step_calls"),
            *((pl.col(one) // steps).alias(_of_step(one)) for one in _TIMES),
        )
    )
    columns = [_of_step(one) for one in ("calls", *_TIMES)]
    rest = pl.col("step_ns") - pl.sum_horizontal(_of_step(one) for one in DIRECTIONS[:-1])
    return (
        with_share(frame)
        .join(means, on=["path", "role"], how="left")
        .with_columns(
            pl.when(pl.col("step_ns").is_null()).then(0).otherwise(one).alias(one)
            for one in columns
        )
        .with_columns(rest.alias("step_other_ns"))
    )


def _summed() -> list[pl.Expr]:
    return [pl.col("calls").sum(), *by_direction(), pl.col("time_ns").sum()]


def _of_step(column: str) -> str:
    return "step_ns" if column == "time_ns" else f"step_{column}"


class Member(msgspec.Struct, frozen=True):
    """A layer of a run: its index there, and the probability that it belongs to its row.

    ``confidence`` is None in the run that the others are aligned with.
    """

    index: int
    confidence: float | None


Row = dict[int, Member]
"""The matching layers of one row, by the index of their run."""


def aligned(runs: Sequence[Run]) -> list[Row]:
    """Return the layers of ``runs``, each in one row.

    The run with the most layers, or the first where pairs are forced, is the centre of a star: each
    other run is aligned with it. Layers that the centre does not have are paired by the alignments
    of the runs that have them. The rows are in the order of the centre; other layers come after
    the layer before them in their run. Raises :class:`~traceana.errors.InvalidInputError`.
    """
    layers = [run.layers for run in runs]
    forced = any(run.pairs is not None for run in runs)
    centre = max(range(len(runs)), key=lambda at: (len(layers[at].layers), -at))
    centre = 0 if forced else centre
    of_centre: list[Row] = [{centre: Member(at, None)} for at in range(len(layers[centre].layers))]
    rows = [*of_centre]
    left: dict[int, dict[int, Row]] = {}
    for at in (at for at in range(len(runs)) if at != centre):
        names = runs[centre].label, runs[at].label
        pairs = forced_pairs(runs[at].pairs, layers[centre], layers[at], names)
        found = align(layers[centre], layers[at], pairs)
        row_of = {pair.b: of_centre[pair.a] for pair in found.pairs}
        for pair in found.pairs:
            of_centre[pair.a][at] = Member(pair.b, pair.confidence)
        alone = [index for index in range(len(layers[at].layers)) if index not in row_of]
        left[at] = _others(runs, at, alone, left)
        for index in alone:
            if index in left[at]:
                row_of[index] = left[at][index]
                continue
            row = {at: Member(index, found.alone_b[index])}
            behind = rows.index(row_of[index - 1]) + 1 if index else 0
            rows.insert(behind, row)
            row_of[index] = left[at][index] = row
    return rows


def _others(
    runs: Sequence[Run], at: int, alone: list[int], left: dict[int, dict[int, Row]]
) -> dict[int, Row]:
    """Add layers of run ``at`` without a match in the centre to matching rows of earlier runs.

    Return these rows by index; ``left`` has the rows of earlier runs by run and index.
    """
    found: dict[int, Row] = {}
    for other, rows in left.items():
        if not rows or len(found) == len(alone):
            continue
        for pair in align(runs[other].layers, runs[at].layers).pairs:
            row = rows.get(pair.a)
            if row is not None and at not in row and pair.b in alone and pair.b not in found:
                row[at] = Member(pair.b, pair.confidence)
                found[pair.b] = row
    return found
