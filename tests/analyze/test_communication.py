"""Communication of steps whose times and sizes are known in closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.readers.kineto.writing import Event, annotation, call, kernel, op, write
from tests.support.manifest import TRACES
from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.collective_ranks import by_rank
from traceana.analyze.communication import by_message, communication
from traceana.report.page import Table
from traceana.report.pages.transfers import all_collectives
from traceana.report.terminal import Terminal, render
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


def test_time_is_of_the_windows_of_the_steps_and_counts_of_what_they_launched() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    b.step(1, 0, 1000)
    b.step(2, 1000, 1000)
    b.kernel("reduce", 900, 400, stream=2, step=0)
    b.kernel("gemm", 1000, 100, stream=1, step=1)
    # The first step ends with its collective.
    columns = ("collectives", "communication_ns", "exposed_ns", "exposed_share")
    assert figures(b.build(), *columns) == [
        (1, 400, 300, 300 / 1300), (0, 0, 0, 0.0),
    ]  # fmt: skip


def test_a_share_of_a_step_is_at_most_1_where_the_host_runs_ahead() -> None:
    """Steps of 100 ns on the host launch collectives of 1000 ns, on two devices."""
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    for number in range(10):
        b.step(number, 100 * number, 100)
        for device in (0, 1):
            b.kernel("reduce", 1000 * number, 1000, step=number, device=device, stream=2)
    assert figures(b.build(), "communication_ns", "exposed_share") == [(2000, 1.0)] * 10


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


def test_bandwidths_are_those_of_nccls_tests() -> None:
    """Eight ranks, 1 MB each in 1 ms: 1 GB/s, of an all-gather 8 MB in 1 ms."""
    b = TraceBuilder(world_size=8)
    factors = {
        "all_reduce": 2 * 7 / 8,
        "reduce_scatter": 7 / 8,
        "all_gather": 8 * 7 / 8,
        "all_to_all": 7 / 8,
        "broadcast": 1,
        "reduce": 1,
        "send_recv": 1,
    }
    for at, function in enumerate(factors):
        b.name(function, category="collective", function=function)
        for again in range(2):
            start = 4_000_000 * at + 2_000_000 * again
            b.kernel(function, start, 1_000_000, stream=2, bytes=1_000_000)
    b.kernel("gemm", 500_000, 1_000_000, stream=1)  # hides half of the first all-reduce
    result = by_message(b.build())
    rows = {row["collective"]: row for row in result.frame.to_dicts()}
    assert {name: row["busbw_bytes_per_s"] for name, row in rows.items()} == {
        name: pytest.approx(1e9 * factor) for name, factor in factors.items()
    }
    assert rows["all_gather"]["message_bytes"] == 8_000_000
    assert rows["all_gather"]["bytes"] == 2_000_000
    assert rows["all_reduce"]["algbw_bytes_per_s"] == pytest.approx(1e9)
    assert rows["all_reduce"]["exposed_ns"] == 1_500_000
    assert sum(row["time_ns"] for row in rows.values()) == result.totals["time_ns"] == 14_000_000


def test_the_group_of_a_kernel_is_null_where_not_recorded(tmp_path: Path) -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    own = {
        "Collective name": "all_to_all", "In msg nelems": 1000, "Out msg nelems": 1000,
        "dtype": "Float", "Group size": 4,
    }  # fmt: skip
    for args, ranks, bus in ((own, 4, 100e6 * 3 / 4), ({**own, "Group size": None}, None, None)):
        events = [
            call("cudaLaunchKernelExC", 5, 2, correlation=5),
            kernel(name, 20, 40, correlation=5, **args),
        ]
        path = write(tmp_path / f"{ranks}.json", events)
        (row,) = by_message(traceana.open(path)).frame.to_dicts()
        assert (row["collective"], row["message_bytes"], row["ranks"]) == (
            "all_to_all",
            4000,
            ranks,
        )
        assert row["algbw_bytes_per_s"] == pytest.approx(100e6)
        assert row["busbw_bytes_per_s"] == (None if bus is None else pytest.approx(bus))


def test_sizes_are_the_operators_where_the_kernel_has_none(tmp_path: Path) -> None:
    """PyTorch before 2.1: the annotation around the launch, or the operator, has the tensor."""
    reduce = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
    gather = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
    listed: dict[str, Any] = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"]}
    tensor = {"Input Dims": [[25, 10]], "Input type": ["float"]}
    both: dict[str, Any] = {
        "Input Dims": [[400], [100], []],
        "Input type": ["c10::Half", "c10::Half", ""],
    }
    events = [
        op("c10d::allreduce_", 10, 40, **listed),
        op("record_param_comms", 12, 36, **listed),
        annotation("nccl:all_reduce", 14, 30) | {"args": tensor},
        call("cudaLaunchKernel", 20, 2, correlation=5),
        kernel(reduce, 30, 10, correlation=5),
        op("c10d::_allgather_base_", 60, 20, **both),
        call("cudaLaunchKernel", 65, 2, correlation=6),
        kernel(gather, 70, 20, correlation=6),
    ]
    path = write(
        tmp_path / "t.json", events, distributedInfo={"rank": 0, "world_size": 8, "backend": "nccl"}
    )
    frame = by_message(traceana.open(path)).frame
    columns = ("collective", "message_bytes", "bytes", "ranks")
    # The all-gather is of four of eight ranks: the group size of the all-reduce is unknown.
    assert frame.select(columns).rows() == [
        ("all_gather", 800, 200, 4),
        ("all_reduce", 1000, 1000, None),
    ]


def test_kernels_of_one_launch_share_its_message_in_unknown_parts(tmp_path: Path) -> None:
    name = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
    tensor = {"Input Dims": [[25]], "Input type": ["float"]}
    events = [annotation("nccl:all_reduce", 10, 30) | {"args": tensor}]
    for number in (5, 6):
        events.append(call("cudaLaunchKernel", 4 * number, 2, correlation=number))
        events.append(kernel(name, 20 * number, 10, correlation=number))
    frame = by_message(traceana.open(write(tmp_path / "t.json", events))).frame
    assert frame.select("count", "message_bytes").rows() == [(2, None)]


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
    row = trace.tables.activities.filter(trace.tables.activities["stream"] == 9)
    assert trace.tables.layers["role"].gather(row["layer"]).to_list() == ["collective"]
    assert row["direction"].to_list() == [None]
    assert trace.tables.ranges.filter(trace.tables.ranges["thread"] == 9).is_empty()


def test_sizes_that_are_not_recorded_are_not_guessed(tmp_path: Path) -> None:
    unshaped = [gloo(10, 5, [[4]], ["TensorList"]), gloo(20, 5, [[4], [5]], ["float"])]
    for number, event in enumerate([*unshaped, annotation("gloo:all_reduce", 30, 5, 9)]):
        events = [annotation("ProfilerStep#1", 1, 99), op("aten::mm", 1, 3), event]
        trace = traceana.open(write(tmp_path / f"{number}.json", events))
        assert figures(trace, "collectives", "bytes", "reduced_bytes") == [(1, None, None)]


def test_an_empty_result_has_the_reason() -> None:
    b = TraceBuilder()
    b.kernel("gemm", 0, 10)
    assert communication(b.build()).notes[-1] == "no steps: the trace has no step markers"
    b.step(1, 0, 100)
    assert communication(b.build()).notes[-1] == "no communication: no collectives in any step"
    assert communication(TraceBuilder().build()).notes[-1].startswith("no device activities")


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_resnet50_of_two_gpus_reduces_four_bytes_a_parameter() -> None:
    trace = opened(TRACES / "kineto" / "cnn_train_nccl_a100.json.gz")
    frame = communication(trace).frame
    assert frame["reduced_bytes"].to_list() == [4 * 25_557_032] * 3
    assert (frame["exposed_ns"] < frame["communication_ns"]).all()


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_messages_of_recorded_runs() -> None:
    """The gradients of ResNet-50, and tensors of DLRM that only annotations have the sizes of."""
    trace = opened(TRACES / "kineto" / "cnn_train_nccl_a100.json.gz")
    frame = by_message(trace).frame
    reduced = frame.filter(collective="all_reduce")
    assert int(reduced["bytes"].sum()) == 3 * 4 * 25_557_032
    # Of two ranks an all-reduce moves its size once.
    assert reduced["busbw_bytes_per_s"].to_list() == reduced["algbw_bytes_per_s"].to_list()
    dlrm = by_message(opened(TRACES / "kineto" / "dlrm_8xv100" / "rank0.json.gz")).frame
    assert dlrm["message_bytes"].null_count() == 0
    assert set(dlrm["ranks"]) == {8}
    assert set(dlrm.filter(collective="all_reduce")["message_bytes"]) == {4 * 394_241, 448, 907_840}


def test_the_rank_that_arrives_last_waits_for_nobody() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    # Clocks of ranks differ; only durations count. Rank 1 is late twice, rank 0 once.
    for rank, durations in enumerate([(500, 400, 100), (200, 100, 350)]):
        for number, duration in enumerate(durations):
            b.kernel("reduce", 1000 * number + 77 * rank, duration, rank=rank, bytes=400)
    found = by_rank(b.build())
    columns = ("rank", "count", "time_ns", "wait_ns", "last_count")
    assert found.frame.select(columns).rows() == [(0, 3, 1000, 600, 1), (1, 3, 650, 250, 2)]
    assert found.frame["message_bytes"].to_list() == [400, 400]


def test_the_waits_of_many_ranks_fit_the_terminal() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    for rank in range(12):
        for number in range(2):
            b.kernel("reduce", 1000 * number, 500 + 10 * rank, rank=rank, bytes=400)
    text = render(all_collectives(b.build()).page(), Terminal(80))
    assert "wait by rank" in text
    assert max(map(len, text.splitlines())) <= 80


def test_waits_are_unknown_where_occurrences_cannot_be_matched() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    for rank, count in enumerate([3, 2]):
        for number in range(count):
            b.kernel("reduce", 1000 * number, 100, rank=rank)
    found = by_rank(b.build())
    assert found.frame["wait_ns"].to_list() == [None, None]
    assert "wait unknown: 5 collectives, not matched across the ranks" in found.notes


def test_one_rank_has_nobody_to_wait_for() -> None:
    b = TraceBuilder()
    b.name("reduce", **ALL_REDUCE)
    b.kernel("reduce", 0, 100)
    assert by_rank(b.build()).frame.is_empty()


def test_a_collective_has_the_class_of_its_kernel_beside_its_own_name(tmp_path: Path) -> None:
    """NCCL's all-to-all runs the kernel SendRecv; of a generic kernel neither is known."""
    names = ("SendRecv", "AllReduce", "Generic")
    recorded: tuple[dict[str, Any], ...] = (
        {"Collective name": "all_to_all"},
        {"Collective name": "allreduce"},
        {},
    )
    events = []
    for at, (name, args) in enumerate(zip(names, recorded, strict=True)):
        events.append(call("cudaLaunchKernelExC", 100 * at + 5, 2, correlation=at + 1))
        device = f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
        events.append(kernel(device, 100 * at + 20, 40 - at, correlation=at + 1, **args))
    found = all_collectives(traceana.open(write(tmp_path / "t.json", events)))
    page = found.page()
    (table,) = (one for one in page.blocks if isinstance(one, Table))
    assert table.frame["collective"].to_list() == [
        "AlltoAll (SendRecv)", "AllReduce", "(not recorded)",
    ]  # fmt: skip
    # The machine formats have two columns.
    exact = page.data.rows.frame
    assert exact["collective"].to_list() == ["all_to_all", "all_reduce", None]
    assert exact["part"].to_list() == ["send_recv", "all_reduce", None]
