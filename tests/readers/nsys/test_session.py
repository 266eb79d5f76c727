"""The session of an export: time, versions, GPUs, lost events."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readers.nsys.writing import (
    EXPORT,
    KERNEL,
    RUNTIME,
    STRINGS,
    Row,
    Tables,
    call,
    export,
    gid,
    kernel,
    ledger_of,
    trace_of,
    write,
)
from tests.support.command_line import Run
from traceana.trace import Trace

START = 1_696_392_839_587_175_550
WORK: Tables = {KERNEL: [kernel(1_000, 1_900)], RUNTIME: [call(400, 500)]}


def with_facts(tmp_path: Path, facts: dict[str, str], **tables: list[Row]) -> Trace:
    rows = [*EXPORT, *({"name": name, "value": value} for name, value in facts.items())]
    return trace_of(export(tmp_path / "a.sqlite", {**WORK, "META_DATA_EXPORT": rows, **tables}))


@pytest.mark.parametrize(
    ("facts", "epoch"),
    [
        ({}, START + 400),
        ({"EXPORT_PARAM_TIME_SHIFT": "150"}, START + 250),
        ({"EXPORT_PARAM_TIME_SHIFT": "much"}, START + 400),
        ({"EXPORT_PARAM_TIME_SHIFT": "9" * 18}, START + 400 - int("9" * 18)),
        ({"EXPORT_PARAM_TIME_SHIFT": "-" + "9" * 19}, START + 400),
        ({"EXPORT_PARAM_TIME_SHIFT": str(-(2**63))}, None),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "true"}, 400),
        ({"EXPORT_PARAM_TIME_NORMALIZE": "false"}, START + 400),
    ],
)
def test_the_epoch_is_the_unix_time_of_the_first_event(
    tmp_path: Path, facts: dict[str, str], epoch: int | None
) -> None:
    start: list[Row] = [{"utcEpochNs": START, "utcTime": "2023-10-04T04:13:59"}]
    trace = with_facts(tmp_path, facts, TARGET_INFO_SESSION_START_TIME=start)
    assert trace.meta.epoch_ns == epoch
    assert trace.tables.calls["start"].to_list() == [0]


def test_without_a_start_time_there_is_no_epoch(tmp_path: Path) -> None:
    assert with_facts(tmp_path, {}).meta.epoch_ns is None


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_versions_of_both_schemas(tmp_path: Path, table: str) -> None:
    trace = trace_of(write(tmp_path / "a.sqlite", {**WORK, "StringIds": STRINGS, table: EXPORT}))
    assert trace.meta.format == "nsys"
    assert trace.meta.format_version == "3.13.2"
    assert trace.meta.producer == "NVIDIA Nsight Systems 2024.5.1.113"
    assert trace.meta.bytes_read == trace.meta.bytes_total == (tmp_path / "a.sqlite").stat().st_size
    assert not trace.meta.truncated


def test_facts_are_kept_and_the_environment_is_not(tmp_path: Path) -> None:
    trace = with_facts(
        tmp_path,
        {},
        TARGET_INFO_SYSTEM_ENV=[
            {"name": "NvDriverVersion", "value": "580.95.05"},
            {"name": "CudaDriverVersion", "value": "13000"},
            {"name": "Hostname", "value": "node1"},
            {"name": "DeviceEnvironment", "value": "API_KEY=secret"},
        ],
        META_DATA_CAPTURE=[
            {"name": "CUDA_GRAPH_TRACE_OPTIONS:MODE", "value": "Graph"},
            {"name": "PROCESS_0:COMMAND", "value": "python"},
            {"name": "PROCESS_0:ARGUMENT_0", "value": "train.py"},
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'API_KEY="secret"'},
        ],
        PROCESSES=[
            {"globalPid": gid(7), "pid": 7, "name": "python"},
            {"globalPid": gid(1), "pid": 1, "name": "init"},
        ],
    )
    assert trace.meta.properties == {
        "driver_version": "580.95.05",
        "cuda_driver_version": "13000",
        "host": "node1",
        "cuda_graph_trace": "Graph",
        "command": ("python", "train.py"),
        "processes": {"7": "python"},
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("CUPTI dropped 12 records. Some CUPTI events might be missing.", 12),
        ("Number of incomplete CUPTI events dropped: 5. Incomplete events appear ...", 5),
        ("Some events (\t17) were lost. Try to decrease sampling rate.", 17),
        ("Process 3, Thread 4, lost 9 CPU profiling records", 9),
        ("Not all NVTX events might have been collected.", 1),
        ("Number of CUPTI events produced: \t2642, CUPTI buffers: 50.", 0),
        ("Not all is well.", 0),
        ("CUPTI dropped 99999999999999999999999 records.", 1),
    ],
)
def test_events_that_nsys_lost_are_counted(tmp_path: Path, text: str, count: int) -> None:
    message: list[Row] = [{"timestamp": 1, "severity": 2, "text": text, "globalPid": None}]
    trace = with_facts(tmp_path, {}, DIAGNOSTIC_EVENT=message)
    plain = " ".join(text.split())
    assert ledger_of(trace).get(("dropped_by_profiler", plain), 0) == count
    assert trace.meta.properties["warnings"] == (plain,)


def test_a_driver_that_nsys_does_not_support_is_the_reason(tmp_path: Path, run: Run) -> None:
    text = (
        "Installed CUDA driver version (13.3) is not supported by this build of Nsight Systems. "
        "CUDA trace will be collected using libraries for driver version 12.9"
    )
    path = export(
        tmp_path / "a.sqlite",
        {
            "META_DATA_EXPORT": EXPORT,
            RUNTIME: [call(400, 500)],
            "PROFILER_OVERHEAD": [
                {"start": 10, "end": 90, "globalTid": gid(7, 8), "nameId": 3, "returnValue": 0}
            ],
            "DIAGNOSTIC_EVENT": [{"timestamp": 1, "severity": 2, "text": text, "globalPid": None}],
        },
    )
    shown = run("report", path)
    why = "does not support driver 13.3: use a newer nsys"
    assert "no device activities in the file, only 1 runtime call: NVIDIA Nsight" in shown.stderr
    assert why in shown.stderr.replace("\n", " ")
    assert why in " ".join(shown.stdout.split())
    assert "range" not in run("info", path).stdout


GPU: Row = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "totalMemory": 84990623744,
    "memoryBandwidth": 2039040000000,
    "clockRate": 1410000000,
    "smCount": 108,
    "cuDevice": 0,
    "threadsPerWarp": 32,
    "computeMajor": 8,
    "computeMinor": 0,
}
A100 = (0, GPU["name"], "NVIDIA", "8.0", 108, 1410000, 84990623744, 2039040000000, 32, None)


def test_a_gpu_is_described(tmp_path: Path) -> None:
    assert with_facts(tmp_path, {}, TARGET_INFO_GPU=[GPU]).tables.devices.rows() == [A100]


def test_a_gpu_of_the_first_exports_is_described(tmp_path: Path) -> None:
    old: Row = {
        "deviceId": 0,
        "name": GPU["name"],
        "globalMemorySize": 84990623744,
        "coreClockRate": 1410000,
        "numMultiprocessors": 108,
        "numThreadsPerWarp": 32,
        "computeCapabilityMajor": 8,
        "computeCapabilityMinor": 0,
    }
    trace = with_facts(tmp_path, {}, TARGET_INFO_CUDA_GPU=[old])
    assert trace.tables.devices.rows() == [(*A100[:7], None, 32, None)]


@pytest.mark.parametrize("number", [-(2**63), -1, 2**31, 2**63 - 1])
def test_a_gpu_whose_number_cannot_be_one_is_left_out(tmp_path: Path, number: int) -> None:
    gpus: list[Row] = [{**GPU, "cuDevice": number, "name": "odd"}, GPU]
    assert with_facts(tmp_path, {}, TARGET_INFO_GPU=gpus).tables.devices.rows() == [A100]


def test_a_device_is_the_gpu_that_cuda_calls_so(tmp_path: Path) -> None:
    gpus: list[Row] = [{**GPU, "id": i, "cuDevice": 1 - i, "name": f"gpu{i}"} for i in (0, 1)]
    assert with_facts(tmp_path, {}, TARGET_INFO_GPU=gpus).tables.devices["name"].to_list() == [
        "gpu1"
    ]
    reported: list[Row] = [{"gpuId": 0, "cudaId": 0, "pid": 7}]
    (tmp_path / "a.sqlite").unlink()
    trace = with_facts(tmp_path, {}, TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=reported)
    assert trace.tables.devices["name"].to_list() == ["gpu0"]


def test_processes_that_each_see_one_gpu_and_call_it_0(tmp_path: Path) -> None:
    gpus: list[Row] = [{**GPU, "id": i, "cuDevice": i, "name": f"gpu{i}"} for i in (0, 1, 2)]
    reported: list[Row] = [{"gpuId": i + 1, "cudaId": 0, "pid": 7 + i} for i in (0, 1)]
    kernels = [kernel(1_000, 1_900), kernel(1_000, 1_900, globalPid=gid(8))]
    tables: Tables = {**WORK, KERNEL: kernels, "TARGET_INFO_GPU": gpus}
    trace = trace_of(export(tmp_path / "a.sqlite", {**tables, "TARGET_INFO_CUDA_DEVICE": reported}))
    assert trace.tables.activities["device"].to_list() == [1, 2]
    assert trace.tables.devices.select("device", "name").rows() == [(1, "gpu1"), (2, "gpu2")]


def test_devices_that_are_not_described_or_not_used(tmp_path: Path) -> None:
    assert with_facts(tmp_path, {}).tables.devices.rows() == [(0, *[None] * 9)]
    (tmp_path / "a.sqlite").unlink()
    idle = export(tmp_path / "a.sqlite", {"TARGET_INFO_GPU": [GPU]})
    assert trace_of(idle).tables.devices["name"].to_list() == [GPU["name"]]
