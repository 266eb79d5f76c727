"""Recording, as far as it needs no framework: the child process, folders, reasons, hooks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import traceana
from tests.support.runs import write_run
from traceana.errors import CannotWriteError, RecordingError
from traceana.record import sweep
from traceana.record.child_process import Ended, run_child
from traceana.record.inside.process_report import EXITING
from traceana.record.outcome import Launch, ProcessReport, Raised
from traceana.record.partial_folder import check_free, write_json
from traceana.record.programs import Script
from traceana.record.recording import Request, reason
from traceana.record.sweep import SweepRequest, record_sweep
from traceana.runs import RecordedRun, read_run
from traceana.runs.run_files import RUN_FILE, SWEEP_FILE, Axis, Point, Status


def test_a_process_that_does_not_exit_in_time_is_ended(tmp_path: Path) -> None:
    """It reports its exit, and goes on."""
    words = ["sh", "-c", f"touch {tmp_path}/{EXITING}$$; exec sleep 5"]
    assert run_child(Launch(words), tmp_path, 0.01) == Ended(-15, overdue=True)


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


@pytest.mark.parametrize(("model", "steps"), [(None, 2), (object(), 0)])
def test_optimizers_are_watched_in_a_block_whose_model_is_not_given(
    model: object, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Callable[..., None]] = []

    def register(hook: Callable[..., None]) -> SimpleNamespace:
        hooks.append(hook)
        return SimpleNamespace(remove=lambda: hooks.remove(hook))

    torch = SimpleNamespace(
        distributed=SimpleNamespace(is_available=lambda: False),
        cuda=SimpleNamespace(is_initialized=lambda: False),
    )
    optimizer = SimpleNamespace(register_optimizer_step_post_hook=register)
    for name, module in (("torch", torch), ("torch.optim.optimizer", optimizer), ("keras", None)):
        monkeypatch.setitem(sys.modules, name, module)
    recorder = traceana.recorder(tmp_path / "run", warm_up=5, model=model)
    with pytest.raises(RecordingError, match=rf"step\(\) was called {steps} times"), recorder:
        assert len(hooks) == (model is None)
        for _ in range(steps):
            recorder.step()
    assert hooks == []


def raised(kind: str, text: str) -> list[ProcessReport]:
    return [ProcessReport(executable="python", exception=Raised(kind, text))]


@pytest.mark.parametrize(
    ("ended", "processes", "message"),
    [
        (Ended(1), raised("torch.OutOfMemoryError", "CUDA out of memory. Tried"), "out of memory"),
        (Ended(1), raised("builtins.MemoryError", ""), "out of memory"),
        (
            Ended(1),
            raised("jaxlib.xla_extension.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of"),
            "out of memory",
        ),
        (
            Ended(1),
            raised("builtins.RuntimeError", "DefaultCPUAllocator: can't allocate memory: you"),
            "out of memory",
        ),
        (Ended(-9, out_of_memory=True), [], "out of memory"),
        (Ended(-11), [], "signal SIGSEGV"),
        (Ended(-15, overdue=True), raised("builtins.KeyError", "'a'"), "KeyError: 'a'"),
        (Ended(1), raised("builtins.KeyError", "'a'\nb"), "KeyError: 'a' b"),
        (Ended(4), [], "exit status 4"),
    ],
)
def test_why_a_run_died(ended: Ended, processes: list[ProcessReport], message: str) -> None:
    assert reason(ended, None, processes) == message
