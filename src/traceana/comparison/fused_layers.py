"""Layers that a compiler fused in one run are one row in the other runs too.

The kernels between two products of a compiled graph compute several layers, and their row is named
after all of these (``features.1+2``). Beside a run in which they are rows of their own, they are
taken together there: all runs have the same rows, and no time is divided that was measured as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from traceana.analyze.manifest_dataflow import MOST_LAYERS
from traceana.analyze.manifest_order import FUSED, fused_parts, together
from traceana.analyze.manifest_pairing import in_rows
from traceana.comparison.compared_run import Run
from traceana.trace import Trace

Rows = dict[str, tuple[str, ...]]
"""The layers of each row of a run, by its path: several of a fused row."""


def fused_alike(runs: Sequence[Run]) -> list[Run]:
    """Return ``runs`` with the same layers together in each; as they are where pairs are forced.

    Rows that have a layer in common, as an activation that is called twice, become one.
    """
    if any(run.pairs is not None for run in runs):
        return list(runs)
    rows = _rows(runs)
    names = _names(rows)
    if not names:
        return list(runs)
    return [
        run.with_trace(_renamed(run.trace, of_run, names))
        for run, of_run in zip(runs, rows, strict=True)
    ]


def _rows(runs: Sequence[Run]) -> list[Rows]:
    is_layer, columns = pl.col("role") == "layer", pl.col("path", "type").cast(pl.String)
    typed = [run.trace.tables.layers.filter(is_layer).select(columns).rows() for run in runs]
    known = {path for of_run in typed for path, _ in of_run}
    known |= {layer.path for run in runs if run.model is not None for layer in run.model.layers}
    return [
        {path: fused_parts(path, kind, known) or (path,) for path, kind in of_run}
        for of_run in typed
    ]


def _names(rows: Sequence[Rows]) -> dict[str, str]:
    """Return the path of the common row of each layer that is fused in some of the runs alone."""
    order = dict.fromkeys(part for of_run in rows for parts in of_run.values() for part in parts)
    groups: list[set[str]] = []
    for parts in {parts for of_run in rows for parts in of_run.values() if len(parts) > 1}:
        near = [one for one in groups if not one.isdisjoint(parts)]
        groups = [one for one in groups if one not in near] + [set(parts).union(*near)]
    found: dict[str, str] = {}
    for group in groups:
        rows_of = {
            frozenset(path for path, parts in of_run.items() if not group.isdisjoint(parts))
            for of_run in rows
        }
        if len(group) <= MOST_LAYERS and len(rows_of - {frozenset()}) > 1:
            found |= dict.fromkeys(group, together([part for part in order if part in group]))
    return found


def _renamed(trace: Trace, rows: Rows, names: Mapping[str, str]) -> Trace:
    """Return ``trace`` with the layers of ``names`` in rows of that path."""
    common = set(names.values())
    own = trace.tables.layers["path"].cast(pl.String).to_list()
    is_layer = (trace.tables.layers["role"] == "layer").to_list()
    paths = [
        names.get(rows[path][0], path) if here else path
        for path, here in zip(own, is_layer, strict=True)
    ]
    first: dict[str, int] = {}
    into = {
        row: first.setdefault(path, row) if here and path in common else row
        for row, (path, here) in enumerate(zip(paths, is_layer, strict=True))
    }
    merged = in_rows(trace, paths, into)
    changed = pl.col("path").cast(pl.String).is_in(common) & (pl.col("role") == "layer")
    kind = pl.when(changed).then(pl.lit(FUSED)).otherwise(pl.col("type").cast(pl.String))
    return merged.with_tables(
        layers=merged.tables.layers.with_columns(
            kind.cast(merged.tables.layers.schema["type"]).alias("type")
        )
    )
