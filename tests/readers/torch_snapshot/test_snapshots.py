"""Snapshots of built allocators, whose every figure is known, and PyTorch's own sums of them."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traceana
from tests.support.allocator import BEGIN_US, Allocator, frame, rounded
from tests.support.command_line import run
from traceana.analyze.memory import EARLIER, NO_HISTORY, memory
from traceana.errors import (
    CorruptError,
    ExitCode,
    NoSuchSelectionError,
    NotATraceError,
    UnknownFormatError,
    UsageError,
)
from traceana.readers import read
from traceana.trace import Trace

TRAIN = [
    frame("??", 0, "at::native::empty_cuda"),
    frame("/opt/pytorch/aten/src/ATen/Context.cpp", 12),
    frame("/usr/lib/python3.11/site-packages/torch/nn/modules/conv.py", 458, "_conv_forward"),
    frame("/home/me/model.py", 7, "forward"),
    frame("/home/me/train.py", 30, "<module>"),
]
OTHER = [frame("/home/me/train.py", 12, "batches")]


def written(content: Any, tmp_path: Path, name: str = "snapshot.pickle") -> Path:
    path = tmp_path / name
    path.write_bytes(pickle.dumps(content))
    return path


def opened(allocator: Allocator, tmp_path: Path, name: str = "snapshot.pickle") -> Trace:
    return traceana.open(written(allocator.snapshot(), tmp_path, name))


def by(trace: Trace, what: Any, *columns: str) -> list[tuple[Any, ...]]:
    return memory(trace, what).frame.select(columns).rows()


def test_peak_and_contents(tmp_path: Path) -> None:
    allocator = Allocator()
    weights = allocator.allocate(1000, OTHER)
    first = allocator.allocate(5000, TRAIN)
    second = allocator.allocate(3000, TRAIN)
    allocator.free(first)
    allocator.free(second)
    allocator.allocate(400, OTHER)
    allocator.fail(1 << 30, 12345, TRAIN)
    trace = opened(allocator, tmp_path)

    (row,) = memory(trace).frame.to_dicts()
    assert (row["peak_bytes"], row["at_ns"], row["end_bytes"]) == (9000, 50_000, 1400)
    assert (row["allocations"], row["largest_bytes"]) == (4, 5000)
    assert (row["line"], row["layer"]) == ("/home/me/model.py:7", None)
    assert trace.meta.epoch_ns == (BEGIN_US + 10) * 1000
    # The library's frame is the program's line that calls it, and C++ has none.
    assert by(trace, "line", "line", "count", "bytes") == [
        ("/home/me/model.py:7", 2, 8000),
        ("/home/me/train.py:12", 1, 1000),
    ]
    assert by(trace, "stack", "stack")[0] == ("/home/me/train.py:30 > /home/me/model.py:7",)
    notes = memory(trace).notes
    assert notes[-1] == (
        "out of memory on device 0 at 0.000140 s: 1,073,741,824 bytes requested, 12,345 free on "
        "the device; /home/me/model.py:7"
    )
    assert weights in trace.tables.memory_blocks["address"]


def test_pools(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.allocate(1000, OTHER)
    allocator.free(allocator.allocate(3 << 20, TRAIN), at_once=False)
    content = allocator.snapshot()
    # One segment of a private pool, all free.
    content["segments"].append(
        {
            **{"device": 0, "address": 1 << 40, "total_size": 1 << 21, "stream": 7, "blocks": []},
            **{"segment_type": "small", "segment_pool_id": (0, 3), "is_expandable": False},
            "blocks": [{"size": 1 << 21, "state": "inactive", "requested_size": 5, "frames": []}],
        }
    )
    trace = traceana.open(written(content, tmp_path))
    rows = {
        (row["pool"], row["segment_type"]): row for row in memory(trace, "pool").frame.to_dicts()
    }
    small, large, private = rows["0.0", "small"], rows["0.0", "large"], rows["0.3", "small"]
    assert (small["reserved_bytes"], small["allocated_bytes"]) == (1 << 21, rounded(1000))
    assert (small["requested_bytes"], small["pending_bytes"]) == (1000, 0)
    assert small["inactive_split_bytes"] == small["inactive_bytes"] == (1 << 21) - rounded(1000)
    assert (large["allocated_bytes"], large["pending_bytes"]) == (0, 3 << 20)
    assert large["largest_free_bytes"] == large["reserved_bytes"] - (3 << 20)
    # empty_cache() returns a segment that is free as a whole.
    assert (private["inactive_bytes"], private["inactive_split_bytes"]) == (1 << 21, 0)
    assert (private["stream"], private["requested_bytes"]) == (7, 0)
    assert (rows["0.0", "small"]["segments"], large["segments"]) == (1, 1)


@pytest.fixture(scope="module")
def viz() -> ModuleType:
    """PyTorch's own program for snapshots, without PyTorch."""
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        pytest.skip("PyTorch is not installed")
    path = Path(torch.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "free", "late free", "complete"]),
        st.integers(1, 5 << 20),
        st.integers(0, 2),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=60,
)
STACKS = [TRAIN, OTHER, []]


