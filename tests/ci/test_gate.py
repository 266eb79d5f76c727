"""The gates of continuous integration: the script, and the shell lines of action and job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final, cast

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
    "traceana": """case " $* " in
  *gate.md*) echo compared > gate/gate.md; exit "$DIFF" ;;
  *comment.md*) echo commented > gate/comment.md; exit "$DIFF" ;;
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
    assert {path.name for path in (work / "gate").iterdir()} == {
        *("gate.md", "comment.md", "gate.html")
    }
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
        f"{diff} --comment --fail-if-slower 3% -o gate/comment.md --force",
        f"{diff} -o gate/gate.html --force",
        *([] if advise is None else [f"traceana {advise}"]),
    ]
    assert not any("comment.py" in one for one in calls)


def test_the_comment_of_gitlab(tmp_path: Path) -> None:
    """Its token and the numbers of the merge request are variables of the pipeline."""
    given = {
        "TRACEANA_TOKEN": "secret", "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_PROJECT_ID": "12", "CI_API_V4_URL": "https://gitlab.example/api/v4",
    }  # fmt: skip
    code, calls = job_of_gitlab(tmp_path, DIFF="31", **given)
    assert code == GATE_FAILED
    assert calls[-1] == "python .traceana-gate/ci/comment.py gate/comment.md"


class Server(ThreadingHTTPServer):
    """Keeps comments as GitHub and GitLab do, by their paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments: list[dict[str, Any]] = [
            {"id": number, "body": f"<!-- other --> {number}"} for number in range(120)
        ]
        self.asked: list[tuple[str, str, str]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def answer(self) -> None:
        server = cast("Server", self.server)
        token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
        path, _, query = self.path.partition("?")
        server.asked.append((self.command, path, token))
        size = int(self.headers.get("Content-Length") or 0)
        given: dict[str, Any] = json.loads(self.rfile.read(size)) if size else {}
        answer: Any = {}
        if self.command == "GET":
            page = int(query.rpartition("page=")[2]) - 1
            answer = server.comments[100 * page : 100 * page + 100]
        elif self.command == "POST":
            server.comments.append({"id": 1_000 + len(server.comments), **given})
        else:
            number = int(path.rpartition("/")[2])
            (kept,) = (one for one in server.comments if one["id"] == number)
            kept.update(given)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("host", ["github", "gitlab"])
def test_a_comment_is_written_once_and_updated(server: Server, tmp_path: Path, host: str) -> None:
    api = f"http://127.0.0.1:{server.server_port}"
    given = {
        "github": {
            "GH_TOKEN": "secret", "REPOSITORY": "o/r", "PULL_REQUEST": "7", "GITHUB_API_URL": api,
        },
        "gitlab": {
            "TRACEANA_TOKEN": "secret", "CI_API_V4_URL": f"{api}/api/v4",
            "CI_MERGE_REQUEST_PROJECT_ID": "12", "CI_MERGE_REQUEST_IID": "7", "PULL_REQUEST": "",
        },
    }[host]  # fmt: skip
    words: list[str | Path] = [sys.executable, ROOT / "ci" / "comment.py", "comment.md"]
    for text in ("# Slower: <b>\n", "# Faster\n"):
        (tmp_path / "comment.md").write_text(text, "utf-8")
        result = shell(words, tmp_path, **given)
        assert result.returncode == 0, result.stderr
        assert server.comments[-1]["body"] == f"<!-- traceana: gate -->\n{text}"
        assert len(server.comments) == 121
    method, path, token = server.asked[-1]
    assert "secret" in token
    assert (method, path) == {
        "github": ("PATCH", "/repos/o/r/issues/comments/1120"),
        "gitlab": ("PUT", "/api/v4/projects/12/merge_requests/7/notes/1120"),
    }[host]
    shell(words, tmp_path, **given, COMMENT_NAME="other gate")
    assert len(server.comments) == 122


def test_a_comment_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    words: list[str | Path] = [sys.executable, ROOT / "ci" / "comment.py", "comment.md"]
    missing = shell(words, tmp_path, PULL_REQUEST="7", REPOSITORY="o/r", GH_TOKEN="x")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    (tmp_path / "comment.md").write_text("text")
    unset = shell(words, tmp_path, PULL_REQUEST="7")
    assert (unset.returncode, unset.stderr) == (1, "comment not written: set REPOSITORY\n")
    given = {"PULL_REQUEST": "7", "REPOSITORY": "o/r", "GH_TOKEN": "x"}
    no_web = shell(words, tmp_path, **given, GITHUB_API_URL="file:///etc")
    assert no_web.returncode == 1
    assert "is not a web address" in no_web.stderr
