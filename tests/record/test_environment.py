"""The hardware of a run's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceana.record.recording import environment, gpus_by_driver
from traceana.runs.run_files import Profiler


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "nvidia-smi"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_gpus_are_those_that_the_driver_lists(driver: Path) -> None:
    script(driver, "echo 'Tesla T4, 15360, 580.95.05, 7.5'")
    (gpu,), notes = gpus_by_driver()
    assert (gpu.name, gpu.memory_bytes, gpu.driver) == ("Tesla T4", 15360 << 20, "580.95.05")
    assert notes == ()


def test_a_driver_that_fails_is_no_machine_without_gpus(driver: Path) -> None:
    script(driver, "exit 9")
    assert gpus_by_driver() == ((), ("GPUs unknown: nvidia-smi ended with exit status 9",))


@pytest.mark.parametrize(
    ("printed", "version"),
    [("NVIDIA Nsight Systems version 2024.5.1.113-245134619853v0", "2024.5.1.113-245134619853v0"),
     ("", None)],
)  # fmt: skip
def test_the_version_of_nsys_is_the_one_that_it_prints(
    printed: str, version: str | None, driver: Path
) -> None:
    script(driver.with_name("nsys"), f"echo '{printed}'")
    assert environment((), Profiler.NSYS, (), ()).profiler_version == version


def test_variables_that_are_set_and_affect_a_run_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HOME_OF_MINE", "/home")
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    kept = environment((), Profiler.NONE, (), ()).variables
    assert kept["OMP_NUM_THREADS"] == "3"
    assert {"HOME_OF_MINE", "NCCL_ALGO"}.isdisjoint(kept)
