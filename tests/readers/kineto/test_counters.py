"""Counter events become samples: series, units, devices, times, and what is no value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.kineto.writing import Event, kernel, write
from traceana.readers.compiled import COMPILED
from traceana.readers.kineto import decode, reader, scan
from traceana.readers.kineto.reader import read as read_with
from traceana.readers.source import silent
from traceana.trace import Trace
from traceana.trace.schema import TABLES

GPU = "GPU 0 Counters"
"""The process of PyTorch's own CUDA profiler (torch/profiler/_cuspy/trace.py)."""


def sample(name: str, ts: float, pid: object = GPU, **series: Any) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": ts, "args": series}


def read(path: Path) -> Trace:
    """Read ``path`` by both decoders, and check the conservation law."""
    trace = read_with(path, silent)
    with mock.patch.object(reader, "DECODER", decode.DECODER):
        other = read_with(path, silent)
    for table in TABLES:
        assert trace.tables[table].equals(other.tables[table]), table
    kept = sum(
        trace.tables[table].height
        for table in ("activities", "calls", "ops", "ranges", "links", "memory", "samples")
    )
    left_out = trace.tables.ledger.filter(~pl.col("kept"))["count"].sum()
    assert kept + left_out == trace.meta.events == other.meta.events
    return trace


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.tables.samples.select(*columns).rows()


def test_a_value_holds_until_the_next_of_its_series(tmp_path: Path) -> None:
    power = [sample("Power (W)", 10 + at, **{"": 300 + at}) for at in (20, 0, 5)]
    clock = [sample("SM Clock (MHz)", 12.5, **{"": 1980})]
    trace = read(write(tmp_path / "t.json", [kernel("k", 10, 50), *power, *clock]))
    # The last one has the median of 5 and 15 µs; one alone covers no time.
    assert rows(trace, "name", "unit", "device", "start", "duration", "value") == [
        ("Power", "W", 0, 0, 5_000, 300.0),
        ("Power", "W", 0, 5_000, 15_000, 305.0),
        ("Power", "W", 0, 20_000, 10_000, 320.0),
        ("SM Clock", "MHz", 0, 2_500, 0, 1980.0),
    ]
    assert trace.tables.ledger.is_empty()
    assert trace.tables.samples.schema == TABLES["samples"]


def test_each_key_is_a_series(tmp_path: Path) -> None:
    events = [sample("queue", 1, 0, queue=1, waiting=2.5e1), sample("queue", 3, 0, waiting=-4)]
    trace = read(write(tmp_path / "t.json", [kernel("k", 1, 1), *events]))
    assert rows(trace, "name", "start", "duration", "value") == [
        ("queue", 0, 0, 1.0),
        ("queue waiting", 0, 2_000, 25.0),
        ("queue waiting", 2_000, 2_000, -4.0),
    ]


@pytest.mark.parametrize(
    ("pid", "device", "name"),
    [
        (GPU, 0, "c"),
        ("GPU 11 Counters", 11, "c"),
        (0, 0, "c"),
        (4711, None, "c"),
        ("Host", None, "Host: c"),
        (None, None, "c"),
    ],
)
def test_the_process_names_the_device(
    pid: object, device: int | None, name: str, tmp_path: Path
) -> None:
    trace = read(write(tmp_path / "t.json", [kernel("k", 1, 1), sample("c", 1, pid, **{"": 1})]))
    assert rows(trace, "device", "name") == [(device, name)]


@pytest.mark.parametrize(
    ("written", "name", "unit"),
    [
        ("SMs Active [Throughput %]", "SMs Active", "%"),
        ("Temperature (C)", "Temperature", "°C"),
        ("Cycles (Current Kernel)", "Cycles (Current Kernel)", None),
        ("Compute Warps in Flight [Avg]", "Compute Warps in Flight [Avg]", None),
        ("sm__inst_executed.sum", "sm__inst_executed.sum", None),
        ("(W)", "(W)", None),
        ("", "", None),
    ],
)
def test_the_unit_is_the_one_in_the_name(
    written: str, name: str, unit: str | None, tmp_path: Path
) -> None:
    trace = read(write(tmp_path / "t.json", [sample(written, 1, **{"": 1})]))
    assert rows(trace, "name", "unit") == [(name, unit)]


NO_NUMBERS: tuple[Any, ...] = ("312", None, True, [1], {"a": 1}, 1e999)


