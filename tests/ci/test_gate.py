"""The gates of continuous integration: the script, and the shell lines of action and job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.synthetic import Scenario, write_kineto

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GATE_FAILED = 31


def written(path: Path, kernel: int) -> Path:
    """Write a trace of twelve steps that wait for a kernel of ``kernel`` ns."""
    run = Scenario()
    at = 0
    for number in range(12):
        end = at + kernel + 1_000 + number % 3
        run.step(number, at, end)
        run.operator("aten::mm", at + 50, at + 400)
        run.launch(at=at + 100, begins=at + 300, duration=kernel)
        run.sync(at + 420, end - 100, "stream", stream=7)
        at = end
    return write_kineto(run, path)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("traces")
    return written(folder / "fast run.json", 100_000), written(folder / "slow run.json", 130_000)


def shell(
    words: list[str | Path], folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, **variables}
    return subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, check=False)


def test_the_script_fails_by_a_limit(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """That it fails where a trace is slower, and passes, is in the test of the action."""
    fast, slow = traces
    limits = {"MAX_SLOWDOWN": "100%", "MAX": "idle=0.0001%"}
    result = shell([ROOT / "ci" / "gate.sh", slow, fast], tmp_path, **limits)
    assert result.returncode == GATE_FAILED
    assert (tmp_path / "gate" / "gate.md").exists()


def test_the_script_without_a_baseline_checks_limits(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    result = shell([ROOT / "ci" / "gate.sh", traces[0]], tmp_path, MAX="idle=0.0001%")
    assert result.returncode == GATE_FAILED
    assert (tmp_path / "gate" / "gate.md").exists()


def test_an_error_is_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("nothing")
    result = shell(
        [ROOT / "ci" / "gate.sh", tmp_path / "bad.json", tmp_path / "bad.json"], tmp_path
    )
    assert result.returncode not in (0, GATE_FAILED)


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("order", "slowdown", "limits", "code"),
    [
        ((0, 1), "3%", "unclassified=10% idle=50%", 0),
        # What is not given is 3%.
        ((1, 0), "", "", GATE_FAILED),
    ],
    ids=["passes", "slower"],
)
def test_the_gate_of_the_action(
    traces: tuple[Path, Path],
    tmp_path: Path,
    order: tuple[int, int],
    slowdown: str,
    limits: str,
    code: int,
) -> None:
    (step,) = (
        one for one in loaded(ROOT / "action.yml")["runs"]["steps"] if one.get("id") == "gate"
    )
    trace, baseline = (str(traces[at]) for at in order)
    summary, outputs = tmp_path / "summary.md", tmp_path / "outputs"
    given = {
        "ACTION_PATH": str(ROOT), "TRACE": trace, "BASELINE": baseline,
        "MAX_SLOWDOWN": slowdown, "FAIL_ON": "", "MAX": limits, "OUTPUT": str(tmp_path / "out"),
        "GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary),
    }  # fmt: skip
    assert set(step["env"]) | {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"} == set(given)
    result = shell(["sh", "-e", "-c", step["run"]], tmp_path, **given)
    assert result.returncode == code, result.stderr
    assert outputs.read_text() == f"report={tmp_path / 'out'}\n"
    written_text = (tmp_path / "out" / "gate.md").read_text("utf-8")
    assert summary.read_text("utf-8") == written_text
    assert code or "faster" in written_text
    assert (tmp_path / "out" / "gate.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_inputs_of_the_action_are_used() -> None:
    action = loaded(ROOT / "action.yml")
    text = (ROOT / "action.yml").read_text("utf-8")
    assert all(f"inputs.{name} " in text for name in action["inputs"])


@pytest.mark.parametrize(("order", "code"), [((0, 1), GATE_FAILED), ((1, 0), 0)])
def test_the_job_of_gitlab(
    traces: tuple[Path, Path], tmp_path: Path, order: tuple[int, int], code: int
) -> None:
    job = loaded(ROOT / "ci" / "gitlab.yml")[".traceana-gate"]
    lines = [line for line in job["script"] if "pip install" not in line]
    assert len(lines) == len(job["script"]) - 1
    baseline, trace = (str(traces[at]) for at in order)
    given = {**job["variables"], "BASELINE": baseline, "TRACE": trace}
    result = shell(["sh", "-e", "-c", "\n".join(lines)], tmp_path, **given)
    assert result.returncode == code, result.stderr
    assert {path.name for path in (tmp_path / "gate").iterdir()} == {"gate.md", "gate.html"}
