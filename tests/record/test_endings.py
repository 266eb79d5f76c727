"""How a recording can end: no half of a run is ever taken for a whole one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.record.scripts import DOES_NOT_EXIT, SLEEPS, TORCH
from tests.support.command_line import Run as Command
from tests.support.frameworks import needs
from tests.support.manifest import FIXTURES
from tests.support.runs import write_run
from traceana.errors import CannotWriteError, ExitCode
from traceana.record import sweep
from traceana.record.child_process import Exit, run_child
from traceana.record.inside.process_report import EXITING
from traceana.record.outcome import Launch, ProcessReport, Raised
from traceana.record.partial_folder import PartialFolder, check_free, write_json
from traceana.record.programs import Script
from traceana.record.recording import Request, reason, why_unusable
from traceana.record.sweep import SweepRequest, record_sweep
from traceana.runs import RecordedRun, is_run, read_run
from traceana.runs.run_files import RUN_FILE, SWEEP_FILE, Axis, Point, Profiler, Status

Write = Callable[[str], Path]
PYTHON = (sys.executable, "-c")


def test_an_interrupt_before_the_wait_ends_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child may run, and be interrupted, before its recorder waits for it."""
    begun: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    try:
        assert run_child(Launch(words), tmp_path).interrupted
        assert begun[0].poll() is not None
    finally:
        begun[0].kill()
        begun[0].wait()