def worked(steps: list[tuple[str, int, int, int]], most_events: int | None) -> Allocator:
    """Return an allocator after ``steps``: action, size or choice, stack, device."""
    allocator = Allocator(devices=2, most_events=most_events)
    for action, number, stack, device in steps:
        live, pending = list(allocator.live), list(allocator.pending)
        if action == "alloc" or not live:
            # Addresses are used again.
            used = {*live, *pending}
            free = [at for at in range(1 << 30, (1 << 30) + (8 << 23), 1 << 23) if at not in used]
            allocator.allocate(number, STACKS[stack], device, free[0] if free else None)
        elif action == "complete" and pending:
            allocator.complete(pending[number % len(pending)])
        else:
            allocator.free(live[number % len(live)], at_once=action == "free")
    return allocator


@given(STEPS, st.none() | st.integers(1, 40), st.integers(2, 5))
def test_any_history(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int, int]],
    most_events: int | None,
    protocol: int,
) -> None:
    """Whenever the ring buffer begins, totals are exact after each of its events."""
    allocator = worked(steps, most_events)
    path = tmp_path_factory.mktemp("history") / "snapshot.pickle"
    trace = traceana.open(allocator.dump(path, protocol))
    tables = trace.tables
    assert not tables.ledger.filter(pl.col("severity") == "problem").height
    excluded = tables.ledger.filter(~pl.col("kept"))["count"].sum()
    assert trace.meta.events == tables.memory.height + tables.memory_blocks.height + excluded
    changing = ("alloc", "free_requested")
    for device, history in enumerate(allocator.traces):
        # Other actions do not change what is allocated.
        expected = [
            total
            for event, total in zip(history, allocator.peaks[device], strict=True)
            if event["action"] in changing
        ]
        rows = tables.memory.filter(pl.col("bytes").is_not_null(), pl.col("device") == device)
        assert rows["allocated"].to_list() == expected
        if not expected:
            continue
        of_device = pl.col("device") == device
        (row,) = memory(trace).frame.filter(of_device).to_dicts()
        assert (row["peak_bytes"], row["end_bytes"]) == (max(expected), allocator.requested(device))
        for what in ("line", "stack"):
            assert memory(trace, what).frame.filter(of_device)["bytes"].sum() == max(expected)


@given(STEPS)
def test_sums_are_those_of_pytorch(
    viz: ModuleType, tmp_path_factory: pytest.TempPathFactory, steps: Any
) -> None:
    allocator = worked(steps, None)
    path = allocator.dump(tmp_path_factory.mktemp("viz") / "snapshot.pickle")
    content = allocator.snapshot()
    trace = read(path, lambda done, total: None)
    blocks = trace.tables.memory_blocks
    printed = viz.segsum(content)
    assert f"segments: {blocks['segment'].n_unique()}\n" in printed
    assert f"total_reserved: {viz.Bytes(blocks['bytes'].sum())}\n" in printed
    assert f"total_allocated: {viz.Bytes(blocks['requested_bytes'].sum())}\n" in printed
    for segment in content["segments"]:
        of_segment = blocks.filter(pl.col("segment") == segment["address"])
        active = of_segment.filter(pl.col("state") == "active_allocated")
        assert active["bytes"].sum() == viz.calc_active(segment) == segment["allocated_size"]
        assert of_segment["bytes"].sum() == segment["total_size"]
        assert of_segment["address"].to_list() == [block["address"] for block in segment["blocks"]]
    # The lines of its flame graph: bytes by stream, state and stack.
    flames = viz.memory(content, format_flamegraph=str)
    live = [line for line in flames.splitlines() if ";active_allocated;" in line]
    bytes_of_stacks = [int(line.rsplit(" ", 1)[1]) for line in live if "<gaps>" not in line]
    assert sum(bytes_of_stacks) == blocks["requested_bytes"].sum()


def test_what_the_snapshot_still_holds_has_its_line(tmp_path: Path) -> None:
    """Memory from before the ring buffer: live at the end, or freed within the history."""
    allocator = Allocator(most_events=4)
    kept = allocator.allocate(1000, OTHER)
    gone = allocator.allocate(2000, TRAIN)
    allocator.allocate(4000, TRAIN)
    allocator.free(gone)
    assert [event["action"] for event in allocator.traces[0]] == [
        *("alloc", "free_requested", "free_completed", "segment_free")
    ]
    trace = opened(allocator, tmp_path)
    assert by(trace, "line", "line", "bytes") == [
        ("/home/me/model.py:7", 4000),
        (EARLIER, 2000),
        ("/home/me/train.py:12", 1000),
    ]
    assert kept


