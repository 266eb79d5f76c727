"""``traceana advise``: its page and its exit codes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import polars as pl
import pytest

from tests.advise.building import Run, run_of
from tests.readers.kineto.writing import kernel, write
from tests.support.command_line import Run as Invoke
from traceana.advise import RULES
from traceana.errors import ExitCode


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of steps with layout changes and pageable copies."""

    def put(run: Run) -> None:
        run.convolution("implicit_gemm", stride=2)
        run.convolution("implicit_gemm", stride=2, layout=300_000, tensor_core=True, duration=9_000)
        run.put_copy("HtoD", 500_000, bytes=4_000_000, source_memory="pageable")

    saved: Path = run_of(put).save(tmp_path_factory.mktemp("advise") / "slow")
    return saved


def test_findings_are_numbered_with_saving_estimate_and_the_frameworks_change(
    run: Invoke, slow: Path
) -> None:
    text = run("advise", slow).stdout
    assert text.startswith("1. pageable copies  ≈ 500.0 µs (5.0 % of step)")
    assert "2. tensor cores unused  ≈ " in text
    assert "3. layout changes  ≈ 300.0 µs (3.0 % of step)" in text
    assert "DataLoader(pin_memory=True)" in text
    assert "TensorFlow" not in text, "the trace is PyTorch's"
    assert "do not add them" in text


def test_one_rule_is_shown_whole(run: Invoke, slow: Path) -> None:
    text = run("advise", slow, "--rule", "layout_changes").stdout
    assert text.startswith("1. layout changes")
    assert "pageable" not in text
    assert "aten::conv2d" in text, "the evidence"
    silent = run("advise", slow, "--rule", "allocation")
    assert silent.exit_code == 0
    assert silent.stdout == "allocation: no finding\n"


def test_json_has_figures_and_evidence(run: Invoke, slow: Path) -> None:
    whole = json.loads(run("advise", slow, "-f", "json").stdout)
    assert whole["meta"]["command"] == "advise"
    assert whole["meta"]["units"]["saving_ns"] == "ns"
    by_rule = {row["rule"]: row for row in whole["rows"]}
    copies = by_rule["pageable_copies"]
    assert copies["saving_ns"] == 500_000
    assert copies["saving_share"] == pytest.approx(0.05)
    assert copies["kind"] == "estimate"
    assert copies["figures"]["count"] == 1
    assert copies["evidence"][0]["exposed_ns"] == 2_000_000
    assert copies["evidence"][0]["step_ns"] == copies["evidence"][0]["time_ns"] // 4
    assert {"pytorch", "tensorflow", "jax", "estimate", "caveat", "finding"} <= copies.keys()
    for row in whole["rows"]:
        assert row["pytorch"]
        assert row["tensorflow"] == row["jax"] == row["native"] == "", "the trace is PyTorch's"


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize(
    ("device", "fits", "other"),
    [
        (("Tesla V100-SXM2-16GB", "7.0", 80), "GradScaler", "tf32"),
        (("Tesla T4", "7.5", 40), "GradScaler", "tf32"),
        (("NVIDIA A100-SXM4-40GB", "8.0", 108), "allow_tf32", "GradScaler"),
    ],
    ids=["V100", "T4", "A100"],
)
def test_advice_on_tensor_cores_is_for_the_gpu(
    run: Invoke, tmp_path: Path, device: tuple[str, str, int], fits: str, other: str
) -> None:
    named = dict(zip(("name", "compute_capability", "multiprocessors"), device, strict=True))
    trace = run_of(lambda put: put.convolution("implicit_gemm", stride=2), **named)
    saved = trace.save(tmp_path / "run")
    page = tmp_path / "page.html"
    run("report", saved, "-o", page)
    of_rule = json.loads(run("advise", saved, "-f", "json").stdout)["rows"][0]
    assert of_rule["rule"] == "tensor_cores_unused"
    shown = run("advise", saved).stdout
    for text in (shown, " ".join(map(str, of_rule.values())), page.read_text("utf-8")):
        assert fits in text
        assert other.lower() not in text.lower()
        assert "tf.config" not in text
        assert "jax." not in text


