"""``--step-marker`` in every command that opens a trace, and its notes on the screens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Run
from traceana.errors import ExitCode

TRACE = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"
ONE = ["report", "info", "kernels", "layers", "flops", "transfers", "idle", "critical", "memory",
       "advise"]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundle of a trace whose steps ProfilerStep marks, beside ranges ``iteration``."""
    import traceana

    return traceana.open(TRACE).save(tmp_path_factory.mktemp("saved") / "alexnet")


@pytest.mark.parametrize("command", [*ONE, "save", "diff", "compare", "study"])
def test_a_marker_without_a_match_is_one_line_that_names_what_repeats(
    run: Run, saved: Path, tmp_path: Path, command: str
) -> None:
    words = {
        "save": ["save", saved, "-o", tmp_path / "out"],
        "diff": ["diff", saved, saved],
        "compare": ["compare", saved, saved],
        "study": ["study", "transfers", saved],
    }.get(command, [command, saved])
    result = run(*words, "--step-marker", "epoch")
    assert result.exit_code == ExitCode.EMPTY_SELECTION
    assert result.stderr.count("\n") == 1
    assert "'forward: relu' (21)" in result.stderr
    bad = run(*words, "--step-marker", "epoch (")
    assert bad.exit_code == ExitCode.USAGE
    assert (bad.stdout, bad.stderr.count("\n")) == ("", 1)
    assert "invalid regular expression" in bad.stderr


def test_screens_and_json_show_what_marked_the_steps(run: Run, saved: Path) -> None:
    assert "3 (2-4, ProfilerStep)" in run("report", saved).stdout
    again = run("report", saved, "--step-marker", "iteration").stdout
    assert "3 (0-2, iteration)" in again
    assert " median · " in again and " mean · " in again
    facts = json.loads(run("info", saved, "--step-marker", "Optimizer.step", "-f", "json").stdout)
    assert facts["step_marker"] == "Optimizer.step"
    assert facts["steps"] == 3
