"""``--quiet`` and ``--verbose``, which every command has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.command_line import Run
from traceana.errors import ExitCode


@pytest.fixture
def noted(bundle: Path, tmp_path: Path) -> list[str | Path]:
    """Return the words of a command that prints a note: a layer manifest that is damaged."""
    trace = tmp_path / "cnn"
    trace.symlink_to(bundle)
    (tmp_path / "cnn.layers.json").write_text("{}")
    return ["report", trace]


def test_quiet_leaves_out_notes_and_keeps_results_and_errors(
    run: Run, noted: list[str | Path], tmp_path: Path
) -> None:
    loud = run(*noted)
    assert "manifest ignored" in loud.stderr
    quiet = run(*noted, "--quiet")
    assert (quiet.exit_code, quiet.stderr, quiet.stdout) == (ExitCode.OK, "", loud.stdout)
    assert "manifest ignored" in run(*noted).stderr, "the choice is of one command"
    failed = run("report", tmp_path / "absent", "-q")
    assert failed.exit_code == ExitCode.NOT_FOUND
    assert "absent" in failed.stderr


def test_verbose_has_phases_reader_and_ledger(run: Run, problematic: Path) -> None:
    plain = run("report", problematic)
    found = run("report", problematic, "-v")
    assert found.stdout == plain.stdout
    assert re.search(r"^traceana: \d+\.\d\d s reading ", found.stderr, re.MULTILINE)
    assert "traceana: format kineto" in found.stderr
    assert "problem: 1,200 no_launch in activities" in found.stderr
    assert re.search(r"^traceana: \d+\.\d\d s in all$", found.stderr, re.MULTILINE)


def test_both_contradict(run: Run, bundle: Path) -> None:
    result = run("report", bundle, "-q", "-v")
    assert result.exit_code == ExitCode.USAGE
