"""Communication of steps whose times and sizes are known in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.ingest.kineto.writing import Event, annotation, call, kernel, op, write
from tests.support.manifest import TRACES
from tests.support.traces import TraceBuilder
from traceana.analyze.communication import communication
from traceana.trace import Trace

ALL_REDUCE = {"category": "collective", "function": "all_reduce"}


def figures(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return communication(trace).frame.select(columns).rows()


def test_overlapping_collectives_count_once_and_what_kernels_hide_is_not_exposed() -> None:
    b = TraceBuilder(rank=0, world_size=4)
    b.name("reduce", **ALL_REDUCE)
    b.step(1, 0, 1000)
    b.step(2, 1000, 1000)
    b.kernel("reduce", 100, 300, stream=2, step=0, bytes=400)
    b.kernel("reduce", 300, 300, stream=3, step=0, bytes=600)  # until 600
    b.kernel("gemm", 0, 250, stream=1, step=0)  # hides 150
    b.kernel("gemm", 550, 100, stream=1, step=0)  # hides 50
    b.kernel("gemm", 1000, 500, stream=1, step=1)
    result = communication(b.build())
    columns = ("step", "rank", "collectives", "communication_ns", "exposed_ns", "exposed_share")
    assert result.frame.select(columns).rows() == [(1, 0, 2, 500, 300, 0.3), (2, 0, 0, 0, 0, 0.0)]
    assert result.frame.select("bytes", "reduced_bytes").rows() == [(1000, 1000), (0, 0)]
    assert result.totals == {
        "ranks": 4, "collectives": 2, "communication_ns": 500, "exposed_ns": 300,
    }  # fmt: skip


def test_a_collective_counts_in_the_step_that_launched_it_wherever_it_runs() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    b.step(1, 0, 1000)
    b.step(2, 1000, 1000)
    b.kernel("reduce", 900, 400, stream=2, step=0)
    b.kernel("gemm", 1000, 100, stream=1, step=1)
    assert figures(b.build(), "communication_ns", "exposed_ns") == [(400, 300), (0, 0)]


def test_ranks_are_apart_although_their_devices_have_the_same_number() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    for rank in (0, 1):
        b.step(1, 0, 1000, rank=rank, process=rank)
        b.kernel("reduce", 100, 200 + 100 * rank, rank=rank, step=rank, stream=2)
    b.kernel("gemm", 150, 1000, rank=0, step=0, stream=1)
    result = communication(b.build())
    assert result.frame.select("rank", "communication_ns", "exposed_ns").rows() == [
        (0, 200, 50),
        (1, 300, 300),
    ]
    assert result.totals["ranks"] == 2


def test_only_reductions_are_reduced_bytes_and_one_unknown_size_makes_the_sum_unknown() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    b.name("broadcast", category="collective", function="broadcast")
    b.name("generic", category="collective")
    for number in range(3):
        b.step(number, 1000 * number, 1000)
        b.kernel("reduce", 1000 * number, 10, step=number, bytes=80)
    b.kernel("broadcast", 20, 10, step=0, bytes=7)
    b.kernel("broadcast", 1020, 10, step=1)
    b.kernel("generic", 2020, 10, step=2, bytes=1)
    assert figures(b.build(), "bytes", "reduced_bytes") == [(87, 80), (None, 80), (81, None)]


@pytest.mark.parametrize(
    ("kind", "elements", "size"),
    [("Float", 1000, 4000), ("BFloat16", 1000, 2000), ("Long", 3, 24), ("Unheard", 5, None)],
)
def test_the_message_of_an_nccl_kernel(
    tmp_path: Path, kind: str, elements: int, size: int | None
) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    message = {"In msg nelems": elements, "dtype": kind, "correlation": 5}
    events = [
        annotation("ProfilerStep#1", 1, 99),
        call("cudaLaunchKernelExC", 5, 2, correlation=5),
        kernel(name, 20, 30, **message),
    ]
    trace = traceana.open(write(tmp_path / "t.json", events))
    assert figures(trace, "step", "communication_ns", "reduced_bytes") == [(1, 30_000, size)]


def gloo(ts: int, dur: int, dims: list[list[int]], types: list[str], tid: int = 9) -> Event:
    args = {"Input Dims": dims, "Input type": types}
    return annotation("gloo:all_reduce", ts, dur, tid) | {"args": args}


def test_a_collective_of_the_host_is_its_operator_and_what_the_backends_thread_does(
    tmp_path: Path,
) -> None:
    shapes: dict[str, Any] = {
        "Input Dims": [[[10, 5]], [], []],
        "Input type": ["TensorList", "", "Scalar"],
    }
    events = [
        annotation("ProfilerStep#1", 1, 99),
        op("aten::mm", 10, 30),
        op("c10d::allreduce_", 40, 5, **shapes),  # asks for it; its list has no type
        gloo(42, 40, [[10, 5], [3]], ["float", "double"]),
        op("aten::add", 60, 10),  # hides 10 of 42 us
        annotation("ProfilerStep#2", 100, 100),
        op("aten::mm", 110, 30),
    ]
    path = write(
        tmp_path / "t.json", events, distributedInfo={"rank": 1, "world_size": 2, "backend": "gloo"}
    )
    trace = traceana.open(path)
    columns = ("step", "rank", "collectives", "communication_ns", "exposed_ns", "reduced_bytes")
    assert figures(trace, *columns) == [(1, 1, 2, 42_000, 32_000, 224), (2, 1, 0, 0, 0, 0)]
    row = trace.activities.filter(trace.activities["stream"] == 9)
    assert trace.layers["role"].gather(row["layer"]).to_list() == ["collective"]
    assert row["direction"].to_list() == [None]
    assert trace.ranges.filter(trace.ranges["thread"] == 9).is_empty()


def test_sizes_that_are_not_recorded_are_not_guessed(tmp_path: Path) -> None:
    unshaped = [gloo(10, 5, [[4]], ["TensorList"]), gloo(20, 5, [[4], [5]], ["float"])]
    for number, event in enumerate([*unshaped, annotation("gloo:all_reduce", 30, 5, 9)]):
        events = [annotation("ProfilerStep#1", 1, 99), op("aten::mm", 1, 3), event]
        trace = traceana.open(write(tmp_path / f"{number}.json", events))
        assert figures(trace, "collectives", "bytes", "reduced_bytes") == [(1, None, None)]


def test_an_empty_result_says_why() -> None:
    b = TraceBuilder()
    b.kernel("gemm", 0, 10)
    assert communication(b.build()).notes[-1] == "no steps: the trace marks no iterations"
    b.step(1, 0, 100)
    assert communication(b.build()).notes[-1] == "no communication: no collective ran in a step"
    assert communication(TraceBuilder().build()).notes[-1].startswith("the file holds no device")


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_resnet50_of_two_gpus_reduces_four_bytes_a_parameter() -> None:
    trace = traceana.open(TRACES / "kineto" / "cnn_train_nccl_a100.json.gz")
    frame = communication(trace).frame
    assert frame["reduced_bytes"].to_list() == [4 * 25_557_032] * 3
    assert (frame["exposed_ns"] < frame["communication_ns"]).all()
