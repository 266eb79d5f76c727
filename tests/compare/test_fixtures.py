"""One network in three frameworks: layers are paired right with their names out of sight."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import polars as pl
import pytest

import traceana
from traceana.compare import diff
from traceana.compare.align import Side, align, side
from traceana.describe import read

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = {
    "pytorch": ("alexnet-cpu-ranges.json.gz", "alexnet-cpu-ranges.layers.json"),
    "keras": ("xplane/alexnet-cpu-keras.xplane.pb", "xplane/alexnet-cpu-keras.layers.json"),
    "jax": ("xplane/alexnet-cpu-jax.xplane.pb", "xplane/alexnet-cpu-jax.layers.json"),
}
WEIGHTED = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")


@cache
def seen(run: str, *, manifest: bool = True) -> Side:
    """Return the layers of a run without their names; ``label``, which nobody compares, stays."""
    trace, model = RUNS[run]
    told = side(traceana.open(FIXTURES / trace), read(FIXTURES / model) if manifest else None)
    hidden = tuple(replace(layer, path=None, number=None) for layer in told.layers)
    return Side(hidden, told.batch)


def name(label: str) -> str:
    return label.rpartition(".")[2]


@pytest.mark.parametrize(("one", "other"), list(permutations(RUNS, 2)))
def test_every_weighted_layer_is_paired_right(one: str, other: str) -> None:
    a, b = seen(one), seen(other)
    found = align(a, b)
    pairs = {name(a.layers[p.a].label): name(b.layers[p.b].label) for p in found.pairs}
    assert {layer: pairs.get(layer) for layer in WEIGHTED} == {layer: layer for layer in WEIGHTED}
    assert found.confidence is not None
    assert found.confidence > 0.95


def test_labels_are_no_feature() -> None:
    """What the test above hides from the aligner is all that it could have peeked at."""
    a, b = seen("pytorch"), seen("keras")
    blind = Side(tuple(replace(one, label=str(n)) for n, one in enumerate(b.layers)), b.batch)
    assert {(p.a, p.b) for p in align(a, b).pairs} == {(p.a, p.b) for p in align(a, blind).pairs}


def test_of_what_is_paired_without_a_manifest_and_names_little_is_wrong() -> None:
    a, b = seen("pytorch", manifest=False), seen("keras", manifest=False)
    found = [(name(a.layers[p.a].label), name(b.layers[p.b].label)) for p in align(a, b).pairs]
    assert sum(one == other for one, other in found) >= 0.9 * len(found)
    assert len(found) >= 15


@pytest.mark.parametrize(("one", "other"), list(combinations(RUNS, 2)))
def test_rows_of_two_frameworks_add_up(one: str, other: str) -> None:
    found = diff(FIXTURES / RUNS[one][0], FIXTURES / RUNS[other][0])
    rows = found.layers
    for which, run in (("a", found.sample_a), ("b", found.sample_b)):
        assert int(rows[f"time_{which}_ns"].sum()) == (
            int(run.steps["available_ns"].sum()) // run.count
        )
    assert found.step.verdict == "not enough steps"
    batches = found.changes.filter(pl.col("change") == "batch")
    assert batches.height == (0 if {one, other} == {"keras", "jax"} else 1)
    assert (found.per_image is None) == ({one, other} == {"keras", "jax"})
