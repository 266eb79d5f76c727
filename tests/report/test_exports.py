"""Exports hold every event, exact to the nanosecond, and tracks of what traceana found."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.analyze.test_lines import training
from tests.report.html.test_document import HOSTILE, hostile
from tests.support.command_line import Run
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.analyze.layers import layers
from traceana.errors import CannotWriteError, ExitCode
from traceana.report.exports import perfetto, speedscope
from traceana.timeline.idle import idle
from traceana.trace import Trace

FIXTURE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


def events(trace: Trace) -> list[dict[str, Any]]:
    whole = b"".join(perfetto(trace))
    loaded: list[dict[str, Any]] = json.loads(whole, parse_float=Decimal)["traceEvents"]
    return loaded


def complete(trace: Trace) -> pl.DataFrame:
    rows = [one for one in events(trace) if one["ph"] == "X"]
    return pl.DataFrame(
        {
            "kind": [one["cat"] for one in rows],
            "name": [one["name"] for one in rows],
            "track": [f"{one['pid']} {one['tid']}" for one in rows],
            "start": [int(1000 * one["ts"]) for one in rows],
            "time": [int(1000 * one["dur"]) for one in rows],
        },
        schema={
            **{"kind": pl.String, "name": pl.String, "track": pl.String},
            **{"start": pl.Int64, "time": pl.Int64},
        },
    )


def check(trace: Trace) -> None:
    """Assert that every table's events are there, with their sums of starts and durations."""
    found = complete(trace)
    gaps = idle(trace, by="gap").frame.select(start="start_ns", duration="time_ns")
    ranges = found["kind"].replace({"annotations": "ranges", "overhead": "ranges"})
    found = found.with_columns(ranges)
    for kind, table in (
        ("stream", trace.tables.activities),
        ("operators", trace.tables.ops),
        ("ranges", trace.tables.ranges),
        ("calls", trace.tables.calls),
        ("idle", gaps),
    ):
        rows = found.filter(pl.col("kind") == kind)
        assert rows.height == table.height, kind
        assert rows["time"].sum() == table["duration"].sum(), kind
        assert rows["start"].sum() == table["start"].sum(), kind


def test_the_events_of_built_steps_are_all_there() -> None:
    check(cnn_steps())


def test_an_event_of_no_duration_is_kept() -> None:
    builder = TraceBuilder()
    builder.name("k", category="conv")
    builder.kernel("k", 0, 0)
    builder.kernel("k", 5, 7)
    check(builder.build())


def test_layers_have_a_track_without_overlaps() -> None:
    found = complete(cnn_steps()).filter(pl.col("kind") == "layers").sort("track", "start")
    assert found.height
    end = pl.col("start") + pl.col("time")
    assert found.filter(end > pl.col("start").shift(-1).over("track")).is_empty()


def test_every_track_has_a_name() -> None:
    every = events(cnn_steps())
    named = {(one["pid"], one["tid"]) for one in every if one["name"] == "thread_name"}
    assert {(one["pid"], one["tid"]) for one in every if one["ph"] == "X"} <= named


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_strings_of_json(text: str) -> None:
    assert text in complete(hostile(text))["name"].to_list()
    frames = json.loads(b"".join(speedscope(hostile(text))))["shared"]["frames"]
    assert {"name": text} in frames


def test_the_stacks_of_speedscope_add_up_to_all_work() -> None:
    trace = cnn_steps()
    (profile,) = json.loads(b"".join(speedscope(trace)))["profiles"]
    assert sum(profile["weights"]) == profile["endValue"] == layers(trace).totals["time_ns"]
    assert len(profile["weights"]) == len(profile["samples"])


def test_a_trace_is_exported_by_its_method(tmp_path: Path) -> None:
    written = cnn_steps().export(tmp_path / "run.perfetto.json")
    assert written.read_bytes() == b"".join(perfetto(cnn_steps()))
    with pytest.raises(CannotWriteError):
        cnn_steps().export(written)
    assert cnn_steps().export(written, overwrite=True) == written