def test_a_process_that_does_not_exit_in_time_is_ended(tmp_path: Path) -> None:
    """It reports its exit, and goes on."""
    words = ["sh", "-c", f"touch {tmp_path}/{EXITING}$$; exec sleep 5"]
    assert run_child(Launch(words), tmp_path, 0.01) == Exit(-15, overdue=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_recording_leaves_nothing_and_no_child(
    number: signal.Signals, script: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "traceana", "record", "-o", str(folder)]
    process = subprocess.Popen(
        [*command, "--", sys.executable, str(script(SLEEPS))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run.partial"]
    # A terminal sends it to all processes of the group; SIGTERM is sent to one.
    (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
    _, stderr = process.communicate(timeout=60)
    # As the command would have ended.
    assert process.returncode == -number
    assert stderr.endswith(f"traceana: interrupted by {number.name}: nothing was recorded\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.frameworks
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("hangs", ["in a thread", "in the interpreter's end"])
def test_a_process_that_does_not_exit_is_ended_once_its_window_is_written(
    hangs: str, script: Write, tmp_path: Path
) -> None:
    needs("torch")
    command = [sys.executable, "-m", "traceana", "record", "--no-baseline", "--exit-timeout"]
    command += ["1", "--warm-up", "1", "--steps", "2", "-o", str(tmp_path / "run")]
    command += ["--stop"] if hangs == "in a thread" else []
    process = subprocess.Popen(
        [*command, "--", sys.executable, str(script(DOES_NOT_EXIT)), hangs],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    # A script that goes on after its window has all the time that it takes.
    assert ("goes on" in stdout) is (hangs != "in a thread")
    run = read_run(tmp_path / "run")
    assert (run.run.status, run.run.reason, run.run.traces) == (
        "complete",
        None,
        ("trace.json.gz",),
    )
    # Its own status is not known.
    assert run.run.exit_status is None
    note = "a process did not exit within 1 s (--exit-timeout) and was killed"
    assert note in run.run.notes
    environment = run.environment()
    assert environment is not None
    assert "torch" in environment.packages
    started = [line for line in stdout.splitlines() if line.isdecimal()]
    assert len(started) == (hangs == "in a thread")
    for one in started:
        # Ended as well; its parent may not have taken note of it.
        stat = Path("/proc", one, "stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


STREAM_ONLY = """#!/bin/sh
for word; do
  case $word in --output=*) : > "${word#--output=}.qdstrm";; esac
done
"""
LEAVES_NOTHING = """#!/bin/sh
echo "cannot begin"
exit 3
"""


@pytest.mark.parametrize(
    ("program", "message"),
    [(STREAM_ONLY, "its importer is missing"), (LEAVES_NOTHING, "exit status 3 (cannot begin)")],
)
def test_an_nsys_that_cannot_record_is_refused_before_the_command_runs(
    program: str, message: str, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(program)
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", str(nsys.parent))
    command = ("--", *PYTHON, f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = run("record", "--profiler", "nsys", "-o", tmp_path / "run", *command)
    assert done.exit_code == 51
    assert f"{nsys} cannot record" in done.stderr
    assert message in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


LATE = """#!/bin/sh
# It starts the command at its {trial}th trial only, after the test recording.
if [ "$1" = export ]; then for word; do
  case $word in --output=*) exec {copy} "${{word#--output=}}";; esac
done; fi
for word; do last=$word; done
if [ "$1" = profile ] && [ "$last" != true ]; then
  echo >> {trials}
  if [ "$({count} < {trials})" -lt {trial} ]; then
    echo "Connection to the Agent lost."
    exit {status}
  fi
fi
while [ "${{1#--}}" != "$1" ] || [ "$1" = profile ]; do
  case $1 in --output=*) : > "${{1#--output=}}.nsys-rep";; esac
  shift
done
exec "$@"
"""


@pytest.mark.parametrize(("trial", "status"), [(2, 0), (3, 1), (4, 0), (4, 1)])
def test_a_command_that_nsys_does_not_start_is_launched_again(
    trial: int, status: int, tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys, trials, ran = tmp_path / "bin" / "nsys", tmp_path / "trials", tmp_path / "ran"
    nsys.parent.mkdir()
    copy = f"{shutil.which('cp')} {FIXTURES / 'alexnet-cpu-nsys-2024.2.sqlite'}"
    values = {"trials": trials, "copy": copy, "count": f"{shutil.which('wc')} -l"}
    nsys.write_text(LATE.format(trial=trial, status=status, **values))
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:/bin:/usr/bin")
    command = ("--", *PYTHON, f"open({str(ran)!r}, 'a').write('once')")
    options = ("--profiler", "nsys", "--no-baseline", "-o", tmp_path / "run")
    done = run("record", *options, *command)
    assert len(trials.read_text()) == min(trial, 3)
    if trial > 3:
        assert done.exit_code == 51
        assert f"{nsys} failed 3 times before it started the command" in done.stderr
        assert not (tmp_path / "run").exists()
        assert not ran.exists()
    else:
        assert done.exit_code == 0, done.stderr
        assert (
            done.stderr.count("the profiler did not start the command: trying again") == trial - 1
        )
        assert ran.read_text() == "once"
        assert is_run(tmp_path / "run")


@pytest.mark.frameworks
@pytest.mark.exhaustive
def test_a_full_disk_leaves_nothing(script: Write, tmp_path: Path) -> None:
    needs("torch")
    unshare = shutil.which("unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=100k none {disk}"
    room = [str(unshare), "--mount", "--user", "--map-root-user", "sh", "-c"]
    if unshare is None or subprocess.run([*room, mount], check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    record = [sys.executable, "-m", "traceana", "record", "--no-baseline", "-o"]
    record += [str(disk / "run"), "--", sys.executable, str(script(TORCH))]
    done = subprocess.run(
        [*room, f'{mount} && "$@"; code=$?; ls -A {disk}; exit $code', "sh", *record],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 50, done.stderr
    assert "no space left for" in done.stderr
    assert done.stdout.splitlines() == ["trained"]


def test_a_failed_command_is_a_run_with_its_reason(tmp_path: Path, run: Command) -> None:
    done = run(
        "record", "-o", tmp_path / "run", "--", *PYTHON, "import os; os.kill(os.getpid(), 9)"
    )
    assert done.exit_code == 137
    made = read_run(tmp_path / "run").run
    assert (made.status, made.reason, made.exit_status) == ("failed", "signal SIGKILL", -9)
    again = run("report", tmp_path / "run")
    assert again.exit_code == 20
    assert "the run failed (signal SIGKILL)" in again.stderr


def raised(kind: str, text: str) -> list[ProcessReport]:
    return [ProcessReport(executable="python", exception=Raised(kind, text))]


@pytest.mark.parametrize(
    ("ended", "processes", "message"),
    [
        (Exit(1), raised("torch.OutOfMemoryError", "CUDA out of memory. Tried"), "out of memory"),
        (Exit(1), raised("builtins.MemoryError", ""), "out of memory"),
        (
            Exit(1),
            raised("jaxlib.xla_extension.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of"),
            "out of memory",
        ),
        (
            Exit(1),
            raised("builtins.RuntimeError", "DefaultCPUAllocator: can't allocate memory: you"),
            "out of memory",
        ),
        (Exit(-9, out_of_memory=True), [], "out of memory"),
        (Exit(-11), [], "signal SIGSEGV"),
        (Exit(-15, overdue=True), raised("builtins.KeyError", "'a'"), "KeyError: 'a'"),
        (Exit(1), raised("builtins.KeyError", "'a'\nb"), "KeyError: 'a' b"),
        (Exit(4), [], "exit status 4"),
    ],
)
def test_why_a_run_died(ended: Exit, processes: list[ProcessReport], message: str) -> None:
    assert reason(ended, None, processes) == message


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((*PYTHON, "pass"), "started no Python process that imports torch, tensorflow or jax"),
        ((sys.executable, "-I", "-c", "pass"), "ignores PYTHONPATH"),
    ],
)
def test_what_records_nothing_leaves_nothing(
    command: tuple[str, ...], message: str, tmp_path: Path, run: Command
) -> None:
    done = run("record", "-o", tmp_path / "run", "--", *command)
    assert done.exit_code == 71
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("profiler", [None, Profiler.NSYS])
def test_the_error_for_a_script_without_steps_says_what_a_step_is(
    profiler: Profiler | None, tmp_path: Path
) -> None:
    report = {"executable": "python", "framework": "torch"}
    (tmp_path / "process-1.json").write_text(json.dumps(report))
    why = Script(("python", "infer.py"), profiler).outcome(tmp_path, recorded=True).why_nothing
    assert "ran no step that is seen (a call of an optimizer's step(), or" in why
    # Not another --profiler: all of them wait for a step.
    assert why.endswith("call traceana.recorder's step() in its loop")


@pytest.mark.parametrize(
    ("begun", "message"),
    [
        (1, "during warm-up, before its trace was written: use a smaller --warm-up (5)"),
        (5, "in its window, before its trace was written: use a smaller --steps (10)"),
    ],
)
def test_a_process_that_ended_in_its_window_did_run_steps(
    begun: int, message: str, tmp_path: Path
) -> None:
    loader = {"executable": "python", "framework": "torch"}
    (tmp_path / "process-1.json").write_text(json.dumps(loader))
    (tmp_path / "process-2.json").write_text(json.dumps({**loader, "steps_begun": begun}))
    why = Script(("python", "train.py"), None).outcome(tmp_path, recorded=True).why_nothing
    assert f"the process ended by os._exit or a signal {message}" in why


def test_a_trace_without_work_is_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    for content, message in (
        ('{"schemaVersion": 1, "traceEvents": []}', "recorded nothing"),
        ("", "is empty"),
        ('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op"', "is truncated"),
    ):
        trace.write_text(content)
        assert message in str(why_unusable([trace]))


@pytest.mark.parametrize(
    ("command", "next_step"),
    [("no-such-program", "check the command after --"), ("train.py", "-- python train.py")],
)
def test_a_command_that_is_not_there(
    command: str, next_step: str, tmp_path: Path, run: Command
) -> None:
    done = run("record", "-o", tmp_path / "run", "--", command)
    assert done.exit_code == 10
    assert f"{command} cannot be run (No such file or directory): {next_step}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(tmp_path: Path, run: Command) -> None:
    words = ("-o", tmp_path / "run", "--", *PYTHON, "raise SystemExit(3)")
    assert run("record", *words).exit_code == 3
    before = (tmp_path / "run" / RUN_FILE).stat().st_ino
    assert run("record", *words).exit_code == 50
    assert (tmp_path / "run" / RUN_FILE).stat().st_ino == before
    assert run("record", "--force", *words).exit_code == 3
    assert (tmp_path / "run" / RUN_FILE).stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "mine").mkdir()
    done = run("record", "--force", "-o", tmp_path / "mine", "--", *PYTHON, "pass")
    assert done.exit_code == 50
    assert "not a recorded run" in done.stderr


def test_only_runs_and_sweeps_are_replaced(tmp_path: Path) -> None:
    run, swept, mine = write_run(tmp_path / "run"), tmp_path / "sweep", tmp_path / "mine"
    mine.mkdir()
    swept.mkdir()
    (swept / SWEEP_FILE).touch()
    check_free(tmp_path / "new", force=False)
    for folder in (run, swept):
        check_free(folder, force=True)
        with pytest.raises(CannotWriteError, match="use --force"):
            check_free(folder, force=False)
    with pytest.raises(CannotWriteError, match="not a recorded run"):
        check_free(mine, force=True)


def test_a_resumed_sweep_records_missing_and_interrupted_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []

    def record(_subject: object, folder: Path, _request: Request) -> RecordedRun:
        recorded.append(folder.name)
        shutil.rmtree(folder, ignore_errors=True)
        return read_run(write_run(folder))

    monkeypatch.setattr(sweep, "record", record)
    points = tuple(Point(folder=number, values={"batch": number}) for number in "123")
    axes = (Axis(name="batch", values=("1", "2", "3")),)
    subject = Script(("python", "train.py"), None, 1, 1)
    wanted = SweepRequest(axes, points, subject.argv, "auto", resume=True)
    for again in (["1", "2", "3"], [], ["2", "3"]):
        made = record_sweep(lambda _: subject, tmp_path / "s", wanted, Request(), lambda *_: None)
        assert [one.run.status for one in made] == [Status.COMPLETE] * 3
        assert recorded == again
        recorded.clear()
        if not again:
            shutil.rmtree(tmp_path / "s" / "2")
            run = read_run(tmp_path / "s" / "3").run
            interrupted = msgspec.structs.replace(run, status=Status.INTERRUPTED)
            write_json(tmp_path / "s" / "3" / RUN_FILE, interrupted)


def test_what_a_killed_recording_left_is_cleared_and_one_at_work_is_not(tmp_path: Path) -> None:
    left = tmp_path / "run.partial"
    left.mkdir()
    (left / RUN_FILE).write_text("{}")
    assert not is_run(left)
    at_work = PartialFolder(tmp_path / "run")
    assert {path.name for path in left.iterdir()} == {".lock", "run"}
    with pytest.raises(Exception, match="another recording uses"):
        PartialFolder(tmp_path / "run")
    at_work.discard()
    assert not left.exists()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("python", "train.py"), 2, "put -- before a command"),
        (("--",), 2, "give a --framework, or a command"),
        (("--framework", "jax", "--", "python"), 2, "takes no command"),
        (("--resume", "--", "python"), 2, "add --sweep"),
        (("--profiler", "nsys", "--profiler", "torch", "--", "python"), 71, "CUPTI"),
        (("--", "nsys", "profile", "python"), 71, "the command runs nsys itself"),
        (("--framework", "pytorch", "--profiler", "jax"), 71, "does not record pytorch"),
        (
            ("--framework", "pytorch", "--profiler", "nsys", "--trace", "x.json"),
            71,
            "remove --profiler nsys, or remove --trace",
        ),
    ],
)
def test_contradictions_are_refused_before_anything_runs(
    words: tuple[str, ...], code: int, message: str, tmp_path: Path, run: Command
) -> None:
    done = run("record", "-o", tmp_path / "run", *words)
    assert done.exit_code == code
    assert message in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_profiler_around_us_is_refused(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    done = run("record", "-o", tmp_path / "run", "--", *PYTHON, "pass")
    assert done.exit_code == 71
    assert "running under nsys or another profiler" in done.stderr


def test_what_is_missing_is_named(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("record", "--profiler", "nsys", "-o", tmp_path / "run", "--", *PYTHON, "pass")
    assert done.exit_code == 51
    assert "nsys is not on the PATH" in done.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = run("record", "--framework", "keras", "-o", tmp_path / "run")
    assert done.exit_code == 51
    assert "--framework keras needs tensorflow" in done.stderr


def test_the_networks_are_in_the_repository(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("traceana.record.programs.__file__", str(tmp_path / "a/b/c/d/e.py"))
    done = run("record", "--framework", "jax", "-o", tmp_path / "run")
    assert done.exit_code == 51
    assert "are in traceana's repository" in done.stderr


def test_a_system_without_file_locks_is_refused_in_one_line(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    done = run("record", "-o", tmp_path / "run", "--", sys.executable, "-c", "")
    assert done.exit_code == ExitCode.MISSING_DEPENDENCY
    assert "recording needs Linux or macOS" in done.stderr
    assert list(tmp_path.iterdir()) == []
