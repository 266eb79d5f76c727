"""One network in three frameworks, compared."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from tests.comparison.shared import diff
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.comparison.layer_alignment import align
from traceana.comparison.layer_features import RunLayers, run_layers
from traceana.enrich import attribute
from traceana.runs.layer_manifest import read

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = {
    "pytorch": ("alexnet-cpu-ranges.json.gz", "alexnet-cpu-ranges.layers.json"),
    "keras": ("xplane/alexnet-cpu-keras.xplane.pb", "xplane/alexnet-cpu-keras.layers.json"),
    "jax": ("xplane/alexnet-cpu-jax.xplane.pb", "xplane/alexnet-cpu-jax.layers.json"),
}


def test_labels_are_no_feature() -> None:
    """The label of a layer is not evidence."""
    a, b = (
        run_layers(opened(FIXTURES / trace), read(FIXTURES / model))
        for trace, model in (RUNS["pytorch"], RUNS["keras"])
    )
    blind = RunLayers(tuple(replace(one, label=str(n)) for n, one in enumerate(b.layers)), b.batch)
    assert {(p.a, p.b) for p in align(a, b).pairs} == {(p.a, p.b) for p in align(a, blind).pairs}


def test_the_flops_of_a_layer_are_those_of_one_image_in_one_step() -> None:
    b = TraceBuilder()
    of_thread = {"process": 9, "thread": 1}
    shapes = {"input_shapes": "[[4, 8], [3, 8]]", "input_types": '["float", "float"]'}
    for step in (0, 1):
        at = 1_000 * step
        for kind, text in (("step", f"ProfilerStep#{step}"), ("module", "nn.Module: Linear_0")):
            b.row("ranges", text=text, kind=kind, start=at, duration=900, **of_thread)
        for call in (100, 500):
            b.row("ops", name="aten::linear", start=at + call, duration=200, **of_thread, **shapes)
    found = run_layers(attribute(b.build()), None)
    (layer,) = found.layers
    # Two calls in each of two steps, each on 4 images.
    assert (found.batch, layer.flops) == (4, 2 * (2 * 8 * 3))


@pytest.mark.parametrize(("one", "other"), list(combinations(RUNS, 2)))
def test_rows_of_two_frameworks_add_up(one: str, other: str) -> None:
    found = diff(FIXTURES / RUNS[one][0], FIXTURES / RUNS[other][0])
    rows = found.by("layer")
    for which, run in (("a", found.baseline.steps), ("b", found.candidate.steps)):
        assert int(rows[f"time_{which}_ns"].sum()) == (
            int(run.frame["available_ns"].sum()) // run.count
        )
    assert found.step.verdict == "not enough steps"
    batches = found.changes.filter(pl.col("change") == "batch")
    assert batches.height == (0 if {one, other} == {"keras", "jax"} else 1)
    assert (found.per_image is None) == ({one, other} == {"keras", "jax"})
