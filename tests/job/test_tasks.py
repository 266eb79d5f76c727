"""Tasks of the ranks: processes that are killed, and the number of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.job.jobs import Job, even
from tests.support.command_line import Run
from traceana.job import tasks
from traceana.job.tasks import Processes, Reading, default_workers, identity

CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


def readers(process: int) -> list[int]:
    """Return the processes that ``process`` reads with."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.exhaustive
def test_a_plain_script_may_call_it(tmp_path: Path) -> None:
    """Its processes must not run the script again, which has no ``if __name__ == "__main__"``."""
    Job(even(2, 6, 1)).write(tmp_path / "job")
    script = tmp_path / "mine.py"
    words = f"{str(tmp_path / 'job')!r}, keep={str(tmp_path / 'kept')!r}, workers=2"
    script.write_text(f"import traceana\nprint(*traceana.ranks({words}).frame['status'])\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("ok ok\n", "")


@pytest.mark.exhaustive
@pytest.mark.skipif(not CHILDREN.exists(), reason="the system does not list processes")
def test_processes_that_are_killed_change_nothing(tmp_path: Path, run: Run) -> None:
    """Some are killed at random moments; the answer is that of a run in which none is."""
    Job(even(4, 40, 1)).write(tmp_path / "job")
    words = ["ranks", str(tmp_path / "job"), "-f", "json", "--keep"]
    plain = run(*words, tmp_path / "a", "--workers", 1)
    assert plain.exit_code == 0
    command = [sys.executable, "-m", "traceana", *words, str(tmp_path / "b"), "--workers", "2"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    killed, end = 0, time.monotonic() + 60
    while killed < 2 and running.poll() is None and time.monotonic() < end:
        time.sleep(0.4)
        for reader in readers(running.pid)[:1]:
            os.kill(reader, signal.SIGKILL)
            killed += 1
    output, _ = running.communicate(timeout=120)
    assert killed
    assert running.returncode == 0
    assert output == plain.stdout_bytes


@pytest.mark.slow
@pytest.mark.skipif(not CHILDREN.exists(), reason="the system does not list processes")
def test_an_interrupt_ends_all_processes_with_one_line(tmp_path: Path) -> None:
    Job(even(8, 40, 1)).write(tmp_path / "job")
    command = [sys.executable, "-m", "traceana", "ranks", str(tmp_path / "job"), "--workers", "2"]
    running = subprocess.Popen(
        [*command, "--keep", str(tmp_path / "kept")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not any((tmp_path / "kept").glob("*/whole")) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    output, error = running.communicate(timeout=60)
    assert (running.returncode, output, error) == (130, "", "traceana: interrupted\n")


def test_a_file_whose_process_dies_twice_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Job(even(2, 4, 1)).write(tmp_path / "job")
    monkeypatch.setattr(tasks, "_submitted", _dying_at(files[1]))
    kept = tasks.kept_or_read(
        files, Reading(), tmp_path / "kept", Processes(1), lambda done, of: None
    )
    from traceana.job.rank_summary import read_facts

    reasons = [read_facts(one.folders[0]).reason for one in kept]  # type: ignore[union-attr]
    assert reasons == ["", "its process was ended twice: out of memory?"]


def _dying_at(file: Path):  # type: ignore[no-untyped-def]
    submitted = tasks._submitted

    def of(pool, one, reading, targets):  # type: ignore[no-untyped-def]
        return pool.submit(os.abort) if one == file else submitted(pool, one, reading, targets)

    return of


def test_what_is_kept_is_of_the_file_and_of_how_it_is_read(tmp_path: Path) -> None:
    (file,) = Job(even(1, 2, 1)).write(tmp_path / "job")
    first = identity(file, Reading())
    assert identity(file, Reading()) == first
    assert identity(file, Reading(step_marker="x")) != first
    rules = tmp_path / "rules.toml"
    rules.write_text("")
    of_rules = identity(file, Reading(rules=str(rules)))
    rules.write_text("# other")
    assert len({identity(file, Reading(rules=str(rules))), of_rules, first}) == 3
    file.write_text(file.read_text() + " ")
    assert identity(file, Reading()) != first


def test_as_many_processes_as_cores_and_memory_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Job(even(4, 2, 1)).write(tmp_path / "job")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    for free, workers in ((10**12, 4), (2 * 10**9, 3), (10**8, 1)):
        sizes = {"SC_PAGE_SIZE": 1, "SC_AVPHYS_PAGES": free}
        monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
        assert default_workers(files) == workers
    assert default_workers([]) == 1
