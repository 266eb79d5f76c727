"""Rates on the shared traces: above the device's peak only where the algorithm explains it."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support.manifest import Expected, each
from tests.support.opened import opened
from traceana.analyze.flops import flops
from traceana.analyze.layers import layers
from traceana.analyze.roofline import roofline

pytestmark = pytest.mark.slow

WINOGRAD = "kineto/resnet50_train_v100_workers0.json.gz"


@each("kineto", "nsys-sqlite", "nvprof-sqlite", "xplane")
def test_no_rate_is_above_the_peak_unexplained(want: Expected) -> None:
    trace = opened(want.path)
    counted, by_class = flops(trace), roofline(trace)
    of_layers = layers(trace), layers(trace, direction=True)
    for result in (*of_layers, by_class):
        above = result.frame.filter(pl.col("of_peak") > 1)
        assert set(above["over_peak"]) <= {"executed fewer"}
        if want.file == WINOGRAD:
            assert above.height
    work = trace.tables.activities.filter(pl.col("kind") != "sync")
    assert counted.totals["time_ns"] == work["duration"].sum()
    assert by_class.totals["time_ns"] == work["duration"].sum()
    total = counted.totals.get("flops")
    assert [one.totals.get("flops") for one in of_layers] == [total, total]
    if not any("FLOPs without a class" in note for note in by_class.notes):
        assert by_class.totals.get("flops") == total
