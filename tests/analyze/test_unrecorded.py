"""A device that was not recorded is not idle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.support.command_line import run
from tests.support.traces import TraceBuilder, with_methods
from traceana.analyze.unrecorded import unrecorded
from traceana.enrich import attribute

NSYS = "NVIDIA Nsight Systems 2023.4.1"


def built(*, gpu: bool = True, **meta: Any) -> TraceBuilder:
    b = TraceBuilder(format="nsys", producer=NSYS, **meta)
    b.row("ranges", text="step 1", kind="nvtx", process=9, thread=1, start=0, duration=1_000)
    if gpu:
        b.row("devices", device=0, name="NVIDIA TITAN RTX")
    return b


def missing(b: TraceBuilder) -> str | None:
    return unrecorded(attribute(b.build()))


def test_ranges_alone_say_nothing_of_a_gpu_whose_cuda_was_not_traced() -> None:
    found = missing(built(properties={"cuda_traced": "false"}))
    assert found == (
        "NVIDIA TITAN RTX was not recorded, CUDA was not traced: "
        "record with nsys profile --trace=cuda,nvtx"
    )


def test_a_program_that_ran_on_the_cpu_lacks_nothing() -> None:
    assert missing(built(gpu=False, properties={"cuda_traced": "false"})) is None
    assert missing(built(properties={"cuda_traced": "true"})) is None


def test_ranges_of_nvprof_on_a_gpu_without_its_kernels() -> None:
    b = TraceBuilder(format="nvprof", producer="NVIDIA nvprof")
    b.row("ranges", text="step 1", kind="nvtx", process=9, thread=1, start=0, duration=1_000)
    assert missing(b) is None
    b.row("devices", device=0, name="Tesla V100")
    assert missing(b) == (
        "no kernels of Tesla V100 are recorded: record with nvprof --profile-from-start on"
    )


def test_an_nsys_older_than_cuda_records_copies_and_no_kernels() -> None:
    for driver, expected in (
        ("13000", "copies are recorded and no kernels: nsys 2023.4 is older than the driver's "
         "CUDA 13: use a newer nsys"),
        ("12030", None),
    ):  # fmt: skip
        b = built(properties={"cuda_driver_version": driver})
        b.copy("HtoD", 100, 50)
        assert missing(b) == expected


def test_launches_without_any_of_their_work() -> None:
    b = built(properties={"cuda_driver_version": "12030"})
    for number in range(3):
        b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=number, duration=1,
              correlation=number)  # fmt: skip
    assert missing(b) == (
        "3 launches are recorded, and none of the work that they launched: "
        "record with nsys profile --trace=cuda,nvtx"
    )


def test_the_work_of_a_tpu_is_not_read() -> None:
    b = TraceBuilder(format="xplane", properties={"devices_not_read": ["TPU:0", "TPU:1"]})
    assert missing(b) == (
        "the work of TPU:0, TPU:1 is in the file and not read: only GPUs and CPUs are"
    )


@pytest.mark.parametrize("command", ["idle", "critical", "whatif", "advise"])
def test_what_needs_the_device_ends_with_its_exit_code(command: str, tmp_path: Path) -> None:
    path = tmp_path / "run.traceana"
    traceana_trace = with_methods(attribute(built(properties={"cuda_traced": "false"}).build()))
    traceana_trace.save(path)
    done = run(command, str(path))
    assert done.exit_code == 20
    assert "NVIDIA TITAN RTX was not recorded" in done.stderr


def test_the_report_names_it_in_place_of_a_bottleneck(tmp_path: Path) -> None:
    path = tmp_path / "run.traceana"
    with_methods(attribute(built(properties={"cuda_traced": "false"}).build())).save(path)
    shown = str(traceana.open(path).report())
    assert "Not recorded  NVIDIA TITAN RTX was not recorded" in shown
    assert "not determined: the GPU was not recorded" in shown
    assert "utilization" not in shown
    page = tmp_path / "report.html"
    assert run("report", str(path), "-o", str(page)).exit_code == 0
