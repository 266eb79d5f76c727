"""Traces that others recorded: sums by step, and known values."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from traceana.analyze.devices import devices
from traceana.timeline.idle import idle
from traceana.timeline.steps import select
from traceana.trace import Trace

SHARED = Path(__file__).parents[4] / "shared" / "traces"
WITH_STEPS = "kineto/cnn_train_nccl_a100.json.gz"


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces")
def test_the_steps_add_up() -> None:
    trace = opened(SHARED / WITH_STEPS)
    by_step = idle(trace, "step").frame
    for number in trace.tables.steps["number"]:
        alone = select(trace, steps=[number])
        (row,) = devices(alone).frame.to_dicts()
        assert (
            row["span_ns"]
            == trace.tables.steps.filter(pl.col("number") == number)["duration"].item()
        )
        assert row["busy_ns"] + row["idle_ns"] == row["span_ns"]
        assert by_step.filter(pl.col("step") == number)["time_ns"].sum() == row["idle_ns"]
        assert idle(alone).totals["time_ns"] == row["idle_ns"]
    both = select(trace, steps=trace.tables.steps["number"].head(2).to_list())
    assert devices(both).frame["span_ns"].item() == trace.tables.steps["duration"].head(2).sum()


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces")
def test_busy_time_of_an_nsys_file_is_that_of_its_own_rows() -> None:
    file = SHARED / "nsys" / "transformer_2xh100_after.schema3.25.sqlite"
    query = " UNION ALL ".join(
        f"SELECT deviceId, start, end FROM CUPTI_ACTIVITY_KIND_{kind}"
        for kind in ("KERNEL", "MEMCPY", "MEMSET")
    )
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f"{query} ORDER BY start").fetchall()
    _check_sweep(opened(file), rows)


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces")
def test_busy_time_of_a_kineto_file_is_that_of_its_own_rows() -> None:
    file = SHARED / "kineto" / "resnet_train_2080ti.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    work = [
        (int(e["args"]["device"]), int(e["ts"]) * 1000, int(e["ts"] + e["dur"]) * 1000)
        for e in events
        if e.get("cat", "").lower() in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
    ]
    assert work
    _check_sweep(opened(file), sorted(work, key=lambda row: row[1]))


def _check_sweep(trace: Trace, rows: list[tuple[int, int, int]]) -> None:
    """Hold the busy time of every device against a walk over ``rows`` in order of their start."""
    busy: dict[int, int] = {}
    until: dict[int, int] = {}
    for device, start, end in rows:
        begins = max(start, until.get(device, start))
        busy[device] = busy.get(device, 0) + max(end - begins, 0)
        until[device] = max(end, until.get(device, end))
    assert dict(devices(trace).frame.select("device", "busy_ns").iter_rows()) == busy


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces")
def test_known_values_of_some_traces() -> None:
    loading = idle(opened(SHARED / "kineto" / "resnet_train_2080ti.json.gz")).frame
    assert loading["cause"][0] == "data_loader"
    assert loading["share"][0] > 0.4
    one, other = (
        {
            cause: (count, time_ns)
            for cause, count, time_ns in idle(
                opened(SHARED / "kineto" / f"resnet50_train_v100_workers{n}.json.gz")
            )
            .frame.select("cause", "count", "time_ns")
            .iter_rows()
        }
        for n in (0, 4)
    )
    # Of six batches; the first is waited for from the first step's begin.
    assert one["data_loader"][0] == 6
    assert one["data_loader"][1] > 350_000_000
    assert "before_first" not in one
    # The same training with its loading in other processes: but for the first, which they had not
    # begun to make, it waits for no batch any more.
    assert other["data_loader"][0] == 1
    assert other["data_loader"][1] < 50_000_000
