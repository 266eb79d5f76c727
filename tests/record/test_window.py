"""The window within a process, on steps that are counted by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from traceana.record.inside.compiled_steps import CompiledSteps
from traceana.record.inside.process_report import Report, Settings
from traceana.record.inside.step_window import Clock, Recorder, Window
from traceana.record.outcome import ProcessReport, read_reports


class Ticks(Clock):
    """A clock that counts how often it is looked at."""

    def __init__(self) -> None:
        self.ticks = 0
        self.ended = True

    def synchronized(self) -> bool:
        return self.ended

    def now(self) -> int:
        self.ticks += 1
        return self.ticks**2


class Log(Recorder):
    """Records the calls of a profiler."""

    def __init__(self, fails: str | None = None) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def _add(self, call: str) -> None:
        self.calls.append(call)
        if call == self._fails:
            raise OSError(28, "No space left on device")

    def prepare(self, number: int) -> None:
        self._add(f"prepare {number}")

    def begin(self, number: int) -> None:
        self._add(f"begin {number}")

    def step(self, number: int) -> None:
        self._add(f"step {number}")

    def abandon_step(self) -> None:
        self._add("abandon step")

    def stop(self) -> None:
        self._add("stop")

    def write(self) -> str | None:
        self._add("write")
        return "trace.json.gz"


def window(
    folder: Path, recorder: Recorder, *, until_next: bool = False, **options: Any
) -> tuple[Window, Report]:
    settings = Settings(str(folder), **{"warm_up": 3, "steps": 2, **options})
    report = Report(settings)
    return Window("torch", settings, report, recorder, Ticks(), until_next=until_next), report


def reported(folder: Path) -> ProcessReport:
    ((report,), notes) = read_reports(folder)
    assert notes == ()
    return report


def test_a_step_that_does_not_end_is_abandoned(tmp_path: Path) -> None:
    recorder = Log()
    steps, _ = window(tmp_path, recorder)
    for _ in range(4):
        steps.step_ended()
    steps.close()
    assert recorder.calls == ["prepare 3", "begin 4", "step 5", "abandon step", "stop", "write"]


def test_a_step_until_the_next_holds_what_the_script_waits_for(tmp_path: Path) -> None:
    recorder = Log()
    steps, _ = window(tmp_path, recorder, until_next=True, steps=3)
    seen = []
    for _ in range(8):
        steps.step_begins()
        seen.append(len(recorder.calls))
        steps.step_ended()
        seen.append(len(recorder.calls))
    # The first and the last step of the window do not wait for a call.
    assert recorder.calls == ["prepare 3", "begin 4", "step 5", "step 6", "stop", "write"]
    assert seen == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 6, 6, 6, 6, 6]
    made = reported(tmp_path)
    assert made.times is not None
    assert (made.times.warm_up_ns, made.times.steps_ns) == ((3, 5), (9, 11, 13))


def test_a_step_until_the_next_has_none_if_the_script_ends(tmp_path: Path) -> None:
    for taken, calls, times in (
        (3, ["stop"], None),
        (4, ["abandon step", "stop", "write"], 0),
        (5, ["step 5", "abandon step", "stop", "write"], 1),
        (6, ["step 5", "step 6", "abandon step", "stop", "write"], 2),
    ):
        folder = tmp_path / str(taken)
        folder.mkdir()
        recorder = Log()
        steps, _ = window(folder, recorder, until_next=True, steps=9)
        for _ in range(taken):
            steps.step_begins()
            steps.step_ended()
        steps.close()
        assert recorder.calls == ["prepare 3", "begin 4", *calls]
        made = reported(folder)
        assert made.steps_taken == taken
        assert (None if made.times is None else len(made.times.steps_ns)) == times


def test_times_are_exact_if_each_step_had_ended(tmp_path: Path) -> None:
    for late, exact in ((None, True), (5, False)):
        folder = tmp_path / str(late)
        folder.mkdir()
        settings = Settings(str(folder), warm_up=3, steps=3)
        clock = Ticks()
        steps = Window("torch", settings, Report(settings), Log(), clock, until_next=True)
        for number in range(8):
            clock.ended = number != late
            steps.step_begins()
            steps.step_ended()
        made = reported(folder)
        assert made.times is not None
        assert made.times.synchronized == exact


def test_begun_steps_are_reported_before_the_end(tmp_path: Path) -> None:
    steps, _ = window(tmp_path, Log())
    seen = []
    for _ in range(4):
        steps.step_ended()
        seen.append(reported(tmp_path).steps_begun)
    assert seen == [1, 1, 3, 3]


def test_the_window_begins_behind_the_warm_up_and_has_its_steps(tmp_path: Path) -> None:
    recorder = Log()
    steps, report = window(tmp_path, recorder)
    seen = []
    for _ in range(8):
        steps.step_ended()
        seen.append(len(recorder.calls))
    assert recorder.calls == ["prepare 3", "begin 4", "step 5", "stop", "write"]
    assert seen == [0, 1, 2, 3, 5, 5, 5, 5]
    made = reported(tmp_path)
    assert made.trace == "trace.json.gz"
    assert made.times is not None
    # Moments 1, 4, 9 are of the warm-up; the window is from 16 to 25 to 36.
    assert (made.times.warm_up_ns, made.times.steps_ns) == ((3, 5), (9, 11))
    report.close(None)
    assert recorder.calls[-1] == "write"


def test_steps_are_timed_before_and_after_the_recorded_ones(tmp_path: Path) -> None:
    recorder = Log()
    steps, _ = window(tmp_path, recorder, before=2, after=3, warm_up=2)
    seen = []
    for _ in range(14):
        steps.step_ended()
        seen.append(len(recorder.calls))
    # Steps 1 and 2 warm up, 3 and 4 are timed, 5 is the profiler's warm-up, 6 and 7 are recorded,
    # 8 follows the writing, 9 to 11 are timed.
    assert recorder.calls == ["prepare 5", "begin 6", "step 7", "stop", "write"]
    assert seen == [0, 0, 0, 1, 2, 3, 5, 5, 5, 5, 5, 5, 5, 5]
    made = reported(tmp_path)
    assert made.closed
    assert made.times is not None
    assert made.without_profiler is not None
    # Moments: 1, 4 warm up; 9, 16, 25 before; 36, 49, 64 recorded; 81, 100, 121, 144 after.
    assert (made.times.steps_ns, made.times.first) == ((13, 15), 6)
    assert made.without_profiler.steps_ns == (7, 9, 19, 21, 23)
    assert (made.without_profiler.warm_up_ns, made.without_profiler.steps_before) == ((3,), 2)
    assert made.steps_taken == 11


@pytest.mark.parametrize(
    ("taken", "timed", "recorded"),
    [(2, 0, None), (4, 2, None), (5, 2, None), (6, 2, 1), (7, 2, 2), (8, 2, 2), (10, 4, 2)],
)
def test_a_script_that_ends_has_the_steps_that_there_are(
    tmp_path: Path, taken: int, timed: int, recorded: int | None
) -> None:
    steps, report = window(tmp_path, Log(), before=2, after=3, warm_up=2)
    for _ in range(taken):
        steps.step_ended()
    report.close(None)
    made = reported(tmp_path)
    assert made.closed
    assert made.steps_taken == taken
    assert (None if made.times is None else len(made.times.steps_ns)) == recorded
    assert (0 if made.without_profiler is None else len(made.without_profiler.steps_ns)) == timed


def test_a_script_that_ends_early_leaves_what_there_is(tmp_path: Path) -> None:
    recorder = Log()
    steps, report = window(tmp_path, recorder)
    for _ in range(4):
        steps.step_ended()
    report.close(ValueError("died"))
    made = reported(tmp_path)
    assert made.times is not None
    assert made.times.steps_ns == (9,)
    assert made.trace == "trace.json.gz"
    assert made.exception is not None
    assert (made.exception.type, made.exception.text) == ("builtins.ValueError", "died")


def test_a_script_that_ends_in_the_warm_up_reports_its_steps(tmp_path: Path) -> None:
    for count in (2, 3):
        folder = tmp_path / str(count)
        folder.mkdir()
        recorder = Log()
        steps, report = window(folder, recorder)
        for _ in range(count):
            steps.step_ended()
        report.close(None)
        # A process that ends under a profiler may crash.
        assert recorder.calls[-1] == "stop"
        made = reported(folder)
        assert (made.steps_taken, made.times, made.trace) == (count, None, None)


def test_a_failing_profiler_is_reported_and_the_script_continues(tmp_path: Path) -> None:
    for failing in ("begin 4", "stop", "write"):
        folder = tmp_path / failing
        folder.mkdir()
        recorder = Log(failing)
        steps, _ = window(folder, recorder)
        for _ in range(8):
            steps.step_ended()
        problem = reported(folder).problem
        assert problem is not None
        assert problem.kind == "no space"
        assert recorder.calls[-1] == "stop"


def test_the_script_is_ended_behind_the_window_only_if_asked(tmp_path: Path) -> None:
    steps, _ = window(tmp_path, Log(), stop=True)
    for _ in range(4):
        steps.step_ended()
    with pytest.raises(SystemExit) as raised:
        steps.step_ended()
    assert raised.value.code == 0
    # From here on the time to exit is limited, and a process that is killed has reported already.
    assert [path.name for path in tmp_path.glob("exiting-*")] == [f"exiting-{os.getpid()}"]
    assert reported(tmp_path).stopped
    assert reported(tmp_path).packages


def test_the_time_to_exit_is_not_limited_while_the_script_goes_on(tmp_path: Path) -> None:
    steps, report = window(tmp_path, Log())
    for _ in range(8):
        steps.step_ended()
    report.close(None)
    assert not list(tmp_path.glob("exiting-*"))
    report.exiting()
    assert list(tmp_path.glob("exiting-*"))


@pytest.mark.parametrize(
    ("own", "whose"), [(True, "steps of torch"), (False, "those of another process")]
)
def test_one_window_of_several_is_recorded(tmp_path: Path, own: bool, whose: str) -> None:
    (tmp_path / "window").write_text(str(os.getpid() if own else 1))
    recorder = Log()
    second, _ = window(tmp_path, recorder)
    for _ in range(8):
        second.step_ended()
    assert recorder.calls == []
    (file,) = tmp_path.glob("process-*.json")
    assert json.loads(file.read_text())["notes"] == [f"further steps were not recorded: {whose}"]


def test_the_outermost_function_with_a_gradient_is_the_step() -> None:
    ended: list[str] = []
    steps = CompiledSteps(ended.append)

    def inner() -> str:
        return str(steps.call("inner", lambda: steps.gradient(lambda: "g", lambda _: True)))

    assert steps.call("evaluate", lambda: "e") == "e"
    assert ended == []
    for _ in range(2):
        steps.call("train", lambda: inner() + "t")
    steps.call("evaluate", lambda: "e")
    steps.call("train", lambda: "compiled")
    assert ended == ["gt", "gt", "compiled"]


def test_eager_gradients_are_steps_and_traced_ones_are_not() -> None:
    ended: list[str] = []
    steps = CompiledSteps(ended.append)
    steps.gradient(lambda: "traced", lambda _: True)
    steps.gradient(lambda: steps.gradient(lambda: "second", lambda _: False), lambda _: False)
    steps.gradient(lambda: "first", lambda _: False)
    assert ended == ["second", "first"]


def test_a_compiled_step_begins_with_its_call() -> None:
    calls: list[str] = []
    steps = CompiledSteps(lambda result: calls.append(f"{result} ended"), lambda: calls.append("|"))
    for number in "012":
        steps.call("train", lambda: steps.gradient(lambda: number, lambda _: True))  # noqa: B023
        steps.call("evaluate", lambda: "e")
    assert calls == ["0 ended", "|", "1 ended", "|", "2 ended"]
