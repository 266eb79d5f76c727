"""The layers of several runs in common rows.

The kernels between two products of a compiled graph compute several layers, and their row is named
after all of these (``features.1+2``). Where another run has a row for each, these rows are joined.
So are the layers inside a module that is one row of another run. All runs have the same rows, and
no time is divided that was measured as one. Then the layers of each run are aligned with one of the
runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
import polars as pl

from traceana.analyze.fused_rows import FUSED, fused_parts, together
from traceana.analyze.manifest_dataflow import MOST_LAYERS
from traceana.analyze.manifest_layers import with_paths
from traceana.comparison.compared_run import Run
from traceana.comparison.layer_alignment import align
from traceana.comparison.layer_features import modules_of, plain_name
from traceana.comparison.run_inputs import forced_pairs
from traceana.trace import Trace


def fused_alike(runs: Sequence[Run]) -> list[Run]:
    """Return ``runs`` with the same layers together in each; as they are where pairs are forced.

    Rows that have a layer in common, as an activation that is called twice, become one.
    """
    if any(run.pairs is not None for run in runs):
        return list(runs)
    is_layer, columns = pl.col("role") == "layer", pl.col("path", "type").cast(pl.String)
    typed = [run.trace.tables.layers.filter(is_layer).select(columns).rows() for run in runs]
    paths = {path for of_run in typed for path, _ in of_run}
    paths |= {layer.path for run in runs if run.model is not None for layer in run.model.layers}
    # The layers of each row of a run, by its path: several of a fused row.
    rows = [
        {path: fused_parts(path, kind, paths) or (path,) for path, kind in of_run}
        for of_run in typed
    ]
    order = dict.fromkeys(part for of_run in rows for parts in of_run.values() for part in parts)
    groups: list[set[str]] = []
    for parts in {parts for of_run in rows for parts in of_run.values() if len(parts) > 1}:
        near = [other for other in groups if not other.isdisjoint(parts)]
        groups = [other for other in groups if other not in near] + [set(parts).union(*near)]
    # The path of the common row of each layer that is fused in some of the runs alone.
    names: dict[str, str] = {}
    for group in groups:
        rows_of = {
            frozenset(path for path, parts in of_run.items() if not group.isdisjoint(parts))
            for of_run in rows
        }
        if len(group) <= MOST_LAYERS and len(rows_of - {frozenset()}) > 1:
            names |= dict.fromkeys(group, together([part for part in order if part in group]))
    names = _in_modules(runs) | names
    if not names:
        return list(runs)
    return [
        run.with_trace(_renamed(run.trace, of_run, names))
        for run, of_run in zip(runs, rows, strict=True)
    ]


def _in_modules(runs: Sequence[Run]) -> dict[str, str]:
    """Return the path of the module's row of each layer that another run has inside that row.

    A compiled function, or a layer that runs as a function of the module around it, has no row of
    its own. A module is left out if it has further layers in that run that the other lacks: its row
    is then the rest of a module.
    """
    labels: list[dict[str, list[str]]] = [{} for _ in runs]
    inside: list[dict[str, set[str]]] = [{} for _ in runs]
    for run, labels_of, around in zip(runs, labels, inside, strict=True):
        for layer in run.layers.layers:
            labels_of.setdefault(plain_name(layer.label), []).append(layer.label)
            if layer.type is not None:
                for module in map(plain_name, modules_of(layer.label)):
                    around.setdefault(module, set()).add(plain_name(layer.label))
    row_of: dict[str, str] = {}
    for labels_of, within in zip(labels, inside, strict=True):
        for module in sorted(labels_of, key=len):  # the innermost module last
            here = within.get(module, set())
            lacking = [
                there - labels_of.keys()
                for other, around in zip(labels, inside, strict=True)
                if module not in other and here <= (there := around.get(module, set()))
            ]
            if any(lacking):
                for name in {module}.union(*lacking):
                    for label in chain.from_iterable(of_run.get(name, ()) for of_run in labels):
                        row_of[label] = labels_of[module][0]
    return row_of


def _renamed(trace: Trace, rows: Mapping[str, tuple[str, ...]], names: Mapping[str, str]) -> Trace:
    """Return ``trace`` with the layers of ``names`` in rows of that path."""
    layers = trace.tables.layers.select("path", "role").iter_rows()
    paths = {
        row: names[rows[path][0]]
        for row, (path, role) in enumerate(layers)
        if role == "layer" and rows[path][0] in names
    }
    return with_paths(trace, paths, dict.fromkeys(paths, FUSED))


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
        alignment = align(layers[centre], layers[at], pairs)
        row_of = {pair.b: of_centre[pair.a] for pair in alignment.pairs}
        for pair in alignment.pairs:
            of_centre[pair.a][at] = Member(pair.b, pair.confidence)
        alone = [index for index in range(len(layers[at].layers)) if index not in row_of]
        left[at] = _others(runs, at, alone, left)
        for index in alone:
            if index in left[at]:
                row_of[index] = left[at][index]
                continue
            row = {at: Member(index, alignment.alone_b[index])}
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
    row_of: dict[int, Row] = {}
    for other, rows in left.items():
        if not rows or len(row_of) == len(alone):
            continue
        for pair in align(runs[other].layers, runs[at].layers).pairs:
            row = rows.get(pair.a)
            if row is not None and at not in row and pair.b in alone and pair.b not in row_of:
                row[at] = Member(pair.b, pair.confidence)
                row_of[pair.b] = row
    return row_of
