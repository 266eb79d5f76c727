"""Several recordings of one process are windows of one run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.readers.kineto.writing import annotation, call, kernel, op, write
from tests.support.command_line import Run
from tests.support.frameworks import needs
from traceana.analyze.memory import memory
from traceana.errors import UsageError
from traceana.trace import Trace

BASE = 1_700_000_000 * 10**9
SECOND = 10**9
STEP_US = 100


def window(
    folder: Path,
    first_step: int,
    *,
    after_s: float,
    process: int = 100,
    steps: int = 2,
    memory_bytes: int = 0,
) -> Path:
    """Write a window of ``steps`` steps, of which the GPU works in 60 of 100 µs."""
    events = []
    for place in range(steps):
        begin = 1000 + place * STEP_US
        correlation = first_step + place
        events += [
            annotation(f"ProfilerStep#{first_step + place}", begin, STEP_US),
            op("aten::relu", begin + 1, 10, **{"External id": correlation}),
            call("cudaLaunchKernel", begin + 2, 2, correlation),
            kernel("relu_kernel", begin + 10, 60, correlation=correlation),
        ]
    if memory_bytes:
        args = {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": memory_bytes}
        args |= {"Total Allocated": memory_bytes, "Total Reserved": 0}
        event = {"ph": "i", "name": "[memory]", "pid": process, "tid": 1, "ts": 1003, "args": args}
        events.append(event)
    for event in events:
        event["pid"] = process if event["pid"] == 100 else event["pid"]
    begun = BASE + round(after_s * SECOND)
    name = f"host_{process}.{begun}.pt.trace.json"
    return write(folder / name, events, baseTimeNanoseconds=begun)


def numbers(trace: Trace) -> list[int]:
    return trace.tables.steps.sort("start")["number"].to_list()


def test_repetitions_of_the_schedule_are_one_run(tmp_path: Path) -> None:
    files = [window(tmp_path, 2 + 5 * i, after_s=3 * i) for i in range(3)]
    trace = traceana.open(tmp_path)
    assert numbers(trace) == [2, 3, 7, 8, 12, 13]
    assert trace.tables.activities["rank"].null_count() == 6
    # The windows adjoin: each lasts 200 µs.
    starts = trace.tables.steps["start"].sort().to_list()
    assert starts == [place * STEP_US * 1000 for place in range(6)]
    assert trace.meta.epoch_ns == BASE + 10**6
    assert [*trace.meta.properties["windows"].values()] == [0, 200_000, 400_000]
    assert trace.meta.events == sum(traceana.open(file).meta.events or 0 for file in files)
    windows = trace.tables.ledger.filter(pl.col("reason") == "windows")
    between = 6 * SECOND - 400_000
    assert windows.select("count", "time_ns", "severity").rows() == [(3, between, "note")]
    whole, part = (traceana.open(path) for path in (tmp_path, files[0]))
    assert whole.tables.devices.equals(part.tables.devices)
    assert whole.kernels().frame["time_ns"].sum() == 3 * part.kernels().frame["time_ns"].sum()


def test_a_layer_is_one_in_all_windows(tmp_path: Path) -> None:
    for i in range(3):
        window(tmp_path, 2 + 5 * i, after_s=3 * i)
    layers = traceana.open(tmp_path).layers().frame
    assert layers.filter(pl.col("layer") == "relu_0")["time_ns"].to_list() == [360_000]


def test_steps_that_begin_again_are_numbered_through(tmp_path: Path) -> None:
    for i in range(3):
        window(tmp_path, 2, after_s=3 * i)
    assert numbers(traceana.open(tmp_path)) == [2, 3, 4, 5, 6, 7]


def test_ranks_with_windows_have_one_clock(tmp_path: Path) -> None:
    for i in range(2):
        for process in (100, 101):
            late = (process - 100) * 20e-6
            window(tmp_path, 2 + 5 * i, after_s=3 * i + late, process=process)
    trace = traceana.open(tmp_path)
    by_rank = trace.tables.steps.sort("rank", "start")
    assert by_rank["number"].to_list() == [2, 3, 7, 8] * 2
    starts = by_rank["start"].to_list()
    assert starts == [0, 100_000, 220_000, 320_000, 20_000, 120_000, 240_000, 340_000]
    assert all(begin < end for begin, end in pairwise(starts[:4]))


def test_recordings_of_one_process_at_one_time_are_of_two_runs(tmp_path: Path) -> None:
    window(tmp_path, 2, after_s=0)
    window(tmp_path, 7, after_s=100e-6)
    with pytest.raises(UsageError, match="of one process at the same time: pass one of them"):
        traceana.open(tmp_path)


def test_memory_of_an_earlier_window_is_not_live_at_a_later_peak(tmp_path: Path) -> None:
    window(tmp_path, 2, after_s=0, memory_bytes=100)
    window(tmp_path, 7, after_s=3, memory_bytes=150)
    at_peak = memory(traceana.open(tmp_path), by="layer").frame
    assert at_peak.select("layer", "bytes").rows() == [("relu_0", 150)]


def test_a_bundle_stands_for_the_windows_beside_it(tmp_path: Path) -> None:
    for i in range(2):
        window(tmp_path, 2 + 5 * i, after_s=3 * i)
    traceana.open(tmp_path).save(tmp_path / "all.traceana")
    assert numbers(traceana.open(tmp_path)) == [2, 3, 7, 8]


def test_a_process_group_is_one_in_all_windows(tmp_path: Path) -> None:
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    for after_s in (0, 3):
        begun = BASE + after_s * SECOND
        write(
            tmp_path / f"host_100.{begun}.pt.trace.json",
            [kernel("ncclDevKernel_AllReduce(x)", 1, 1, **group)],
            baseTimeNanoseconds=begun,
        )
    tables = traceana.open(tmp_path).tables
    assert tables.process_groups["name"].to_list() == ["0"]
    assert tables.activities["process_group"].to_list() == [0, 0]


def test_info_names_the_windows(tmp_path: Path, run: Run) -> None:
    files = [window(tmp_path, 2 + 5 * i, after_s=3 * i) for i in range(2)]
    text = run("info", str(tmp_path)).stdout
    assert "one after the other: the time between them is left out" in " ".join(text.split())
    assert all(file.name in "".join(text.split()) for file in files)


_TRAINING = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=3),
    on_trace_ready=tensorboard_trace_handler(sys.argv[1]),
    record_shapes=True, profile_memory=True,
) as profiler:
    for _ in range(15):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        profiler.step()
"""


