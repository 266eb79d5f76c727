"""The gaps of some causes are those of the table of all gaps."""

from __future__ import annotations

from typing import Literal

import polars as pl
import pytest

from benchmarks.idle_trace import trace
from traceana.timeline.idle import gaps_of, idle, idle_time
from traceana.timeline.steps import select


@pytest.mark.parametrize("key", ["operator", "range"])
@pytest.mark.parametrize("steps", [None, [1]])
@pytest.mark.parametrize("causes", [["data_loader"], ["operator", "queued"], ["event"]])
def test_gaps_of_causes_are_those_of_the_table(
    key: Literal["operator", "range"], steps: list[int] | None, causes: list[str]
) -> None:
    made = select(trace(20_000), steps=steps)
    columns = ["device", "cause", "time_ns", key]
    wanted = idle(made, "gap").frame.filter(pl.col("cause").is_in(causes)).select(columns)
    found = gaps_of(made, idle_time(made), causes, key)
    assert found.columns == [*columns, "line"]
    texts = found.select(columns).with_columns(pl.col("cause", key).cast(pl.String))
    assert texts.sort(columns).equals(wanted.sort(columns))
    assert wanted.is_empty() == (causes == ["event"])
