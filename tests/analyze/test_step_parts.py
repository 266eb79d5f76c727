"""The parts of a step on a device add up to the step."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from traceana.analyze.devices import step_parts
from traceana.timeline.steps import device_windows

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize("name", ["gpu/alexnet_b128.json.gz", "alexnet-cpu-ranges.json.gz"])
def test_the_parts_of_a_step_add_up_to_it(name: str) -> None:
    trace = opened(FIXTURES / name)
    parts = step_parts(trace).group_by("step", "device").agg(pl.col("time_ns").sum())
    windows = device_windows(trace).select("step", "device", pl.col("end") - pl.col("start"))
    assert parts.height > 2
    assert parts.sort("step").rows() == windows.sort("step").rows()