@pytest.mark.frameworks
def test_the_folder_of_torchs_tutorial_is_one_run(tmp_path: Path) -> None:
    import subprocess
    import sys

    needs("torch")
    subprocess.run([sys.executable, "-c", _TRAINING, str(tmp_path)], check=True, timeout=300)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    trace = traceana.open(tmp_path)
    assert numbers(trace) == [2, 3, 4, 7, 8, 9, 12, 13, 14]
    singles = [traceana.open(file) for file in files]
    for table in ("ops", "memory", "activities"):
        assert trace.tables[table].height == sum(single.tables[table].height for single in singles)
    # The steps take the time that they take in the files.
    durations = [duration for single in singles for duration in single.tables.steps["duration"]]
    assert trace.tables.steps.sort("start")["duration"].to_list() == durations
    assert {*trace.tables.layers["path"]} == {*singles[0].tables.layers["path"]}


def test_ranks_of_a_folder_have_all_their_windows(tmp_path: Path, run: Run) -> None:
    for process in (100, 101):
        for i in range(3):
            window(tmp_path, 2 + 5 * i, after_s=3 * i, process=process)
    shown = run("ranks", tmp_path, "--keep", tmp_path / "kept", "--format", "json")
    assert shown.exit_code == 0, shown.stderr
    rows = json.loads(shown.stdout)["rows"]
    assert [(row["rank"], row["steps"]) for row in rows] == [(0, 6), (1, 6)]
