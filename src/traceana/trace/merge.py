"""Merging of the traces of a distributed run into one Trace, with a rank per row and one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl

from traceana.trace.meta import TraceMeta
from traceana.trace.schema import ROW, SCHEMA, TABLES, TIME_COLUMNS, conform
from traceana.trace.trace import Trace

_SHARED: Final = ("names", "layers")
"""Tables whose rows have the same meaning in every rank; equal rows are merged."""

_OF_CONTEXT: Final = ("classes", "episodes")
"""Tables that are recomputed for the merged trace."""


def merge(traces: Sequence[Trace], ranks: Sequence[int], meta: TraceMeta) -> Trace:
    """Return one Trace of the attributed ``traces`` of the given ``ranks``, not yet classified.

    Times are aligned by the epoch of each trace; a trace without one starts at 0, with the
    earliest, and the caller records that in the ledger. Layers with the same path and role, and
    equal names, share a row.
    """
    names, name_rows = _united([trace.names.select("name") for trace in traces], ["name"])
    layers, layer_rows = _layers([trace.layers for trace in traces])
    shifts = _shifts(traces)
    parts: dict[str, list[pl.DataFrame]] = {
        name: [] for name in TABLES if name not in (*_SHARED, *_OF_CONTEXT)
    }
    offsets = dict.fromkeys(parts, 0)
    for i, (trace, rank) in enumerate(zip(traces, ranks, strict=True)):
        shared = {"names": name_rows[i], "layers": layer_rows[i]}
        for table in parts:
            frame = _renumbered(trace.table(table), table, shifts[i], offsets, shared)
            if "rank" in TABLES[table]:
                frame = frame.with_columns(pl.lit(rank, pl.Int32).alias("rank"))
            parts[table].append(frame)
        for table in parts:
            offsets[table] += trace.table(table).height
    tables: Mapping[str, pl.DataFrame] = {table: pl.concat(part) for table, part in parts.items()}
    return Trace(meta, {**tables, "names": conform("names", names), "layers": layers})


def _renumbered(
    frame: pl.DataFrame,
    table: str,
    shift: int,
    offsets: Mapping[str, int],
    shared: Mapping[str, pl.Series],
) -> pl.DataFrame:
    """Return ``frame`` with shifted times and with the row numbers of the merged tables."""
    changed: dict[str, pl.Expr | pl.Series] = {
        column: pl.col(column) + shift for column in TIME_COLUMNS.get(table, ())
    }
    for column, described in SCHEMA[table].columns.items():
        target = described.row_of
        if target is None:
            continue
        if target in shared:
            changed[column] = shared[target].gather(frame[column])
        elif target in _OF_CONTEXT:
            changed[column] = pl.lit(None, ROW)
        else:
            changed[column] = (pl.col(column) + offsets[target]).cast(ROW)
    return frame.with_columns(**changed)


def _shifts(traces: Sequence[Trace]) -> list[int]:
    epochs = [trace.meta.epoch_ns for trace in traces]
    known = [epoch for epoch in epochs if epoch is not None]
    earliest = min(known, default=0)
    return [0 if epoch is None else epoch - earliest for epoch in epochs]


def _united(frames: Sequence[pl.DataFrame], key: list[str]) -> tuple[pl.DataFrame, list[pl.Series]]:
    """Return the distinct rows by ``key`` in order of appearance, and the row of each input."""
    distinct = pl.concat(frames).unique(key, keep="first", maintain_order=True)
    numbered = distinct.select(key).with_row_index("row")
    rows = [
        frame.select(key).join(numbered, on=key, how="left", maintain_order="left")["row"]
        for frame in frames
    ]
    return distinct, rows


def _layers(frames: Sequence[pl.DataFrame]) -> tuple[pl.DataFrame, list[pl.Series]]:
    named = [
        frame.with_columns(frame["path"].gather(frame["parent"]).alias("above")) for frame in frames
    ]
    distinct, rows = _united(named, ["path", "role"])
    numbered = distinct.select("path", "role").with_row_index("parent")
    layers = (
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
    return conform("layers", layers), rows
