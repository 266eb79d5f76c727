"""``--counters``: Nsight Compute's measurements joined to the timeline, or without a match."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import traceana
from tests.readers.ncu.writing import raw
from tests.support.command_line import Run
from traceana.errors import ExitCode

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
FADD, FMUL = FFMA.replace("ffma", "fadd"), FFMA.replace("ffma", "fmul")
DRAM, TENSOR = "dram__bytes.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
UNITS = {FFMA: "inst", FADD: "inst", FMUL: "inst", DRAM: "byte", TENSOR: "%"}
VALUES = {FFMA: "1,000", FADD: "5", FMUL: "0", DRAM: "2,048", TENSOR: "25"}


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Return a table of the first step of ``cnn_steps``, and of one launch that is not in it."""
    names = ["scudnn", "relu", "winograd", "nchwToNhwc", "sgemmBatched", "scudnn", "adam", "gone"]
    return raw(tmp_path / "step.csv", UNITS, [(name, VALUES) for name in names])


def test_kernels_have_measured_columns(run: Run, bundle: Path, csv: Path) -> None:
    result = run("kernels", bundle, "--counters", csv, "-f", "json")
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert whole["meta"]["counters"] == str(csv)
    assert whole["meta"]["units"]["measured_flops"] == "FLOP"
    (convolution,) = [row for row in whole["rows"] if row["name"] == "scudnn"]
    assert (convolution["measured"], convolution["measured_flops"]) == (2, 4010)
    assert (convolution["dram_bytes"], convolution["tensor_active"]) == (4096, 0.25)
    table = run("kernels", bundle, "--counters", csv).stdout
    assert "measured by Nsight Compute: 7 of 21 kernels" in table
    assert "measured launches without a kernel in the timeline: 1" in table
    assert "GFLOP/s" in table and " 1.34 " in table  # 4010 FLOP in 3000 ns


@pytest.mark.parametrize("command", ["report", "layers", "info"])
def test_every_command_notes_the_joined_launches(
    run: Run, bundle: Path, csv: Path, command: str
) -> None:
    result = run(command, bundle, "--counters", csv)
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    message = (
        "8 launches of 7 names, 7 joined to the timeline"
        if command == "info"
        else "7 of 21 kernels"
    )
    assert message in shown
    assert "measured launches without a kernel in the timeline" in shown


def test_counters_are_saved_with_the_trace(
    run: Run, bundle: Path, csv: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "measured.traceana"
    assert run("save", bundle, "--counters", csv, "-o", saved).exit_code == 0
    one, other = (run("kernels", *words, "-f", "csv").stdout for words in (
        (saved,), (bundle, "--counters", csv)
    ))  # fmt: skip
    assert one == other
    assert traceana.open(bundle, counters=csv).tables.counters["activity"].null_count() == 1


def test_counters_alone(run: Run, csv: Path, tmp_path: Path) -> None:
    assert "8 launches of 7 names: dram_bytes" in run("info", csv).stdout
    result = run("kernels", csv)
    assert result.exit_code == 0
    assert "without a timeline" in result.stdout
    for command in ("report", "layers"):
        result = run(command, csv)
        assert result.exit_code == ExitCode.EMPTY_SELECTION
        assert result.stderr.count("\n") == 1
        assert f"--counters {csv}" in result.stderr
    assert run("save", csv, "-o", tmp_path / "saved").exit_code == 0
    assert run("kernels", tmp_path / "saved").exit_code == 0


def test_counters_among_the_files_are_detected(run: Run, bundle: Path, csv: Path) -> None:
    result = run("kernels", bundle, csv)
    assert result.exit_code == ExitCode.DAMAGED_INPUT
    assert "give it with --counters" in result.stderr


def test_what_is_no_table_of_counters(run: Run, bundle: Path, csv: Path, tmp_path: Path) -> None:
    failed, kineto, empty = (tmp_path / name for name in ("failed", "kineto", "empty"))
    failed.write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    kineto.write_text('{"schemaVersion": 1, "traceEvents": []}')
    empty.write_text("".join(csv.read_text().splitlines(keepends=True)[:4]))
    for path, message in (
        (failed, "no table of counters"),
        (kineto, "kineto"),
        (empty, "no counters of kernel launches"),
    ):
        result = run("kernels", bundle, "--counters", path)
        assert result.exit_code == ExitCode.INVALID_FILE, path
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert run("kernels", bundle, "--counters", tmp_path / "x").exit_code == ExitCode.NOT_FOUND
    assert run("kernels", csv, "--counters", csv).exit_code == ExitCode.INVALID_FILE