def test_the_ending_is_the_format(run: Run, tmp_path: Path) -> None:
    for name in ("run.perfetto.json", "run.perfetto.json.gz", "run.speedscope.json"):
        assert run("export", FIXTURE, "-o", tmp_path / name).exit_code == 0
    text = (tmp_path / "run.perfetto.json").read_bytes()
    assert gzip.decompress((tmp_path / "run.perfetto.json.gz").read_bytes()) == text
    refused = run("export", FIXTURE, "-o", tmp_path / "run.csv")
    assert refused.exit_code == ExitCode.CANNOT_WRITE
    assert "end it with .perfetto.json, .speedscope.json" in refused.stderr
    again = run("export", FIXTURE, "-o", tmp_path / "run.perfetto.json")
    assert again.exit_code == ExitCode.CANNOT_WRITE
    assert (tmp_path / "run.perfetto.json").read_bytes() == text


def test_lines_of_the_program_are_in_the_arguments_and_a_profile_of_their_own() -> None:
    trace = training()
    work = [one for one in events(trace) if one.get("cat") == "stream"]
    lines = {one["args"].get("line") for one in work}
    assert {"model.py:41", "model.py:42", "train.py:12"} <= lines
    assert "train.py:5 > train.py:11 > model.py:41" in {one["args"].get("stack") for one in work}
    content = json.loads(b"".join(speedscope(trace)))
    layers_, lines_ = content["profiles"]
    assert layers_["endValue"] == lines_["endValue"] == sum(lines_["weights"])
    names = [frame["name"] for frame in content["shared"]["frames"]]
    stacks = {
        tuple(names[at] for at in sample): weight
        for sample, weight in zip(lines_["samples"], lines_["weights"], strict=True)
    }
    called = ("all work", "train.py:5 main", "train.py:11 step", "model.py:41 forward")
    assert stacks[called] == 700


def test_overlapping_kernels_of_a_stream_are_on_different_tracks() -> None:
    b = TraceBuilder()
    for name, start, duration in (("a", 0, 100), ("b", 90, 50), ("c", 95, 5), ("d", 140, 10)):
        b.kernel(name, start, duration, stream=7)
    b.kernel("alone", 90, 100, stream=8)
    kernels = complete(b.build()).filter(kind="stream")
    tracks = dict(kernels.select("name", "track").iter_rows())
    assert len({tracks["a"], tracks["b"], tracks["c"]}) == 3
    assert tracks["d"] == tracks["a"]
    for track in kernels.sort("start").partition_by("track"):
        assert (track["start"][1:] >= (track["start"] + track["time"])[:-1]).all()
    names = {e["args"]["name"] for e in events(b.build()) if e["name"] == "thread_name"}
    assert names >= {"stream 7", "stream 8"}


def test_work_has_its_figures() -> None:
    b = TraceBuilder()
    b.row("devices", device=0, name="NVIDIA H100 80GB HBM3", vendor="NVIDIA")
    shapes, types = "[[64, 64], [64, 64]]", '["float", "float"]'
    op = b.row("ops", name="aten::mm", start=0, duration=10, input_shapes=shapes, input_types=types)
    call = b.row("calls", name="cudaLaunchKernel", start=1, duration=2)
    b.name("sgemm", category="gemm", precision="fp32", tensor_core=False)
    b.kernel("sgemm", 20, 1000, stream=7, op=op, call=call)
    b.kernel("other", 1020, 10, stream=7)
    of_name = {e["name"]: e["args"] for e in events(b.build()) if e.get("cat") == "stream"}
    assert of_name["sgemm"]["operator_flops"] == 2 * 64**3
    assert of_name["sgemm"]["operator_flops_per_s"] == 2 * 64**3 * 10**6
    assert of_name["sgemm"]["bound"] == "memory"
    assert of_name["sgemm"]["wait"] == "launch"
    assert of_name["other"]["wait"] == "stream"
    assert "operator_flops" not in of_name["other"]