def test_a_snapshot_without_history(tmp_path: Path) -> None:
    allocator = Allocator(devices=2)
    allocator.allocate(1000, OTHER, device=1)
    allocator.allocate(3000, TRAIN)
    for content in (
        {**allocator.snapshot(), "device_traces": [[], []]},
        {"segments": allocator.snapshot()["segments"]},
        # torch.cuda.memory_snapshot()
        allocator.snapshot()["segments"],
    ):
        trace = traceana.open(written(content, tmp_path))
        result = memory(trace)
        assert NO_HISTORY in result.notes
        assert result.frame["peak_bytes"].to_list() == [None, None]
        assert result.frame["end_bytes"].to_list() == [3000, 1000]
        assert by(trace, "line", "device", "line", "bytes", "share") == [
            (0, "/home/me/model.py:7", 3000, 1.0),
            (1, "/home/me/train.py:12", 1000, 1.0),
        ]
        assert run("memory", trace.meta.source, "--by", "pool").exit_code == ExitCode.OK


def test_snapshots_of_old_versions(tmp_path: Path) -> None:
    """PyTorch 1.13 and 2.0: blocks with a history, events without a time, no stacks of blocks."""
    segment = {
        **{"device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small"},
        "blocks": [
            {
                **{"size": 1024, "state": "active_allocated"},
                "history": [{"addr": 4096, "real_size": 900, "frames": OTHER}],
            },
            {"size": 512, "state": "active_allocated"},
            {"size": 512, "state": "inactive"},
        ],
    }
    history = [
        {"action": "alloc", "addr": 4096, "size": 900, "stream": 0, "frames": OTHER},
        {"action": "alloc", "addr": 5120, "size": 512, "stream": 0},
        {"action": "snapshot", "addr": 0, "size": 1412, "stream": 0},
    ]
    trace = traceana.open(written({"segments": [segment], "device_traces": [history]}, tmp_path))
    blocks = trace.tables.memory_blocks
    assert blocks["address"].to_list() == [4096, 5120, 5632]
    assert blocks["requested_bytes"].to_list() == [900, 512, None]
    ledger = {row["reason"]: row["count"] for row in trace.tables.ledger.to_dicts()}
    assert ledger == {"instant": 1, "untimed": 2}
    assert trace.meta.epoch_ns is None
    assert memory(trace).frame["peak_bytes"].to_list() == [1412]


def test_frees_where_programs_leave_out_the_request(tmp_path: Path) -> None:
    # _record_memory_history(skip_actions=["free_requested"])
    allocator = Allocator()
    allocator.free(allocator.allocate(1000, OTHER))
    allocator.allocate(400, OTHER)
    allocator.traces[0] = [
        event for event in allocator.traces[0] if event["action"] != "free_requested"
    ]
    assert memory(opened(allocator, tmp_path)).frame["peak_bytes"].to_list() == [1000]


def test_a_history_that_the_blocks_contradict(tmp_path: Path) -> None:
    allocator = Allocator()
    lost = allocator.allocate(1000, OTHER)
    allocator.allocate(400, OTHER)
    del allocator.live[lost]
    trace = opened(allocator, tmp_path)
    ledger = trace.tables.ledger.filter(reason="other_end")
    assert ledger.select("severity", "count").rows() == [("problem", 1)]
    # The total before the history would be negative: figures count from its begin.
    assert memory(trace).frame["peak_bytes"].to_list() == [1400]


def test_shared_lists_are_damage(tmp_path: Path) -> None:
    """A file of a few bytes could stand for any number of blocks or events."""
    allocator = Allocator()
    allocator.allocate(1000, OTHER)
    content = allocator.snapshot()
    for damaged in (
        {**content, "segments": content["segments"] * 1000},
        {**content, "device_traces": content["device_traces"] * 1000},
    ):
        with pytest.raises(CorruptError, match="several times"):
            traceana.open(written(damaged, tmp_path))


def test_other_pickles_are_refused(tmp_path: Path) -> None:
    for content in (
        {"data": [1, 2], "labels": [0]},
        [1, 2],
        "text",
        {"segments": 3},
        {"segments": [1]},
    ):
        with pytest.raises((NotATraceError, UnknownFormatError), match="memory s"):
            traceana.open(written(content, tmp_path))
    result = run("info", written({"data": 1}, tmp_path))
    assert result.exit_code == ExitCode.UNRECOGNIZED_FORMAT
    assert "a pickle, but not a memory snapshot of PyTorch" in result.stderr


