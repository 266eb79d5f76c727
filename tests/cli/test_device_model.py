"""``--device-model``: peaks and links of a trace that names no device, as older Kineto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.readers.kineto.writing import annotation, call, kernel, op, write
from tests.support.command_line import Run
from traceana.errors import ExitCode

COPIED = 6_400_000
PRODUCT = 2 * 64 * 32 * 16


def recording(path: Path, name: str | None = None) -> Path:
    """Write one step: a copy of 1 ms, and a product of half precision in 1 µs."""
    half: dict[str, Any] = {
        "Input Dims": [[64, 32], [32, 16]],
        "Input type": ["c10::Half", "c10::Half"],
    }
    events = [
        annotation("ProfilerStep#1", 0, 2000),
        call("cudaMemcpyAsync", 5, 3, 1),
        op("aten::mm", 10, 20, **half),
        call("cudaLaunchKernel", 15, 3, 2),
        {**kernel("Memcpy HtoD (Pinned -> Device)", 20, 1000, bytes=COPIED, correlation=1),
         "cat": "gpu_memcpy"},
        kernel("volta_h884gemm_64x64_ldg8_nn", 1100, 1, correlation=2),
    ]  # fmt: skip
    properties = [] if name is None else [{"id": 0, "name": name}]
    return write(path, events, deviceProperties=properties)


def test_peaks_and_links_are_those_of_the_named_model(run: Run, tmp_path: Path) -> None:
    trace = recording(tmp_path / "t.json")
    named = ("--device-model", "Tesla V100", "-f", "json")
    assert json.loads(run("layers", trace, "-f", "json").stdout)["rows"][0]["of_peak"] is None
    (layer,) = json.loads(run("layers", trace, *named, "--order", "network").stdout)["rows"][:1]
    assert layer["of_peak"] == pytest.approx(PRODUCT / 1e-6 / 125e12)
    (copy,) = json.loads(run("transfers", trace, *named).stdout)["rows"]
    assert copy["link"] == "PCIe 3 x16"
    assert copy["peak_bytes_per_s"] == 8_000_000_000 * 16 * 128 // (130 * 8)
    for command in ("report", "kernels", "flops", "idle", "critical", "memory", "advise", "info"):
        assert run(command, trace, *named[:2]).exit_code in (ExitCode.OK, ExitCode.EMPTY_SELECTION)
    assert run("diff", trace, trace, *named[:2]).exit_code == ExitCode.OK
    assert run("compare", trace, trace, *named[:2]).exit_code == ExitCode.OK


def test_an_unknown_model_lists_the_nearest(run: Run, tmp_path: Path) -> None:
    trace = recording(tmp_path / "t.json")
    result = run("report", trace, "--device-model", "GeForce RTX 4095")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert result.stderr.count("\n") == 1
    assert "GeForce RTX 4090" in result.stderr


def test_a_device_that_the_trace_names_keeps_its_name(tmp_path: Path) -> None:
    path = recording(tmp_path / "t.json", "NVIDIA A100-SXM4-40GB")
    trace = traceana.open(path, device_model="Tesla V100-SXM2-16GB")
    assert trace.tables.devices["name"].to_list() == ["NVIDIA A100-SXM4-40GB"]
    trace = traceana.open(recording(tmp_path / "u.json"), device_model="Tesla V100-SXM2-16GB")
    assert trace.tables.devices.select("name", "vendor", "compute_capability").rows() == [
        ("Tesla V100-SXM2", "NVIDIA", "7.0")
    ]
