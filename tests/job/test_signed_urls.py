"""Signed URLs and URLs with a password: they are read, and no output shows what is secret."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli.test_hostile_text import hostile
from tests.job.jobs import Job, even
from tests.support.command_line import Run
from tests.support.every_command import COMMANDS, OF_TWO, printed_in
from traceana import errors, mcp_server
from traceana.errors import ExitCode
from traceana.plain_text import without_secrets
from traceana.runs.run_files import Profiler, Status
from traceana.runs.run_files import Run as RecordedRun

pytestmark = pytest.mark.usefixtures("in_threads")
pytest.importorskip("obstore")

SECRET = "s3cr3t"
QUERY = f"X-Amz-Credential=me%2F{SECRET}&X-Amz-Signature={SECRET}&X-Amz-Expires=60"


class Guarded(http.server.SimpleHTTPRequestHandler):
    """Serves files to a signed GET, or to a user with the password, and redirects ``/away/``."""

    def do_HEAD(self) -> None:
        self.send_error(403)

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if path.path.startswith("/away/"):
            self.send_response(302)
            host = f"localhost:{self.server.server_port}"  # type: ignore[attr-defined]
            self.send_header("Location", f"http://{host}{path.path[5:]}?{path.query}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        signed = parse_qs(path.query).get("X-Amz-Signature") == [SECRET]
        authorization = self.headers.get("Authorization")
        if (
            signed
            or authorization == f"Basic {base64.b64encode(b'me:' + SECRET.encode()).decode()}"
        ):
            super().do_GET()
        else:
            self.send_error(403, f"no access to {self.path}")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class WithPassword(Guarded):
    """Answers HEAD as well."""

    def do_HEAD(self) -> None:
        self.do_GET()


def serving(folder: Path, handler: type[Guarded]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    yield from serving(tmp_path / "web", Guarded)


@pytest.fixture
def web_with_password(tmp_path: Path) -> Iterator[str]:
    yield from serving(tmp_path / "web", WithPassword)


def test_signed_urls_are_read(web: str, tmp_path: Path, run: Run) -> None:
    Job(even(3, 4, 1)).write(tmp_path / "web" / "a b[1]")
    urls = [f"http://{web}/a%20b[1]/rank{rank}.json?{QUERY}" for rank in range(3)]
    result = run("ranks", *urls, "-f", "json", "--keep", tmp_path / "kept")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = json.loads(result.stdout)["rows"]
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert [row["file"] for row in rows] == [url.partition("?")[0] for url in urls]


def test_urls_with_a_password_are_read(web_with_password: str, tmp_path: Path, run: Run) -> None:
    Job(even(2, 4, 1)).write(tmp_path / "web")
    urls = [f"http://me:{SECRET}@{web_with_password}/rank{rank}.json" for rank in range(2)]
    result = run("ranks", *urls, "-f", "json", "--keep", tmp_path / "kept")
    assert (result.exit_code, result.stderr) == (0, "")
    assert {row["status"] for row in json.loads(result.stdout)["rows"]} == {"ok"}
    assert SECRET not in result.stdout


def test_a_redirect_to_another_host_is_said(web: str, tmp_path: Path, run: Run) -> None:
    Job(even(1, 4, 1)).write(tmp_path / "web")
    result = run("ranks", f"http://{web}/away/rank0.json?{QUERY}", "--keep", tmp_path / "kept")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == (
        f"traceana: http://{web}/away/rank0.json is redirected to another host: localhost\n"
    )


@pytest.mark.slow
def test_secrets_of_urls_are_not_shown(web: str, tmp_path: Path, run: Run) -> None:
    """In messages, reports of ranks, and every output of a trace that has URLs in its names."""
    Job(even(1, 4, 1)).write(tmp_path / "web")
    refused = (
        f"http://me:wrong{SECRET}@{web}/rank0.json",
        f"http://{web}/rank0.json?sig={SECRET}",
        f"ftp://me:{SECRET}@host/rank0.json",
    )
    for url in refused:
        result = run("ranks", url)
        assert result.exit_code == ExitCode.NOT_FOUND
        assert result.stderr.count("\n") == 1
        assert SECRET not in result.stderr
        assert "host" in result.stderr or web in result.stderr
        for command in ("report", "save", "history", "diff"):
            files = (url,) * (2 if command == "diff" else 1)
            output = ("-o", tmp_path / "out") if command == "save" else ()
            shown = run(command, *files, *output)
            assert shown.exit_code not in (0, ExitCode.INTERNAL)
            assert SECRET not in shown.output
    good = f"http://{web}/rank0.json?{QUERY}"
    for form in ("table", "json", "csv", "md", "html"):
        shown = run("ranks", good, "-f", form, "--keep", tmp_path / "kept")
        assert shown.exit_code == 0
        assert SECRET not in shown.output
        assert form not in ("json", "csv") or f"http://{web}/rank0.json" in shown.output
    merged = run("ranks", "--merge", tmp_path / "kept", "-f", "json")
    assert SECRET not in merged.output

    folder = tmp_path / "run"
    folder.mkdir()
    trace = folder / f"run.json?sig={SECRET}"
    trace.write_bytes(hostile(f" https://me:{SECRET}@host/x?{QUERY} "))
    seen = 0
    for command in COMMANDS:
        traces = (trace,) * (2 if command in OF_TWO else 1)
        for form, text in printed_in(("table", "md", "csv", "json"), command, *traces).items():
            assert SECRET not in text, (command, form)
            seen += "//host/x" in text
    assert seen > 50
    page = tmp_path / "out.html"
    assert run("report", trace, "-o", page).exit_code == 0
    assert SECRET not in page.read_text()
    (trace.parent / "traceana-run.json").write_bytes(_run_with_url(trace.name))
    for command in ("info", "report", "history"):
        for form in ("table", "json"):
            shown = run(command, folder, "-f", form)
            assert shown.exit_code in (0, ExitCode.DAMAGED_INPUT), shown.output
            assert SECRET not in shown.output, (command, form)
    answer = mcp_server.limited({"meta": {}, "rows": [{"name": good}]}, 10)
    assert SECRET not in answer
    assert SECRET not in str(errors.NotFoundError(f"{good} is gone"))


def _run_with_url(trace: str) -> bytes:
    import msgspec

    return msgspec.json.encode(
        RecordedRun(
            status=Status.COMPLETE,
            argv=("python", "train.py", f"--data=https://me:{SECRET}@host/x?{QUERY}"),
            profiler=Profiler.TORCH,
            traces=(trace,),
            started_at="2026-01-01T00:00:00Z",
        )
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x?sig=a%2Fb&y=1: gone", "https://h/x?sig=***&y=1: gone"),
        ("https:/u:p@h/x is no file", "https:/h/x is no file"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("C:/me@work/sig=1", "C:/me@work/sig=1"),
        ("gemm<token=1>, a@b", "gemm<token=1>, a@b"),
    ],
)  # fmt: skip
def test_only_secrets_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