def test_hostile_texts(tmp_path: Path) -> None:
    stack = [
        frame("/home/me/a;b.py", 3, "x\ny(9): z"),
        frame("/home/me/" + "a" * 100_000 + ".py", 4, "f" * 100_000),
        frame("/home/me/\x1b[31m.py", 5, "\udcff"),
        {"filename": 3, "line": "x", "name": None},
        7,
    ]
    allocator = Allocator()
    allocator.allocate(1000, stack)
    allocator.allocate(1000, [frame("/home/me/\ud800.py", 1)])
    trace = opened(allocator, tmp_path)
    stacks = trace.tables.memory["frames"].drop_nulls().cast(pl.String)
    assert len(stacks) == 2 and all(len(stack) < 5000 for stack in stacks)
    for what in ("line", "stack"):
        result = run("memory", trace.meta.source, "--by", what)
        assert result.exit_code == ExitCode.OK
        assert "\x1b" not in result.stdout


def test_gzip_and_bundles(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(1000, TRAIN))
    allocator.allocate(600, OTHER)
    path = written(allocator.snapshot(), tmp_path)
    packed = tmp_path / "snapshot.pickle.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    whole = traceana.open(path)
    bundle = tmp_path / "bundle"
    assert run("save", path, "-o", bundle).exit_code == ExitCode.OK
    for other in (traceana.open(packed), traceana.open(bundle)):
        for name, table in whole.tables.items():
            assert table.equals(other.tables[name]), name


@pytest.mark.parametrize(
    "command", ["report", "kernels", "layers", "idle", "lines", "transfers", "advise", "whatif"]
)
def test_commands_that_need_a_timeline_say_so(tmp_path: Path, command: str) -> None:
    allocator = Allocator()
    allocator.allocate(1000, TRAIN)
    result = run(command, allocator.dump(tmp_path / "snapshot.pickle"))
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert re.search(r"is a memory snapshot without a timeline.*traceana memory", result.stderr)
    assert result.stderr.count("\n") == 1


def test_growth_between_two(tmp_path: Path) -> None:
    a, b = Allocator(), Allocator()
    for allocator, count in ((a, 1), (b, 3)):
        allocator.allocate(500, OTHER)
        for _ in range(count):
            allocator.allocate(2000, TRAIN)
    a.allocate(100, [frame("/home/me/gone.py", 1)])
    first, second = opened(a, tmp_path, "a.pickle"), opened(b, tmp_path, "b.pickle")
    result = traceana.diff(first, second)
    assert result.frame.drop("rank").rows() == [
        (0, "/home/me/model.py:7", 1, 3, 2000, 6000, 4000),
        (0, "/home/me/gone.py:1", 1, 0, 100, 0, -100),
        (0, "/home/me/train.py:12", 1, 1, 500, 500, 0),
    ]
    assert result.totals["growth_bytes"] == 3900
    mirrored = traceana.diff(second, first).frame
    assert mirrored["growth_bytes"].sum() == -3900
    shown = run("diff", first.meta.source, second.meta.source, "--by", "line")
    assert shown.exit_code == ExitCode.OK and "model.py" in shown.stdout

    with pytest.raises(UsageError, match="by line"):
        traceana.diff(first, second, by="kernel")
    with pytest.raises(NoSuchSelectionError, match="without a timeline"):
        traceana.diff(first, Path("fixtures/alexnet-cpu-stack.json.gz"))
    gate = run("diff", first.meta.source, second.meta.source, "--fail-if-slower", "3%")
    assert gate.exit_code == ExitCode.USAGE


def test_snapshots_in_folders(tmp_path: Path) -> None:
    """A folder's trace is read, not what is beside it; snapshots alone are listed."""
    allocator = Allocator()
    allocator.allocate(1000, TRAIN)
    allocator.dump(tmp_path / "snapshot.pickle")
    allocator.dump(tmp_path / "rank1_memory_snapshot.pkl")
    with pytest.raises(UnknownFormatError, match=r"memory snapshots: pass one.*snapshot\.p"):
        traceana.open(tmp_path)
    written({"data": 1}, tmp_path, "other_snapshot.pickle")
    shutil.copy("fixtures/alexnet-cpu-stack.json.gz", tmp_path / "trace.json.gz")
    trace = traceana.open(tmp_path)
    assert trace.meta.format == "kineto"
    assert trace.tables.memory_blocks.is_empty()


def test_ranks(tmp_path: Path) -> None:
    files = []
    for rank, size in enumerate((1000, 3000)):
        allocator = Allocator()
        allocator.allocate(size, TRAIN)
        files.append(allocator.dump(tmp_path / f"rank{rank}_snapshot.pickle"))
    trace = traceana.open(files)
    assert memory(trace).frame.select("rank", "peak_bytes").rows() == [(0, 1000), (1, 3000)]
    assert by(trace, "line", "rank", "line", "bytes") == [
        (0, "/home/me/model.py:7", 1000),
        (1, "/home/me/model.py:7", 3000),
    ]
