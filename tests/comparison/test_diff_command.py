"""``traceana diff`` from end to end: views, formats, the gate, baselines."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.support.command_line import Run
from tests.support.graph_replays import as_replays, network, steps, write
from tests.support.traces import TraceBuilder, with_methods
from tests.support.training import KERNELS, training
from traceana import Trace, diff
from traceana.enrich import attribute
from traceana.errors import ExitCode


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    hostile = {"conv1\x1b[31m|`x`": "Conv2d"}
    slower = {**KERNELS, "conv2": (("implicit", 700_000),)}
    return {
        "a": training(seed=1).save(folder / "a"),
        "b": training(seed=2).save(folder / "b"),
        "slower": training(seed=2, kernels=slower).save(folder / "slower"),
        "one": training(steps=1).save(folder / "one"),
        "hostile": training(
            layers=list(hostile.items()), kernels=dict.fromkeys(hostile, KERNELS["conv1"])
        ).save(folder / "hostile"),
    }


@pytest.mark.exhaustive(after=1)
@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_replays_of_cuda_graphs_have_the_layers_of_the_other_run(
    run: Run, tmp_path: Path, turned: bool
) -> None:
    whole = network(3)
    eager = write(whole, tmp_path / "eager.json")
    graph = write(as_replays(whole, list(steps(whole)), capture=None), tmp_path / "graph.json")
    sides = (graph, eager) if turned else (eager, graph)
    printed = json.loads(run("diff", *sides, "--by", "layer", "--format", "json").stdout)
    for rows in (printed["rows"], diff(*sides, by="layer").frame.to_dicts()):
        in_both = [row["a"] for row in rows if row["time_a_ns"] and row["time_b_ns"]]
        assert sorted(in_both)[-4:] == ["conv2d_0", "conv2d_1", "linear_0", "relu_0"]


@pytest.mark.slow
def test_a_layer_of_the_candidate_alone_has_its_name_in_the_first_column(
    run: Run, tmp_path: Path, runs: dict[str, Path]
) -> None:
    layers = [("conv1", "Conv2d")]
    less = training(layers=layers, kernels=dict.fromkeys(dict(layers), KERNELS["conv1"]))
    text = run("diff", less.save(tmp_path / "less"), runs["one"], "--by", "layer").stdout
    alone = [line for line in text.splitlines() if "only in candidate" in line]
    assert {line.split()[0] for line in alone} == {"relu1", "conv2", "relu2", "pool", "fc"}


@pytest.mark.slow
def test_sums_over_devices_are_named() -> None:
    def built(devices: int) -> Trace:
        b = TraceBuilder()
        for number in range(4):
            row = b.step(number, number * 1_000, 1_000)
            for device in range(devices):
                b.kernel("k", number * 1_000, 500, step=row, device=device)
        return b.build()

    said = "changes and rows are sums over 2 GPUs"
    assert said in repr(diff(built(2), built(2)))
    assert said in repr(diff(built(2), built(2), by="class"))
    assert "sums over" not in repr(diff(built(1), built(1)))


def test_the_summary_is_one_screen(run: Run, runs: dict[str, Path]) -> None:
    result = run("diff", runs["a"], runs["slower"])
    assert result.exit_code == ExitCode.OK
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 110
    assert lines[2].split("  ", 1)[1].strip().startswith("0.990 → 1.290 ms median (+30.2 %)")
    assert lines[2].endswith("; slower")
    assert "algorithm forward Winograd → implicit GEMM in conv2" in result.stdout


def test_utilization_and_bottleneck_are_those_of_the_reports(
    run: Run, runs: dict[str, Path]
) -> None:
    lines = run("diff", runs["a"], runs["slower"]).stdout.splitlines()
    limits = {line[:15]: line[17:] for line in lines[:8]}
    for side, name in enumerate(("a", "slower")):
        report = run("report", runs[name]).stdout.splitlines()
        facts = {line[:15]: line[17:] for line in report[:8]}
        busy = limits["GPU utilization"].split(" of ")[0].split(" → ")[side]
        assert facts["GPU utilization"].startswith(f"{busy} of step time")
        limit = limits["Bottleneck     "].split(" → ")[side]
        assert facts["Bottleneck     "].startswith(limit)


def test_equal_runs_are_inconclusive(run: Run, runs: dict[str, Path]) -> None:
    result = run("diff", runs["a"], runs["b"])
    assert "; inconclusive" in " ".join(result.stdout.split())
    assert "none above 1 % of the step" in result.stdout


@pytest.mark.parametrize(
    ("by", "format_"),
    [
        *((by, "table") for by in ("layer", "class", "algorithm", "kernel", "gemm", "transfer")),
        *(("class", format_) for format_ in ("csv", "tsv", "json", "md")),
    ],
)
def test_every_view_comes_in_every_format(
    run: Run, runs: dict[str, Path], by: str, format_: str
) -> None:
    result = run("diff", runs["a"], runs["slower"], "--by", by, "--format", format_)
    assert result.exit_code == ExitCode.OK
    assert "slower" in result.stdout or "only in candidate" in result.stdout or by == "transfer"
    assert by not in ("gemm", "transfer") or "(other work)" in result.stdout.replace("\\", "")


def test_the_json_holds_rows_changes_and_the_verdict(run: Run, runs: dict[str, Path]) -> None:
    reported = json.loads(run("diff", runs["a"], runs["slower"], "--format", "json").stdout)
    meta, rows = reported["meta"], reported["rows"]
    assert meta["command"] == "diff"
    assert meta["a"]["steps"] == meta["b"]["steps"] == 8
    assert meta["step"]["verdict"] == "slower"
    assert meta["step"]["median"]["interval"]["low"] > 0
    assert sum(row["delta_ns"] for row in rows) == meta["totals"]["delta_ns"]
    (conv2,) = [row for row in rows if row["a"] == "conv2"]
    assert {"a", "b", "confidence", "time_a_ns", "time_b_ns", "delta_ns", "verdict"} <= set(conv2)
    assert conv2["verdict"] == "slower"
    first, part = reported["sections"]["changes"][:2]
    assert (first["number"], first["change"]) == ("1", "kernels")
    assert (part["number"], part["change"]) == ("1.1", "algorithm")
    assert meta["units"]["time_a_ns"] == meta["units"]["delta_ns"] == "ns"


def test_parquet_holds_the_rows(run: Run, runs: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    assert run("diff", runs["a"], runs["b"], "-o", file).exit_code == ExitCode.OK
    assert "confidence" in pl.read_parquet(file).columns


def test_markdown_is_for_a_pull_request(run: Run, runs: dict[str, Path]) -> None:
    text = run("diff", runs["a"], runs["slower"], "--format", "md").stdout
    assert "- **Step time**: 0.990 → 1.290 ms median (+30.2 %)" in text
    assert "<details><summary>Layers, per step</summary>\n\n| layer |" in text


@pytest.mark.slow
def test_names_of_a_trace_cannot_steer_the_terminal_or_the_markup(
    run: Run, runs: dict[str, Path]
) -> None:
    for format_ in ("table", "md", "csv", "tsv", "json"):
        text = run("diff", runs["a"], runs["hostile"], "--format", format_).stdout
        assert "\x1b" not in text
    assert (
        "conv1\\\\x1b\\[31m\\|\\`x\\`" in run("diff", runs["a"], runs["hostile"], "-f", "md").stdout
    )


@pytest.mark.parametrize(
    ("b", "gate", "code"),
    [
        ("slower", "3%", ExitCode.GATE_FAILED),
        ("slower", "0.03", ExitCode.GATE_FAILED),
        ("slower", "80%", ExitCode.OK),
        ("b", "0%", ExitCode.OK),
        ("one", "3%", ExitCode.OK),
    ],
)
def test_the_gate_fails_only_significant_slowdowns(
    run: Run, runs: dict[str, Path], b: str, gate: str, code: ExitCode
) -> None:
    result = run("diff", runs["a"], runs[b], "--fail-if-slower", gate)
    assert result.exit_code == code
    assert ("candidate slower by" in result.stderr) == (code is ExitCode.GATE_FAILED)
    assert ("not enough steps" in result.stderr) == (b == "one")
    assert run("diff", runs["slower"], runs["a"], "--fail-if-slower", "1%").exit_code == ExitCode.OK


def test_the_gate_of_too_few_steps_passes_unless_asked_to_fail(
    run: Run, runs: dict[str, Path]
) -> None:
    words = (runs["a"], runs["one"], "--fail-if-slower", "1%")
    passed, failed = run("diff", *words), run("diff", *words, "--on-inconclusive", "fail")
    line = "traceana: gate: step time not enough steps"
    assert (passed.exit_code, passed.stderr) == (ExitCode.OK, f"{line}: passed\n")
    assert (failed.exit_code, failed.stderr) == (ExitCode.GATE_INCONCLUSIVE, f"{line}: failed\n")


@pytest.mark.slow
def test_a_baseline_is_kept_replaced_and_named(run: Run, runs: dict[str, Path]) -> None:
    saved = run("diff", runs["a"], "--save-baseline", "main")
    assert saved.exit_code == ExitCode.OK
    assert saved.stdout == ""
    assert "; slower" in run("diff", "main", runs["slower"]).stdout
    assert (
        run("diff", runs["slower"], runs["b"], "--save-baseline", "main").exit_code == ExitCode.OK
    )
    assert "; faster" in run("diff", "main", runs["a"]).stdout


def test_a_missing_baseline_lists_the_saved_ones(run: Run, runs: dict[str, Path]) -> None:
    missing = run("diff", "main", runs["a"])
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "no baselines saved" in missing.stderr
    run("diff", runs["a"], "--save-baseline", "main")
    assert "baselines: main" in run("diff", "mian", runs["a"]).stderr
    assert run("diff", runs["a"], "--save-baseline", "../x").exit_code == ExitCode.CANNOT_WRITE


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-if-slower", "much"],
        ["--fail-if-slower", "-3%"],
        ["--fail-if-slower", "nan"],
        ["--level", "20%"],
        ["--min-effect", "1%%"],
        ["--by", "colour"],
    ],
)
def test_invalid_options_are_refused(run: Run, runs: dict[str, Path], words: list[str]) -> None:
    assert run("diff", runs["a"], runs["b"], *words).exit_code == ExitCode.USAGE


def test_one_run_alone_needs_a_name_to_be_kept_under(run: Run, runs: dict[str, Path]) -> None:
    assert run("diff", runs["a"]).exit_code == ExitCode.USAGE


def test_lines_of_the_program_are_paired_by_file_and_function(run: Run, tmp_path: Path) -> None:
    sides = []
    for name, first in (("a", 10), ("b", 12)):
        b = TraceBuilder()
        for number in range(5):
            at = number * 10_000
            b.row("ranges", text=f"ProfilerStep#{number}", kind="step", process=9, thread=1,
                  start=at, duration=9_000)  # fmt: skip
            for place, function in enumerate(("forward", "loss")):
                begin = at + 1_000 * place
                b.row("ranges", text=f"train.py({first + place}): {function}", kind="python",
                      process=9, thread=1, start=begin, duration=900)  # fmt: skip
                correlation = 10 * number + place
                b.row("calls", name="cudaLaunchKernel", process=9, thread=1, start=begin + 10,
                      duration=5, correlation=correlation)  # fmt: skip
                b.kernel("k", begin + 100, 500 + 100 * place, correlation=correlation, process=9)
        sides.append(with_methods(attribute(b.build())).save(tmp_path / name))
    rows = json.loads(run("diff", *sides, "--by", "line", "--format", "json").stdout)["rows"]
    times = {row["line"]: (row["time_a_ns"], row["time_b_ns"]) for row in rows}
    assert times["train.py forward"] == (500, 500)
    assert times["train.py loss"] == (600, 600)
    assert sum(a for a, _ in times.values()) == sum(b for _, b in times.values())


def test_without_lines_in_both_runs_a_line_says_so(run: Run, runs: dict[str, Path]) -> None:
    result = run("diff", runs["a"], runs["b"], "--by", "line")
    assert result.exit_code == ExitCode.USAGE
    assert "not recorded in both runs" in result.stderr


def test_a_comment_has_verdict_picture_causes_and_what_is_unchanged(run: Run) -> None:
    gpu = Path(__file__).parents[2] / "fixtures" / "gpu"
    two = gpu / "alexnet_b128.json.gz", gpu / "alexnet_b128_pinned.json.gz"
    text = run("diff", *two, "--comment", "-f", "md", "--fail-if-slower", "3%").stdout
    lines = text.splitlines()
    assert lines[0].startswith("# Faster: step 24.86 → 16.35 ms (\u221234.2 %)")
    assert lines[2] == "gate of 3 %: passed"
    assert "| copies | 9.55 | 1.41 | \u22128.15 | ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ |" in lines
    assert "1. **HtoD copies, \u22128.15 ms**: 2 per step · 9.552 → 1.407 ms" in lines
    assert any(line.startswith("- **Unchanged**: 13 of 14 classes, 23 of 23") for line in lines)
    assert len(lines) < 40
    assert run("diff", *two, "--comment", "--by", "layer").exit_code == ExitCode.USAGE
    assert run("diff", two[0], "--save-baseline", "x", "--comment").exit_code == ExitCode.USAGE


def test_a_comment_on_equal_recordings(run: Run) -> None:
    file = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"
    text = run("diff", file, file, "--comment", "-f", "md").stdout
    assert text.startswith("# Same step time: step ")
    assert "Largest changes" not in text
