"""Waits for events in a recorded trace, against its own JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

import traceana

FILE = Path(__file__).parents[4] / "shared" / "traces" / "kineto" / "alexnet_forward_a100.json.gz"


@pytest.mark.skipif(not FILE.exists(), reason="no shared traces")
def test_waits_name_the_stream_and_the_call_that_recorded_the_event() -> None:
    with gzip.open(FILE) as file:
        events = json.load(file)["traceEvents"]
    reported = [event["args"] for event in events if "wait_on_stream" in event.get("args", {})]
    trace = traceana.open(FILE)
    waits = trace.tables.activities.filter(pl.col("event_stream").is_not_null())
    assert len(reported) == 20
    assert sorted(waits.select("stream", "event_stream", "event_correlation").rows()) == sorted(
        (args["stream"], args["wait_on_stream"], args["wait_on_cuda_event_record_corr_id"])
        for args in reported
    )
    # What recorded the events is among the calls.
    calls = trace.tables.calls.rename({"correlation": "event_correlation"})
    names = waits.join(calls.select("event_correlation", "name"), on="event_correlation")["name"]
    assert names.cast(pl.String).unique().to_list() == ["cudaEventRecord"]