@pytest.mark.parametrize("series", [{}, *({"": value} for value in NO_NUMBERS)], ids=str)
def test_other_values_than_numbers_are_counted(series: dict[str, Any], tmp_path: Path) -> None:
    events = [sample("c", 1, **{"": 5}), sample("c", 2, **series), sample("c", 3, **{"": 7})]
    text = json.dumps({"traceEvents": events}).replace("Infinity", "1e999")
    (tmp_path / "t.json").write_text(text)
    trace = read(tmp_path / "t.json")
    # The value before does not hold over the time of the lost one.
    assert rows(trace, "start", "duration", "value") == [(0, 1_000, 5.0), (2_000, 1_000, 7.0)]
    assert trace.tables.ledger.select("reason", "table", "count", "severity").rows() == [
        ("no_value", "samples", 1, "note")
    ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_json(value: str, tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [kernel("k", 1, 1), sample("c", 1, **{"": 5})]})
    (tmp_path / "t.json").write_text(text.replace("5}", f"{value}}}"))
    trace = read(tmp_path / "t.json")
    assert trace.tables.samples.is_empty()
    assert trace.tables.activities.height == 1


def test_samples_without_a_time_are_counted(tmp_path: Path) -> None:
    lost = [{**sample("c", 1, **{"": 1}), "ts": ts} for ts in (None, "N/A", 0, 1e18)]
    events = [kernel("k", 1, 1), sample("c", 2, **{"": 1}), *lost]
    trace = read(write(tmp_path / "t.json", events))
    assert trace.tables.samples.height == 1
    counts = dict(trace.tables.ledger.select("reason", "count").iter_rows())
    assert sum(counts.values()) == 4


@pytest.mark.parametrize(
    ("name", "locks"),
    [
        ("SM Active (%)", True),
        ("HBM Read (%)", True),
        ("sm__inst_executed.sum.per_second", True),
        ("Power (W)", False),
    ],
)
def test_pm_sampling_locks_the_clocks(name: str, locks: bool, tmp_path: Path) -> None:
    trace = read(write(tmp_path / "t.json", [sample(name, 1, **{"": 1})]))
    assert trace.meta.properties.get("sampler_locks_clocks", False) is locks
    of_host = read(write(tmp_path / "h.json", [sample(name, 1, 7, **{"": 1})]))
    assert "sampler_locks_clocks" not in of_host.meta.properties


@pytest.mark.skipif(not COMPILED, reason="the scanner is not compiled")
def test_the_scanner_reads_counters_and_numbers_of_processes() -> None:
    assert isinstance(scan.DECODER, scan.ScanningDecoder)
    for event in (sample("c", 1, 0, v=1.5), sample("c", 1, GPU, **{"": 1, "b": {"c": []}})):
        assert scan.DECODER.accepts(json.dumps(event).encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=6),
            st.integers(1, 60),
            st.sampled_from([GPU, 0, 4711, None, "x"]),
            st.dictionaries(st.text(max_size=3), VALUES, max_size=3),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_any_counters_are_kept_or_counted(
    tmp_path_factory: pytest.TempPathFactory,
    counters: list[tuple[str, int, object, dict[str, Any]]],
) -> None:
    events = [sample(name, ts, pid, **series) for name, ts, pid, series in counters]
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({"traceEvents": [kernel("k", 1, 1), *events]}, ensure_ascii=False))
    trace = read(path)
    finite = trace.tables.samples["value"]
    assert finite.is_finite().all()
    assert (trace.tables.samples["duration"] >= 0).all()


def test_counters_of_processes_without_a_device_are_apart(tmp_path: Path) -> None:
    events = [
        {"ph": "C", "name": "load (%)", "pid": pid, "ts": ts, "args": {"value": value}}
        for pid, value in ((11, 200), (12, 800))
        for ts in (10, 20)
    ]
    table = read(write(tmp_path / "t.json", [kernel("k", 1, 5), *events])).tables.samples
    named = table.select(pl.col("name", "unit").cast(pl.String), "value").unique().sort("value")
    assert named.rows() == [("process 11: load", "%", 200.0), ("process 12: load", "%", 800.0)]


def test_the_unit_of_a_counter_with_several_series(tmp_path: Path) -> None:
    event = {"ph": "C", "name": "Power (W)", "pid": 0, "ts": 10, "args": {"cpu": 5, "gpu": 300}}
    table = read(write(tmp_path / "t.json", [kernel("k", 1, 5), event])).tables.samples
    named = table.select(pl.col("name", "unit").cast(pl.String)).sort("name")
    assert named.rows() == [("Power cpu", "W"), ("Power gpu", "W")]
