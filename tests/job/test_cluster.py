"""A Dask scheduler and its workers, as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from tests.job.jobs import Job, even
from tests.support.command_line import Run
from traceana.errors import ExitCode
from traceana.job import tasks
from traceana.job.rank_summary import read_facts

pytest.importorskip("distributed")

QUIET = {
    "POLARS_MAX_THREADS": "1",
    # Else each process looks a hundred times a second at what its threads are doing.
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "10s",
}


class Cluster:
    """A scheduler on a free port and its workers, with a nanny that starts them again."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.file = folder / "scheduler.json"
        self._folder = folder
        self._processes = [self._start("distributed.cli.dask_scheduler", "--port", "0")]
        wait_until(self.file.exists)

    def _start(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{module}-{time.monotonic_ns()}.log").open("wb")
        command = [sys.executable, "-m", module, "--scheduler-file", str(self.file), *words]
        with log:
            return subprocess.Popen(
                [*command, "--no-dashboard"], stdout=log, stderr=log, env={**os.environ, **QUIET}
            )

    def add_workers(self, count: int) -> None:
        # One nanny for all of them: it imports as much as a worker does.
        own = ("--nworkers", str(count), "--nthreads", "1", "--local-directory", str(self._folder))
        self._processes.append(self._start("distributed.cli.dask_worker", *own))

    def end(self) -> None:
        # Workers first: without a scheduler they look for it as long as they may.
        for part in (self._processes[1:], self._processes[:1]):
            for one in part:
                one.terminate()
            for one in part:
                one.wait(timeout=30)

    def end_scheduler(self) -> None:
        self._processes[0].kill()

    def workers(self) -> list[int]:
        """Return the processes that run tasks: the children of the nannies."""
        below = [
            child
            for nanny in self._processes[1:]
            for child in psutil.Process(nanny.pid).children(recursive=True)
        ]
        return [one.pid for one in below if any("spawn_main" in word for word in one.cmdline())]


def wait_until(done: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    for one in made:
        one.end()


@pytest.fixture
def cluster(clusters: list[Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Return that of the test before, unless that ended its scheduler."""
    if not clusters:
        clusters.append(Cluster(tmp_path_factory.mktemp("dask") / "own"))
        clusters[0].add_workers(2)
    return clusters[0]


def command(job: Path, keep: Path, *words: object) -> list[str]:
    given = ("ranks", job, "-f", "json", "--keep", keep, *words)
    return [sys.executable, "-m", "traceana", *map(str, given)]


def here(run: Run, job: Path, keep: Path) -> bytes:
    """Return what is printed where no scheduler is given."""
    found = run("ranks", job, "-f", "json", "--keep", keep, "--workers", 1)
    assert found.exit_code == 0, found.stderr
    return found.stdout_bytes


@pytest.mark.slow
def test_the_workers_of_a_scheduler_give_the_same_bytes(
    cluster: Cluster, tmp_path: Path, run: Run
) -> None:
    files = Job(even(5, 8, 1)).write(tmp_path / "job")
    files[3].write_bytes(b"{")
    plain = here(run, tmp_path / "job", tmp_path / "a")
    there = run(
        *("ranks", tmp_path / "job", "-f", "json", "--keep", tmp_path / "b"),
        *("--scheduler", cluster.file),
    )
    assert there.exit_code == 0
    assert there.stdout_bytes == plain
    of = "--shard", "1/2", "--keep", tmp_path / "c", "--scheduler", cluster.file
    assert run("ranks", tmp_path / "job", *of).exit_code == 0
    assert len(list((tmp_path / "c").iterdir())) == 3


@pytest.mark.exhaustive
def test_workers_that_are_killed_change_nothing(cluster: Cluster, tmp_path: Path, run: Run) -> None:
    Job(even(6, 40, 1)).write(tmp_path / "job")
    plain = here(run, tmp_path / "job", tmp_path / "a")
    words = command(tmp_path / "job", tmp_path / "b", "--scheduler", cluster.file)
    running = subprocess.Popen(words, stdout=subprocess.PIPE)
    wait_until(lambda: (tmp_path / "b").exists() and len(list((tmp_path / "b").iterdir())) > 0)
    killed = cluster.workers()[:1]
    for one in killed:
        os.kill(one, signal.SIGKILL)
    output, _ = running.communicate(timeout=120)
    assert killed
    assert running.returncode == 0
    assert output == plain


@pytest.mark.exhaustive
def test_a_rank_that_ends_its_workers_is_named_and_the_others_are_read(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Job(even(4, 8, 1)).write(tmp_path / "job")
    submitted = tasks._submitted

    def submitted_or_dying(pool: Any, file: Any, reading: Any, targets: Any) -> Any:
        if file == files[1]:
            return pool.submit(os.abort)
        return submitted(pool, file, reading, targets)

    monkeypatch.setattr(tasks, "_submitted", submitted_or_dying)
    with closing(tasks.Cluster(str(cluster.file))) as engine:
        kept = tasks.kept_or_read(
            files, tasks.Reading(), tmp_path / "kept", engine, lambda done, of: None
        )
    facts = [read_facts(of_file.folders[0]) for of_file in kept]
    assert [of_file.file for of_file in kept] == [str(file) for file in files]
    reasons = [None if summary is None else summary.reason for summary in facts]
    assert reasons == ["", "its process was ended twice: out of memory?", "", ""]


@pytest.mark.exhaustive
def test_a_scheduler_that_does_not_answer_is_one_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_WAIT_S", 1)
    Job(even(1, 2, 1)).write(tmp_path / "job")
    found = run("ranks", tmp_path / "job", "--scheduler", "tcp://127.0.0.1:1")
    assert found.exit_code == ExitCode.MISSING_DEPENDENCY
    assert found.stderr == (
        "traceana: no Dask scheduler at tcp://127.0.0.1:1: give tcp://host:port of one that runs, "
        "or its scheduler file\n"
    )
    alone = Cluster(tmp_path / "alone")
    try:
        found = run("ranks", tmp_path / "job", "--scheduler", alone.file)
    finally:
        alone.end()
    assert found.exit_code == ExitCode.MISSING_DEPENDENCY
    assert "has no workers: start some with dask worker" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.exhaustive
def test_a_scheduler_that_goes_away_is_one_line_and_the_next_run_goes_on(
    cluster: Cluster, clusters: list[Cluster], tmp_path: Path, run: Run
) -> None:
    Job(even(8, 12, 1)).write(tmp_path / "job")
    keep = tmp_path / "kept"
    words = command(tmp_path / "job", keep, "--scheduler", cluster.file)
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    running = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        wait_until(lambda: any(keep.glob("*/whole")))
        cluster.end_scheduler()
        output, error = running.communicate(timeout=120)
    finally:
        clusters.remove(cluster)
        cluster.end()
    assert (running.returncode, output) == (ExitCode.MISSING_DEPENDENCY, "")
    assert error.splitlines() == [
        f"traceana: the Dask scheduler at {cluster.file} went away: the same command goes on with "
        "the ranks that are left"
    ]
    whole = here(run, tmp_path / "job", keep)
    assert here(run, tmp_path / "job", tmp_path / "fresh") == whole
