"""Tasks of the ranks: processes that are killed, and the number of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.job.jobs import Job, even
from tests.support.command_line import Run
from traceana.job import tasks
from traceana.job.tasks import Processes, Reading, default_workers, identity, process_pool

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


Moment = Callable[[int, Path], bool]


def has_started(process: int, keep: Path) -> bool:
    """Return whether a reader is there, which has hardly imported anything."""
    return bool(readers(process))


def have_imported(process: int, keep: Path) -> bool:
    """Return whether all readers are importing what a task needs."""
    maps = [Path(f"/proc/{reader}/maps").read_text() for reader in readers(process)]
    return bool(maps) and all("polars" in text for text in maps)


def has_read(process: int, keep: Path) -> bool:
    """Return whether a file has been read, and others are being read."""
    return any(keep.glob("*/whole"))


@pytest.mark.slow
@pytest.mark.skipif(not CHILDREN.exists(), reason="the system does not list processes")
@pytest.mark.parametrize(
    ("number", "moment", "to_all", "is_background"),
    [
        (signal.SIGKILL, have_imported, False, False),
        (signal.SIGKILL, has_read, False, False),
        (signal.SIGINT, has_started, True, False),
        (signal.SIGINT, has_read, True, False),
        (signal.SIGINT, has_started, True, True),
        (signal.SIGINT, has_read, False, True),
        (signal.SIGTERM, has_read, True, True),
    ],
)
def test_readers_end_with_the_command_however_it_ends(
    tmp_path: Path, number: signal.Signals, moment: Moment, to_all: bool, is_background: bool
) -> None:
    """By Ctrl-C, which all processes get; by ``kill``; and behind ``&`` in a script, whose shell
    has the command ignore SIGINT."""
    Job(even(6, 60, 1)).write(tmp_path / "job")
    keep, scratch = tmp_path / "kept", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "traceana", "ranks", str(tmp_path / "job"), "--workers", "2"]
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN if is_background else signal.default_int_handler
    )
    try:
        running = subprocess.Popen(
            [*command, "--keep", str(keep), "-f", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: moment(running.pid, keep), 60)
    reading = [psutil.Process(reader) for reader in readers(running.pid)]
    assert reading
    (os.killpg if to_all else os.kill)(running.pid, number)
    # Waits for all that have its streams, the readers among them.
    output, error = running.communicate(timeout=10)
    wait_until(lambda: not any(map(is_alive, reading)), 2)
    if number == signal.SIGKILL:
        assert (running.returncode, output, error) == (-signal.SIGKILL, "", "")
    else:
        assert (running.returncode, output, error) == (130, "", "traceana: interrupted\n")
        assert [path.name for path in keep.glob(".*")] == []
    assert [*scratch.iterdir()] == []


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_task_that_does_not_come_to_its_exception_is_killed() -> None:
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), process_pool(1) as pool:
        assert pool.submit(int, "1").result() == 1
        # One call without end.
        pool.submit(re.fullmatch, "(a+)+b", "a" * 60)
        raise KeyboardInterrupt
    assert time.monotonic() - begin < 30


def end_in_a_callback() -> None:
    """Get SIGTERM where Python drops exceptions, and go on for a minute."""

    class Owner:
        pass

    owner = Owner()
    reference = weakref.ref(owner, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del owner
    time.sleep(60)
    assert reference() is None


def test_the_end_comes_again_where_a_callback_drops_it(capfd: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    with process_pool(1) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(end_in_a_callback).result()
    assert time.monotonic() - begin < 30
    assert capfd.readouterr().err == ""


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
