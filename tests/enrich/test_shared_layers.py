"""Layers of the shared traces: their share of the time, and recovery of hidden launches."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.support.manifest import TRACES, Expected, each
from tests.support.opened import opened
from traceana.analyze.layers import layers
from traceana.columns.nesting import NONE
from traceana.match.repetition import Repetitions

pytestmark = pytest.mark.slow

WITH_LAYER_RANGES = ("nvprof/language_model_pyprof_v100.sql",)
"""Traces whose layers only NVTX tells; those with module events are told by their ranges."""


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_work_is_on_layers_and_adds_up(want: Expected) -> None:
    trace = opened(want.path)
    total = trace.tables.activities.filter(pl.col("kind") != "sync")["duration"].sum()
    by_layer = layers(trace).frame
    assert by_layer["time_ns"].sum() == total
    assert layers(trace, direction=True).frame["time_ns"].sum() == total
    unattributed = by_layer.filter(pl.col("role") == "unattributed")
    assert set(unattributed["layer"]) <= {"(launched before capture)", "(outside all layers)"}
    if (trace.tables.ranges["kind"] == "module").any() or want.file in WITH_LAYER_RANGES:
        kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
        lost = trace.tables.layers["role"].gather(kernels["layer"]) == "unattributed"
        assert kernels.filter(lost)["duration"].sum() <= 0.01 * want.kernel_ns


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
@pytest.mark.parametrize("name", ["cnn_train_ns_resolution_v100", "diff_control_a100"])
def test_the_layers_of_hidden_launches_are_recovered(name: str) -> None:
    """The launches of the first half are hidden: nearly all layers are recovered, correctly."""
    trace = opened(TRACES / "kineto" / f"{name}.json.gz")
    activities = trace.tables.activities
    layer = activities["layer"].to_numpy().astype(np.int64)
    role = trace.tables.layers["role"].gather(activities["layer"])
    known = ((role != "unattributed") & (activities["kind"] != "sync")).to_numpy()
    hidden = known & (activities["start"] < activities["start"].median()).to_numpy()
    facts = np.where(known & ~hidden, layer, NONE)
    (source,) = Repetitions(activities).sources([facts], pl.Series(hidden))
    reported = hidden & (source != NONE)
    assert reported.sum() > 0.9 * hidden.sum()
    assert (layer[reported] == layer[source[reported]]).all()
