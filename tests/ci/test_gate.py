"""The gates of continuous integration: the script, and the shell lines of action and job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.synthetic import Scenario, write_kineto

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
    words: list[str | Path], folder: Path, first: Path | None = None, /, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``words`` in ``folder`` with the programs of this Python, after those of ``first``."""
    folders = [*([] if first is None else [first]), Path(sys.executable).parent, os.environ["PATH"]]
    path = os.pathsep.join(map(str, folders))
    given = {**os.environ, "PATH": path, **variables}
    return subprocess.run(words, cwd=folder, env=given, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
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


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
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


STUBS: Final = {
    "git": 'for last; do :; done; ln -s "$CHECKOUT" "$last"',
    "python": "",
    "curl": "",
    "traceana": """case " $* " in
  *gate.md*) echo compared > gate/gate.md; exit "$DIFF" ;;
  *gate.html*) echo "<!doctype html>" > gate/gate.html ;;
  *) exit "$ADVISE" ;;
esac""",
}
"""Programs in place of those that the job of GitLab starts. Each writes its arguments to the file
``calls``."""


def job_of_gitlab(folder: Path, *real: str, **variables: str) -> tuple[int, list[str]]:
    """Return the exit code of the job in ``folder``, and the calls of all but ``real`` programs."""
    job = loaded(ROOT / "ci" / "gitlab.yml")[".traceana-gate"]
    programs, work = folder / "programs", folder / "work"
    programs.mkdir()
    work.mkdir()
    for name in STUBS.keys() - {*real}:
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> calls\n{STUBS[name]}\n')
        (programs / name).chmod(0o755)
    given = {
        **job["variables"], "CHECKOUT": str(ROOT), "DIFF": "0", "ADVISE": "0",
        "TRACE": "run", "BASELINE": "base", **variables,
    }  # fmt: skip
    # GitLab's shell of the script is not that of what comes after it.
    code, after = (
        shell(["sh", "-e", "-c", "\n".join(job[part])], work, programs, **given).returncode
        for part in ("script", "after_script")
    )
    assert not after
    assert job["artifacts"]["paths"] == [f"{given['OUTPUT']}/"]
    assert {path.name for path in (work / "gate").iterdir()} == {"gate.md", "gate.html"}
    return code, (work / "calls").read_text("utf-8").splitlines()


@pytest.mark.exhaustive
def test_the_job_of_gitlab(traces: tuple[Path, Path], tmp_path: Path) -> None:
    """It fails by the second limit, and has compared before."""
    trace, baseline = map(str, traces)
    given = {"TRACE": trace, "BASELINE": baseline, "MAX": "unclassified=10% idle=0.0001%"}
    code, calls = job_of_gitlab(tmp_path, "traceana", MAX_SLOWDOWN="100%", **given)
    assert code == GATE_FAILED
    source = "clone --quiet --depth 1 ${CI_SERVER_PROTOCOL}://gitlab-ci-token:${CI_JOB_TOKEN}@"
    assert calls[0].startswith(f"git {source}")
    assert calls[1:] == ["python -m pip install --quiet ./.traceana-gate[html]"]


@pytest.mark.parametrize(
    ("given", "code", "advise"),
    [
        ({}, 0, "advise run --max unclassified=10%"),
        (
            {"MAX": "unclassified=10% idle=50%", "FAIL_ON": "host_bound"},
            0,
            "advise run --fail-on host_bound --max unclassified=10% --max idle=50%",
        ),
        ({"MAX": ""}, 0, None),
        ({"ADVISE": "31"}, GATE_FAILED, "advise run --max unclassified=10%"),
        # A slower step is found, and the limits are checked as well.
        ({"DIFF": "31"}, GATE_FAILED, "advise run --max unclassified=10%"),
    ],
    ids=["passes", "limits", "no limits", "a limit fails", "slower"],
)
def test_the_gates_of_gitlab(
    tmp_path: Path, given: dict[str, str], code: int, advise: str | None
) -> None:
    got, calls = job_of_gitlab(tmp_path, **given)
    diff = "traceana diff base run"
    assert got == code
    assert [one for one in calls if one.startswith("traceana")] == [
        f"{diff} --fail-if-slower 3% -o gate/gate.md --force",
        f"{diff} -o gate/gate.html --force",
        *([] if advise is None else [f"traceana {advise}"]),
    ]
    assert not any(one.startswith("curl") for one in calls)


def test_the_comment_of_gitlab(tmp_path: Path) -> None:
    """Its token and the numbers of the merge request are variables of the pipeline."""
    given = {
        "TRACEANA_TOKEN": "secret", "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_PROJECT_ID": "12", "CI_API_V4_URL": "https://gitlab.example/api/v4",
    }  # fmt: skip
    code, calls = job_of_gitlab(tmp_path, DIFF="31", **given)
    assert code == GATE_FAILED
    assert calls[-1].startswith("curl --fail ")
    assert calls[-1].endswith(
        "--header PRIVATE-TOKEN: secret --data-urlencode body@gate/gate.md "
        "https://gitlab.example/api/v4/projects/12/merge_requests/7/notes"
    )
