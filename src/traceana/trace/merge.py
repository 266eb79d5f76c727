"""Merging of the traces of a distributed run into one Trace, with a rank per row and one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.trace.schema import ROW, SCHEMA, TABLES, TIME_COLUMNS, conform
from traceana.trace.tables import Tables
from traceana.trace.trace import Trace, TraceMeta

Ints = npt.NDArray[np.integer]

_SHARED: Final = ("names", "layers")
"""Tables whose rows have the same meaning in every rank; equal rows are merged."""

_OF_CONTEXT: Final = ("classes", "episodes")
"""Tables that are recomputed for the merged trace."""


def merge(traces: Sequence[Trace], ranks: Sequence[int] | None, meta: TraceMeta) -> Trace:
    """Return one Trace of the attributed ``traces`` of the given ``ranks``, not yet classified.

    Without ``ranks`` they are windows of one process, whose rows have no rank.

    Times are aligned by the epoch of each trace; a trace without one starts at 0, with the
    earliest, and the caller records that in the ledger. Layers with the same path and role, and
    equal names, share a row.
    """
    merged = [name for name in TABLES if name not in _OF_CONTEXT]
    # Tables are joined whole and renumbered at once: the cost of a rank is that of its rows.
    parts = {name: _Parts([trace.tables[name] for trace in traces]) for name in merged}
    names, name_rows = _united(parts["names"].whole.select("name"), ["name"])
    layers, layer_rows = _layers(parts["layers"])
    shared = {"names": name_rows, "layers": layer_rows}
    shifts = np.asarray(_shifts(traces), dtype=np.int64)
    numbers = None if ranks is None else np.asarray(ranks, dtype=np.int32)
    tables = {
        name: _renumbered(name, parts, shared, shifts, numbers)
        for name in merged
        if name not in _SHARED
    }
    return Trace(meta, Tables({**tables, "names": conform("names", names), "layers": layers}))


class _Parts:
    """A table of all traces: ``whole``, and by trace where its rows ``start``."""

    def __init__(self, frames: Sequence[pl.DataFrame]) -> None:
        heights = np.fromiter((frame.height for frame in frames), np.int64, len(frames))
        filled = [frame for frame in frames if frame.height]
        self.whole = pl.concat(filled) if filled else frames[0]
        self.start = np.cumsum(heights) - heights
        self._heights = heights

    def each(self, values: Ints) -> pl.Series:
        """Return ``values``, one a trace, repeated for each row of the trace."""
        return pl.Series(np.repeat(values, self._heights))


def _renumbered(
    table: str,
    parts: Mapping[str, _Parts],
    shared: Mapping[str, pl.Series],
    shifts: Ints,
    ranks: Ints | None,
) -> pl.DataFrame:
    """Return ``table`` with shifted times and with the row numbers of the merged tables."""
    own = parts[table]
    whole = own.whole
    if whole.is_empty():
        return whole
    changed: dict[str, pl.Expr | pl.Series] = {}
    if times := TIME_COLUMNS.get(table, ()):
        shift = own.each(shifts)
        changed |= {column: whole[column] + shift for column in times}
    for column, described in SCHEMA[table].columns.items():
        target = described.row_of
        if target is None:
            continue
        if target in _OF_CONTEXT:
            changed[column] = pl.lit(None, ROW)
            continue
        rows = whole[column].cast(pl.Int64) + own.each(parts[target].start)
        changed[column] = shared[target].gather(rows) if target in shared else rows.cast(ROW)
    if ranks is not None and "rank" in TABLES[table]:
        changed["rank"] = own.each(ranks)
    return whole.with_columns(**changed)


def _shifts(traces: Sequence[Trace]) -> list[int]:
    epochs = [trace.meta.epoch_ns for trace in traces]
    known = [epoch for epoch in epochs if epoch is not None]
    earliest = min(known, default=0)
    return [0 if epoch is None else epoch - earliest for epoch in epochs]


def _united(whole: pl.DataFrame, key: list[str]) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct rows by ``key`` in order of appearance, and the row of each input row."""
    distinct = whole.unique(key, keep="first", maintain_order=True)
    numbered = distinct.select(key).with_row_index("row")
    return distinct, whole.select(key).join(numbered, on=key, how="left", maintain_order="left")[
        "row"
    ]


def _layers(parts: _Parts) -> tuple[pl.DataFrame, pl.Series]:
    """Return the layers of all traces, each path and role once, and the row of each input row."""
    whole = parts.whole
    parents = whole["parent"].cast(pl.Int64) + parts.each(parts.start)
    return united_layers(whole.with_columns(whole["path"].gather(parents).alias("above")))


def united_layers(layers: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Return each path and role of ``layers`` once, the first, and the row of each input row.

    The column ``above`` is the path of the layer around each.
    """
    distinct, rows = _united(layers, ["path", "role"])
    numbered = distinct.select("path", "role").with_row_index("parent")
    united = (
        distinct.drop("parent")
        .join(
            numbered,
            left_on=["above", "role"],
            right_on=["path", "role"],
            how="left",
            maintain_order="left",
        )
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias("position"))
        .drop("above")
    )
    return conform("layers", united), rows
