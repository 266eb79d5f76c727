"""GPU metrics of nsys become samples: names, units, devices, and the interval of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.readers.nsys.test_directory import Write, arrow, converted, parquet
from tests.readers.nsys.writing import (
    KERNEL,
    RUNTIME,
    Row,
    Tables,
    call,
    export,
    gid,
    kernel,
    ledger_of,
    trace_of,
)
from traceana.trace import Trace

TYPE = 0x0100_0000_0500_0000
"""A ``typeId`` without its GPU: hardware, virtual machine, source."""


def sample(timestamp: int, value: int, metric: int = 0, gpu: int = 0) -> Row:
    return {
        "rawTimestamp": timestamp + 7,
        "timestamp": timestamp,
        "typeId": TYPE | gpu,
        "metricId": metric,
        "value": value,
    }


def exported(path: Path, samples: list[Row], *names: str, gpus: int = 1, **more: Any) -> Path:
    """Write an export with a kernel, ``samples``, and the ``names`` of metrics by their ids."""
    tables: Tables = {
        KERNEL: [kernel(1_000, 2_000)],
        RUNTIME: [call(900, 950)],
        "GPU_METRICS": samples,
        "TARGET_INFO_GPU_METRICS": [
            {"typeId": TYPE | gpu, "sourceId": 1, "typeName": "GPU", "metricId": metric}
            | {"metricName": name}
            for gpu in range(gpus)
            for metric, name in enumerate(names)
        ],
        **more,
    }
    return export(path, tables)


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.tables.samples.select(*columns).rows()


def test_a_sample_is_of_the_time_before_it(tmp_path: Path) -> None:
    times = {1_100: 10, 1_200: 20, 1_300: 30, 1_350: 40, 2_000: 50}
    samples = [sample(time, value) for time, value in times.items()]
    trace = trace_of(exported(tmp_path / "a.sqlite", samples, "SMs Active [Throughput %]"))
    # Times count from the launch at 900. The first, and the one after a gap, have the median.
    assert rows(trace, "start", "duration", "value", "name", "unit", "device") == [
        (100, 100, 10.0, "SMs Active", "%", 0),
        (200, 100, 20.0, "SMs Active", "%", 0),
        (300, 100, 30.0, "SMs Active", "%", 0),
        (400, 50, 40.0, "SMs Active", "%", 0),
        (1_000, 100, 50.0, "SMs Active", "%", 0),
    ]
    assert trace.tables.ledger.is_empty()


@pytest.mark.parametrize("name", ["GPC Clock Frequency [MHz]", "SYS Clock Frequency"])
@pytest.mark.parametrize(
    ("stored", "mhz"),
    [(1_755_000_000, 1755.0), (1755, 1755.0), (0, 0.0), (2_520_000_000 - (1 << 32), 2520.0)],
)
def test_clocks_are_stored_in_hertz(name: str, stored: int, mhz: float, tmp_path: Path) -> None:
    trace = trace_of(exported(tmp_path / "a.sqlite", [sample(1_000, stored)], name))
    assert rows(trace, "name", "unit", "value") == [(name.removesuffix(" [MHz]"), "MHz", mhz)]


def test_another_negative_number_is_no_value(tmp_path: Path) -> None:
    samples = [sample(1_000, 5), sample(1_100, -3)]
    trace = trace_of(exported(tmp_path / "a.sqlite", samples, "Tensor Active [Throughput %]"))
    assert rows(trace, "value") == [(5.0,)]
    assert ledger_of(trace) == {("no_value", None): 1}


def test_metrics_without_a_name(tmp_path: Path) -> None:
    samples = [sample(1_000, 5), sample(1_000, 5, metric=3)]
    trace = trace_of(exported(tmp_path / "a.sqlite", samples, "GR Active [Throughput %]"))
    assert rows(trace, "name") == [("GR Active",)]
    assert ledger_of(trace) == {("counter", "GPU_METRICS: metrics without a name"): 1}


def cuda_device(cuda: int, gpu: int, pid: int = 7) -> Row:
    return {"gpuId": gpu, "cudaId": cuda, "pid": pid, "uuid": f"{gpu}"}


def test_a_gpu_has_the_number_of_its_activities(tmp_path: Path) -> None:
    # Visible is the second GPU, which CUDA numbers 0; nothing recorded used the first.
    samples = [sample(1_000, 5, gpu=gpu) for gpu in (0, 1)]
    more = {"TARGET_INFO_CUDA_DEVICE": [cuda_device(0, 1)]}
    path = exported(tmp_path / "a.sqlite", samples, "SMs Active", gpus=2, **more)
    trace = trace_of(path)
    assert rows(trace, "device") == [(0,)]
    assert ledger_of(trace) == {("counter", "GPU_METRICS: GPUs that no recorded process uses"): 1}


def test_processes_that_number_their_own_gpus(tmp_path: Path) -> None:
    samples = [sample(1_000, 5, gpu=gpu) for gpu in (0, 1)]
    more = {
        KERNEL: [kernel(1_000, 2_000), kernel(1_000, 2_000, globalPid=gid(8))],
        "TARGET_INFO_CUDA_DEVICE": [cuda_device(0, 0), cuda_device(0, 1, pid=8)],
    }
    path = exported(tmp_path / "a.sqlite", samples, "SMs Active", gpus=2, **more)
    trace = trace_of(path)
    assert rows(trace, "device") == [(0,), (1,)]
    assert sorted(trace.tables.activities["device"]) == [0, 1]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_directories_have_the_same_samples(write: Write, tmp_path: Path) -> None:
    samples = [sample(1_000 + 10 * at, at % 100, at % 2) for at in range(200)]
    names = ("SMs Active [Throughput %]", "GPC Clock Frequency [MHz]")
    path = exported(tmp_path / "a.sqlite", samples, *names)
    folder = converted(path, tmp_path / "exported", write)
    assert trace_of(folder).tables.samples.equals(trace_of(path).tables.samples)


def test_times_before_the_session_are_kept(tmp_path: Path) -> None:
    samples = [sample(-50, 5), sample(0, 6), sample(50, 7)]
    trace = trace_of(exported(tmp_path / "a.sqlite", samples, "SMs Active"))
    assert rows(trace, "start", "value") == [(0, 5.0), (50, 6.0), (100, 7.0)]
    assert trace.tables.activities["start"].to_list() == [1_100]
