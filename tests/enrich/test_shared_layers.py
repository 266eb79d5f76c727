"""Layers of the shared traces: their share of the time, and recovery of hidden launches."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.support.manifest import TRACES
from tests.support.opened import opened
from traceana.columns.nesting import NONE
from traceana.match.repetition import Repetitions


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