@pytest.mark.slow
def test_the_command_of_a_finding_prints_its_evidence(
    run: Invoke, slow: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "my rules.toml"
    rules.write_text(
        '[[rule]]\nid = "mine"\nreason = "none"\nhead = "no_such_kernel"\ncategory = "softmax"\n',
        "utf-8",
    )
    for chosen in (
        [],
        ["--step", "1,2", "--device", "0"],
        ["--rules", str(rules), "--device-model", "V100"],
    ):
        found = json.loads(run("advise", slow, *chosen, "-f", "json").stdout)["rows"]
        assert len(found) > 1
        for row in found:
            words = shlex.split(row["command"])
            assert words[0] == "traceana"
            assert words[3:-4] == chosen
            (again,) = json.loads(run(*words[1:]).stdout)["rows"]
            assert again == row


def test_limit_and_order_hold_in_every_format(run: Invoke, slow: Path) -> None:
    limited = json.loads(run("advise", slow, "-f", "json", "--limit", "1").stdout)
    assert [row["rule"] for row in limited["rows"]] == ["pageable_copies"]
    text = run("advise", slow, "--limit", "1").stdout
    assert "tensor cores" not in text
    assert "2 more findings (--limit 0: all)" in text


@pytest.mark.parametrize("format_", ["csv", "tsv", "md"])
def test_other_formats(run: Invoke, slow: Path, format_: str) -> None:
    result = run("advise", slow, "-f", format_)
    assert result.exit_code == 0
    assert "pageable" in result.stdout


def test_parquet(run: Invoke, slow: Path, tmp_path: Path) -> None:
    path = tmp_path / "advice.parquet"
    assert run("advise", slow, "-o", path).exit_code == 0
    assert pl.read_parquet(path)["rule"].to_list()[0] == "pageable_copies"


def test_rules_are_listed_without_a_trace(run: Invoke) -> None:
    result = run("advise", "--list", "-f", "json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["rule"] for row in rows] == [rule.id for rule in RULES]
    assert run("advise").exit_code == ExitCode.USAGE


def test_gates(run: Invoke, slow: Path) -> None:
    passed = run("advise", slow, "--fail-on", "allocation", "--max", "idle=50%")
    assert (passed.exit_code, passed.stderr) == (0, "")
    failed = run(
        "advise", slow, "--fail-on", "allocation,pageable_copies", "--max", "exposed_copy=1%"
    )
    assert failed.exit_code == ExitCode.GATE_FAILED
    assert failed.stderr.splitlines() == [
        "traceana: gate: pageable_copies: finding",
        "traceana: gate: exposed_copy is 5.0 %, limit 1.0 %",
    ]
    assert failed.stdout == run("advise", slow).stdout


def test_an_unknown_figure_passes_unless_asked_to_fail(run: Invoke, tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("k", 5, 5)])
    passed = run("advise", path, "--max", "step_time=1s")
    line = "traceana: gate: step_time unknown: not in this trace"
    assert (passed.exit_code, passed.stderr) == (ExitCode.OK, f"{line}: passed\n")
    failed = run("advise", path, "--max", "step_time=1s", "--on-inconclusive", "fail")
    assert (failed.exit_code, failed.stderr) == (ExitCode.GATE_INCONCLUSIVE, f"{line}\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--fail-on", "no_such"), ExitCode.USAGE),
        (("--max", "no_such=1"), ExitCode.USAGE),
        (("--max", "idle"), ExitCode.USAGE),
        (("--rule", "no_such"), ExitCode.EMPTY_SELECTION),
    ],
)
def test_what_cannot_be_read_is_one_line(
    run: Invoke, slow: Path, words: tuple[str, ...], code: ExitCode
) -> None:
    result = run("advise", slow, *words)
    assert result.exit_code == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
