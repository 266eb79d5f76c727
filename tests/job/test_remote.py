"""Ranks at URLs: a real S3 interface (moto's server) and a web server on this machine."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.job.jobs import Job, even
from tests.support.command_line import Run
from traceana.errors import ExitCode, TraceanaError
from traceana.job import tasks
from traceana.job.sources import Remote, fetched, is_url, sources

pytestmark = pytest.mark.usefixtures("in_threads")

pytest.importorskip("obstore")
boto3 = pytest.importorskip("boto3")
RANKS = 5


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@contextmanager
def server(**environment: str) -> Iterator[str]:
    """Give the address of a server with the interface of S3."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env={**os.environ, **environment}, **silent) as running:  # type: ignore[call-overload]
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as made:
                if made.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with server() as address:
        yield address


@pytest.fixture
def credentials(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "own",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote") / "job"
    Job(even(RANKS, 6, 1)).write(folder)
    return folder


@pytest.fixture(scope="module")
def bucket(endpoint: str, job: Path) -> str:
    """Return the folder of a bucket that holds the job, and a file that is no trace."""
    own = {"aws_access_key_id": "own", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **own)
    client.create_bucket(Bucket="runs")
    for file in job.iterdir():
        client.put_object(Bucket="runs", Key=f"today/{file.name}", Body=file.read_bytes())
    client.put_object(Bucket="runs", Key="today/README.txt", Body=b"made by a test")
    return "s3://runs/today/"


def document(run: Run, *words: object) -> Any:
    result = run("ranks", *words, "-f", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("credentials")
def test_ranks_in_a_bucket_have_the_rows_that_their_files_have(
    bucket: str, job: Path, tmp_path: Path, run: Run
) -> None:
    there = document(run, bucket, "--keep", tmp_path / "a")
    here = document(run, job, "--keep", tmp_path / "b")
    rows = {row["rank"]: row for row in there["rows"]}
    assert {row["status"] for row in rows.values()} == {"ok"}
    for row in here["rows"]:
        assert rows[row["rank"]] == {**row, "file": f"{bucket}rank{row['rank']}.json"}
    for name in ("stragglers", "collectives"):
        assert there["sections"][name] == here["sections"][name]
    (of_bucket,) = (one for one in sources([bucket.removesuffix("/today/")]) if "rank3" in str(one))
    assert str(of_bucket) == f"{bucket}rank3.json"
    patterned = document(run, f"{bucket}rank[2-4].json", "--keep", tmp_path / "a")
    read = [row["rank"] for row in patterned["rows"] if row["status"] == "ok"]
    assert sorted(read) == [2, 3, 4]


@pytest.mark.usefixtures("credentials")
def test_what_is_in_the_bucket_is_fetched_again_only_where_it_has_changed(
    bucket: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = f"{bucket}rank4.json"
    document(run, one, "--keep", tmp_path / "kept")
    monkeypatch.setattr(tasks, "fetched", lambda source: pytest.fail(f"{source} fetched"))
    document(run, one, "--keep", tmp_path / "kept")
    (known,) = sources([one])
    assert isinstance(known, Remote)
    with pytest.raises(TraceanaError, match="has changed"), fetched(Remote(one, known.size, "x")):
        pass


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("s3://runs/today/none.json", ExitCode.NOT_FOUND, "does not exist"),
        ("s3://runs/yesterday/", ExitCode.NOT_FOUND, "no traces there, of 0 objects"),
        ("s3://runs/today/*.csv", ExitCode.NOT_FOUND, "no traces there, of 6 objects"),
        (
            "s3://nowhere/today/",
            ExitCode.NOT_FOUND,
            "s3://nowhere/today/: Server returned non-2xx status code: 404 Not Found: "
            "NoSuchBucket: The specified bucket does not exist\n",
        ),
        ("ftp://runs/today/", ExitCode.NOT_FOUND, "a URL that is read begins with s3://"),
    ],
)
def test_what_is_not_there_is_one_line(
    bucket: str, run: Run, url: str, code: ExitCode, says: str
) -> None:
    found = run("ranks", url)
    assert found.exit_code == code
    assert says in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.usefixtures("credentials")
def test_wrong_credentials_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(INITIAL_NO_AUTH_ACTION_COUNT="0") as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        found = run("ranks", "s3://runs/today/")
    assert found.exit_code == ExitCode.NOT_FOUND
    assert "s3://runs/today/: access denied" in found.stderr
    assert "InvalidAccessKeyId" in found.stderr
    assert found.stderr.count("\n") == 1


class Broken(http.server.SimpleHTTPRequestHandler):
    """Serves files; of those in ``cut`` it sends a part, and refuses those in ``secret``."""

    def do_HEAD(self) -> None:
        if "secret" in self.path:
            self.send_error(403)
        else:
            super().do_HEAD()

    def do_GET(self) -> None:
        if "cut" not in self.path:
            super().do_GET()
            return
        known = Path(self.translate_path(self.path)).stat()
        self.send_response(200)
        self.send_header("Content-Length", str(known.st_size))
        self.send_header("Last-Modified", self.date_time_string(int(known.st_mtime)))
        self.end_headers()
        self.wfile.write(b"{" * (known.st_size // 2))
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    handler = partial(Broken, directory=str(tmp_path / "web"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_connection_that_is_cut_is_a_rank_that_is_not_read(
    web: str, tmp_path: Path, run: Run
) -> None:
    files = Job(even(3, 4, 1)).write(tmp_path / "web")
    files[1].rename(files[1].with_name("cut-rank1.json"))
    urls = [f"{web}/{name}" for name in ("rank0.json", "cut-rank1.json", "rank2.json")]
    found = document(run, *urls, "--keep", tmp_path / "kept")
    rows = {row["rank"]: row for row in found["rows"]}
    assert [rows[rank]["status"] for rank in range(3)] == ["ok", "not read", "ok"]
    assert rows[1]["reason"].startswith(f"{urls[1]}: ")
    assert "\n" not in rows[1]["reason"]
    strict = run("ranks", *urls, "--keep", tmp_path / "kept", "--strict")
    assert strict.exit_code == ExitCode.DAMAGED_INPUT


def test_access_that_is_denied_says_so(web: str, tmp_path: Path, run: Run) -> None:
    Job(even(1, 2, 1)).write(tmp_path / "web")
    found = run("ranks", f"{web}/secret-rank0.json")
    assert found.exit_code == ExitCode.NOT_FOUND
    assert "access denied" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.slow
def test_paths_are_no_urls() -> None:
    assert is_url("s3://bucket/key")
    assert is_url("https://host/file.json")
    for path in ("folder/file.json", "/tmp/a:b", "C:\\traces", Path("s3://bucket")):
        assert not is_url(path)
