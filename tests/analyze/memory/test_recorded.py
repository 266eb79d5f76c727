"""Memory of recorded runs, against the files' own events."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.command_line import run
from tests.support.forked import script, with_torch
from tests.support.frameworks import needs
from tests.support.opened import opened
from traceana.analyze.memory import memory
from traceana.errors import ExitCode
from traceana.report.cells import BAR_WIDTH

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "traces" / "kineto"
RECORDED = [
    path
    for name in ("many_kernels_a100", "timesformer_h100", "timesformer_mi300x")
    if (path := SHARED / f"{name}.json.gz").exists()
]
CPU = -1


def events(path: Path) -> list[dict[str, Any]]:
    """Return the arguments of the file's events of memory, in order of their times."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = [row for row in json.loads(text)["traceEvents"] if row.get("name") == "[memory]"]
    return [row["args"] for row in sorted(rows, key=lambda row: float(row["ts"]))]


def device(found: dict[str, Any]) -> int:
    return CPU if found["Device Type"] == 0 else int(found["Device Id"])


def assert_as_in_the_file(path: Path) -> None:
    most: dict[int, int] = defaultdict(int)
    count: dict[int, int] = defaultdict(int)
    for found in events(path):
        most[device(found)] = max(most[device(found)], found["Total Allocated"])
        count[device(found)] += found["Bytes"] > 0
    assert most
    trace = opened(path)
    frame = memory(trace).frame
    assert dict(frame.select("device", "peak_bytes").rows()) == most
    assert dict(frame.select("device", "allocations").rows()) == count
    for held in (memory(trace, "layer").frame, memory(trace, "operator").frame):
        summed = held.group_by("device").agg(pl.col("bytes").sum())
        assert dict(summed.rows()) == most


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_recorded_by_others(path: Path) -> None:
    assert_as_in_the_file(path)


TRAINING = """
import sys
import torch
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 196, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU],
    profile_memory=True,
    record_shapes=True,
    schedule=schedule(wait=0, warmup=1, active=3, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(sys.argv[1]),
) as profiler:
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        profiler.step()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three steps of a small network's training on the CPU.

    In a process of its own, as users record: the profiler stays in the process that it was in.
    """
    needs("torch")
    path = tmp_path_factory.mktemp("trained") / "run.json"
    with_torch(path.with_name("log"), script, TRAINING, str(path))
    return path


def test_a_training_run_of_our_own(trained: Path) -> None:
    assert_as_in_the_file(trained)


def test_its_holders_account_for_the_peak(trained: Path) -> None:
    """The live allocations, replayed address by address from the file."""
    live: dict[int, int] = {}
    most, at_most, now = -1, {}, 0
    for found in events(trained):
        if found["Bytes"] > 0:
            live[found["Addr"]] = found["Bytes"]
        else:
            live.pop(found["Addr"], None)
        now = found["Total Allocated"]
        if now > most:
            most, at_most = now, dict(live)
    held = memory(traceana.open(trained), "operator")
    known = held.frame.filter(held.frame["operator"] != "(allocated before capture)")
    assert known["bytes"].sum() == sum(at_most.values())
    assert known["count"].sum() == len(at_most)
    assert held.totals["bytes"] == most
    assert known["largest_bytes"].max() == max(at_most.values())


def test_the_command(trained: Path, tmp_path: Path) -> None:
    for by in ("device", "layer", "operator", "step", "time", "convolution"):
        result = run("memory", trained, "--by", by, "-f", "json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["meta"]["command"] == "memory"
    chart = run("memory", trained, "--by", "time").stdout
    assert max(line.count("█") for line in chart.splitlines()) == BAR_WIDTH
    assert sum(line.startswith("   cpu") for line in chart.splitlines()) == 40
    without = tmp_path / "without.json"
    whole = json.loads(trained.read_text())
    whole["traceEvents"] = [row for row in whole["traceEvents"] if row.get("name") != "[memory]"]
    without.write_text(json.dumps(whole))
    result = run("memory", without)
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert "profile_memory=True" in result.stdout
    assert "nothing to show" in result.stderr
    assert result.stderr.count("\n") == 1
