"""Every error is one line on stderr and its own exit code, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Run
from traceana.errors import ExitCode
from traceana.report.pages import report as report_page


def files(folder: Path) -> list[tuple[Path, ExitCode]]:
    """Return inputs that are refused before any reader gets them, with their exit codes."""
    made = {
        "empty": (b"", ExitCode.DAMAGED_INPUT),
        "noise": (bytes(range(1, 200)), ExitCode.UNRECOGNIZED_FORMAT),
        "no trace": (b'"just a string"', ExitCode.UNRECOGNIZED_FORMAT),
    }
    for name, (content, _) in made.items():
        (folder / name).write_bytes(content)
    found = [(folder / name, code) for name, (_, code) in made.items()]
    missing, bare = (folder / "missing", ExitCode.NOT_FOUND), folder / "bare"
    bare.mkdir()
    return [*found, missing, (bare, ExitCode.UNRECOGNIZED_FORMAT)]


@pytest.mark.parametrize("command", ["report", "info", "kernels", "layers", "save"])
def test_bad_input_is_one_line_and_a_code_of_its_own(
    run: Run, tmp_path: Path, command: str
) -> None:
    for file, code in files(tmp_path):
        more = ["-o", tmp_path / "out"] if command == "save" else []
        result = run(command, file, *more)
        assert result.exit_code == code
        assert result.stdout == ""
        assert result.stderr.startswith("traceana: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.stderr


def test_a_hostile_file_name_steers_nothing(run: Run, tmp_path: Path) -> None:
    result = run("report", tmp_path / "\x1b[2J\nfake")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--step", "9"], ExitCode.EMPTY_SELECTION),
        (["--device", "cpu"], ExitCode.EMPTY_SELECTION),
        (["--sort", "flops"], ExitCode.EMPTY_SELECTION),
        (["--step", "x"], ExitCode.USAGE),
        (["--step", "5-3"], ExitCode.USAGE),
        (["--device", "1,,2"], ExitCode.USAGE),
        (["--limit", "-1"], ExitCode.USAGE),
        (["--format", "xml"], ExitCode.USAGE),
        (["--format", "parquet"], ExitCode.USAGE),
        (["--no-such-option"], ExitCode.USAGE),
    ],
)
def test_wrong_options(run: Run, bundle: Path, words: list[str], code: ExitCode) -> None:
    result = run("kernels", bundle, *words)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_invalid_rules_are_an_error(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("this is no TOML [", encoding="utf-8")
    result = run("classify", "k", "--rules", rules)
    assert result.exit_code == ExitCode.INVALID_FILE
    assert result.stderr.startswith("traceana: ")


def test_a_fault_of_ours_is_one_line_and_a_traceback_only_on_demand(
    run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(report_page, "overview", broken)
    result = run("report", bundle)
    assert result.exit_code == ExitCode.INTERNAL
    assert result.stderr.count("\n") == 1
    assert "internal error" in result.stderr
    assert r"ZeroDivisionError: by\nzero" in result.stderr
    assert isinstance(run("--debug", "report", bundle).exception, ZeroDivisionError)


def test_an_interrupt_has_its_code(run: Run, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report_page, "overview", interrupted)
    result = run("report", bundle)
    assert result.exit_code == ExitCode.INTERRUPTED
    assert result.stderr == "traceana: interrupted\n"


def test_json_of_an_empty_trace_has_the_reason(run: Run, tmp_path: Path) -> None:
    from tests.support.traces import TraceBuilder

    empty = TraceBuilder().build().save(tmp_path / "empty")
    for command in ("report", "kernels", "layers"):
        result = run(command, empty, "--format", "json")
        assert result.exit_code == ExitCode.EMPTY_SELECTION
        assert json.loads(result.stdout)["rows"] == []
        assert "no device activities in the file" in json.loads(result.stdout)["meta"]["notes"]


@pytest.mark.parametrize("command", ["info", "report", "kernels", "layers", "flops", "transfers"])
def test_every_command_refuses_an_unreadable_layer_manifest(
    run: Run, bundle: Path, tmp_path: Path, command: str
) -> None:
    damaged = tmp_path / "damaged.layers.json"
    damaged.write_text("[]", encoding="utf-8")
    for model in (damaged, tmp_path / "missing.layers.json"):
        result = run(command, bundle, "--model", model)
        assert result.exit_code == run("layers", bundle, "--model", model).exit_code != 0
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1


def test_the_peaks_of_this_cpu_are_of_no_use_for_another_device(run: Run, bundle: Path) -> None:
    result = run("layers", bundle, "--calibrate")
    assert result.exit_code == ExitCode.USAGE
    assert "applies to CPU traces only" in " ".join(result.stderr.replace("│", " ").split())
