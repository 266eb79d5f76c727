"""Sampled counters on the report, under its timeline, in its JSON and in exports."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.kineto.test_counters import sample
from tests.readers.kineto.writing import annotation, call, kernel, write
from tests.report.html.test_document import HOSTILE
from tests.support.command_line import run
from tests.support.traces import TraceBuilder
from traceana.analyze.timeline import MOST_COUNTERS, timeline
from traceana.report.charts.pictures import picture
from traceana.report.exports import perfetto
from traceana.report.numbers import value
from traceana.report.pages.analysis_pictures import step_timeline
from traceana.trace import Trace


def recording(path: Path, *counters: tuple[str, list[float]]) -> Path:
    """Write four steps of 100 µs with a kernel of 60 each, and counters each 10 µs."""
    events = []
    for step in range(4):
        start = 100 * step
        events += [
            annotation(f"ProfilerStep#{step}", 1_000 + start, 100),
            call("cudaLaunchKernel", 1_010 + start, 5, step + 1),
            kernel("k", 1_020 + start, 60, correlation=step + 1),
        ]
    for name, values in counters:
        events += [sample(name, 1_000 + 10 * at, **{"": one}) for at, one in enumerate(values)]
    return write(path, events)


COUNTERS = (
    ("SM Active (%)", [61.04] * 40),
    ("Tensor Active [Throughput %]", [12.0] * 40),
    ("DRAM BW (%)", [34.0] * 40),
    ("HBM Read (%)", [20.0] * 40),
    ("SM Clock (MHz)", [1380.0, 1980.0] * 20),
    ("Power (W)", [312.0] * 40),
    ("Cycles (Current Kernel)", [1e6] * 40),
)


def test_the_report_has_a_line_of_the_main_counters(tmp_path: Path) -> None:
    printed = run("report", recording(tmp_path / "t.json", *COUNTERS)).stdout
    first, second, third = printed.partition("Sampled")[2].splitlines()[:3]
    assert first.strip() == (
        "SM active 61 % · tensor active 12 % · DRAM 34 % · SM clock 1,380\u20131,980 MHz"
    )
    assert second.strip() == "power 312 W (clocks locked by the sampler)"
    assert third.startswith("Bottleneck")
    without = run("report", recording(tmp_path / "u.json")).stdout
    assert "Sampled" not in without


def test_other_counters_are_counted(tmp_path: Path) -> None:
    path = recording(tmp_path / "t.json", ("queue", [1.0] * 40), ("Power (mW)", [1e5] * 40))
    assert "Sampled          power 100,000 mW" in run("report", path).stdout
    path = recording(tmp_path / "u.json", ("queue", [1.0] * 40))
    assert "Sampled          1 counter\n" in run("report", path).stdout


def test_the_command_and_the_json_of_the_report(tmp_path: Path) -> None:
    path = recording(tmp_path / "t.json", *COUNTERS)
    rows = json.loads(run("samples", path, "--format", "json").stdout)["rows"]
    assert [row["name"] for row in rows] == [
        *("Cycles (Current Kernel)", "DRAM BW", "HBM Read", "Power", "SM Active", "SM Clock"),
        "Tensor Active",
    ]
    report = json.loads(run("report", path, "--format", "json").stdout)
    assert [row["name"] for row in report["sections"]["samples"]] == [row["name"] for row in rows]
    assert (
        "samples"
        not in json.loads(run("report", recording(tmp_path / "u.json"), "--format", "json").stdout)[
            "sections"
        ]
    )
    for by in ("step", "class", "layer"):
        printed = run("samples", path, "--by", by)
        assert printed.exit_code == 0
        assert "SM Active" in printed.stdout


def test_hostile_names_are_printed_plain(tmp_path: Path) -> None:
    path = recording(tmp_path / "t.json", *((f"{text} (W)", [1.0]) for text in HOSTILE))
    for by in ("counter", "class"):
        printed = run("samples", path, "--by", by, "--format", "md")
        assert printed.exit_code == 0
        assert "\x1b" not in printed.stdout


def built(count: int, values: int) -> Trace:
    """Return a trace of 1 ms with ``count`` counters of ``values`` samples."""
    builder = TraceBuilder()
    builder.kernel("k", 0, 1_000_000)
    every = 1_000_000 // values
    for number in range(count):
        for at in range(values):
            where = {"device": 0, "name": f"c{number:02}", "unit": "%"}
            value_ = float(at % 7)
            builder.row("samples", start=at * every, duration=every, value=value_, **where)
    return builder.build()


@pytest.mark.parametrize("values", [10, 5_000])
def test_a_window_has_few_samples_of_each_counter(values: int) -> None:
    (window,) = timeline(built(2, values))
    assert window.counters.height <= 2 * min(values, 402)
    for _, rows in window.counters.group_by("name"):
        assert rows["time_ns"].sum() == 1_000_000
        mean = (rows["mean"] * rows["time_ns"]).sum() / 1_000_000
        assert mean == pytest.approx(sum(at % 7 for at in range(values)) / values)
        assert rows.select(pl.all_horizontal(pl.col("min") <= pl.col("mean"))).to_series().all()
        assert rows["max"].max() == 6
    (shown,) = picture(step_timeline((window,), 0)[0])["windows"]
    assert [(one["of"], one["kind"], one["low"], one["high"]) for one in shown["counters"]] == [
        ("GPU 0", "c00 (%)", 0, 6),
        ("GPU 0", "c01 (%)", 0, 6),
    ]


def test_the_main_counters_are_drawn_first_and_zeros_not_at_all() -> None:
    builder = TraceBuilder()
    builder.kernel("k", 0, 100)
    names = [*(f"c{number:02}" for number in range(30)), "SMs Active", "Power", "NVENC Active"]
    for name in names:
        where = {"device": 0, "name": name, "start": 0, "duration": 100}
        builder.row("samples", value=0.0 if name.startswith("NVENC") else 1.0, **where)
    (window,) = timeline(builder.build())
    drawn = window.counters["name"].cast(pl.String).to_list()
    assert drawn == ["Power", "SMs Active", *(f"c{at:02}" for at in range(MOST_COUNTERS - 2))]


def counter_events(trace: Trace) -> list[dict[str, Any]]:
    text = b"".join(perfetto(trace))
    events: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return events


def test_an_export_has_the_samples_in_the_process_of_their_device() -> None:
    builder = TraceBuilder()
    builder.kernel("k", 0, 100, device=1)
    for device, start, number in ((1, 0, 1.5), (1, 1_234, 1e-7), (None, 5, 3.0)):
        where = {"device": device, "name": "Power", "unit": "W", "duration": 1}
        builder.row("samples", start=start, value=number, **where)
    events = counter_events(builder.build())
    named = [event for event in events if event["name"] == "process_name"]
    process = {event["args"]["name"]: event["pid"] for event in named}
    found = [event for event in events if event["ph"] == "C"]
    assert [(one["name"], one["pid"], one["ts"], float(one["args"][""])) for one in found] == [
        ("Power (W)", process["GPU 1"], 0, 1.5),
        ("Power (W)", process["host"], Decimal("0.005"), 3.0),
        ("Power (W)", process["GPU 1"], Decimal("1.234"), 1e-7),
    ]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0.0, "0"), (312.0, "312"), (45.714, "45.71"), (1980.0, "1,980"), (0.25, "0.25")),
        *(
            (1.2e9, "1.2e9"),
            (0.00012, "1.2e\u22124"),
            (-4.5, "\u22124.5"),
            (1_234_567.0, "1,234,567"),
        ),
    ],
)
def test_a_value_of_any_size_is_short(number: float, text: str) -> None:
    assert value(number) == text
