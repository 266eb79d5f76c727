"""Sweeps: axes, points, the subject at each point, and the recording of the runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from traceana.errors import CannotWriteError, UsageError
from traceana.record import Framework
from traceana.record.outcome import Subject
from traceana.record.partial_folder import check_free, remove, write_json
from traceana.record.programs import STEPS, WARM_UP, Script, WorkloadRun
from traceana.record.recording import Request, record
from traceana.runs.run_files import SWEEP_FILE, Axis, Point, Profiler, Status, Sweep
from traceana.runs.run_folders import RecordedRun, is_run, is_sweep, read_run, read_sweep

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.+:@-]+\Z")
_MOST: Final = 10_000
"""The maximum number of points."""


def parse_axis(text: str) -> Axis:
    """Return the axis of ``batch=1,2,4..512`` or ``algorithms=heuristic,benchmark``.

    Integers before ``..`` are continued by the ratio of the last two if that is an integer of 2 or
    more (and that of the two before, if given), else by their difference; a single integer is
    continued by 1. The last value must be reached. Raises ``UsageError``.
    """
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.match(name):
        raise UsageError(f"--sweep {text}: not an axis; use NAME=VALUE,VALUE or NAME=1,2,4..512")
    values: list[str] = []
    for piece in rest.split(","):
        first, dots, last = piece.strip().partition("..")
        if not _VALUE.match(first):
            raise UsageError(
                f"--sweep {text}: bad value {piece.strip()!r}: use letters, digits and _.+:@-"
            )
        values.append(first)
        if dots:
            values += _progression(values, last, text)
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"--sweep {text}: {twice} is given twice; remove one")
    return Axis(name=name, values=tuple(values))


def _progression(before: list[str], last: str, text: str) -> list[str]:
    """Return the values behind the last three of ``before``, up to ``last``."""
    begin = [int(value) for value in before[-3:] if value.isdecimal()]
    if len(begin) != len(before[-3:]) or not last.isdecimal():
        raise UsageError(f"--sweep {text}: .. needs integers, as in NAME=1,2,4..512")
    end, value = int(last), begin[-1]
    ratio = 0
    if len(begin) > 1 and begin[-2] and begin[-1] % begin[-2] == 0:
        ratio = begin[-1] // begin[-2]
    # 1, 2 is continued by doubling; 1, 2, 3 and 2, 4, 6 by their difference.
    if ratio < 2 or (len(begin) > 2 and begin[-3] * ratio != begin[-2]):
        ratio = 0
    difference = begin[-1] - begin[-2] if len(begin) > 1 else 1
    values: list[str] = []
    while value < end and len(values) < _MOST and (ratio or difference > 0):
        value = value * ratio if ratio else value + difference
        values.append(str(value))
    if value != end:
        raise UsageError(
            f"--sweep {text}: {', '.join(map(str, begin))} does not reach {end}; the nearest "
            f"value below it is {values[-2] if len(values) > 1 else begin[-1]}"
        )
    return values


def points(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Return the product of ``axes``; the last axis varies fastest. Raises ``UsageError``."""
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise UsageError(f"--sweep: duplicate axis in {', '.join(names)}; give each axis once")
    points = []
    for values in product(*(axis.values for axis in axes)):
        chosen = dict(zip(names, values, strict=True))
        folder = ",".join(f"{name}={value}" for name, value in chosen.items())
        points.append(Point(folder=folder, values=chosen))
    if len(points) > _MOST:
        raise UsageError(f"--sweep: {len(points)} runs, more than {_MOST}: use fewer values")
    return tuple(points)


_FRAMEWORK = "framework"
_SWITCH = {"on": "--", "off": "--no-"}


class SubjectOptions(msgspec.Struct, frozen=True):
    """A workload of ``framework`` with its ``options``, or the ``command`` of a script.

    ``home`` is the folder of the workloads. None is the default of an option.
    """

    command: tuple[str, ...] = ()
    framework: Framework | None = None
    options: tuple[str, ...] = ()
    home: Path | None = None
    profiler: Profiler | None = None
    warm_up: int | None = None
    steps: int | None = None
    stop: bool = False
    timed: bool = False
    lines: bool = True
    source: bool = True

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, without the values of a point."""
        if self.command:
            return self.command
        framework = [] if self.framework is None else ["--framework", self.framework.value]
        return (*framework, *self.options, *self._window())

    def at(self, values: Mapping[str, str]) -> Subject:
        """Return the subject at a point with ``values`` by axis.

        In a script's command they replace ``{AXIS}``; a workload gets ``--AXIS VALUE``. Raises
        ``UsageError`` if an axis has no effect.
        """
        if self.command:
            return Script(
                _filled(self.command, values),
                self.profiler,
                WARM_UP if self.warm_up is None else self.warm_up,
                STEPS if self.steps is None else self.steps,
                stop=self.stop,
                timed=self.timed,
                lines=self.lines,
                source=self.source,
            )
        assert self.home is not None
        options = {word.partition("=")[0] for word in (*self.options, *self._window())}
        words: list[str] = []
        framework = self.framework
        for axis, value in values.items():
            if axis == _FRAMEWORK:
                if value not in [*Framework]:
                    names = ", ".join(Framework)
                    raise UsageError(f"--sweep framework: unknown {value}; frameworks: {names}")
                framework = Framework(value)
                continue
            if f"--{axis}" in options:
                raise UsageError(f"--{axis} is both an option and a sweep axis: remove one")
            switch = _SWITCH.get(value)
            words += [f"{switch}{axis}"] if switch else [f"--{axis}", value]
        assert framework is not None
        return WorkloadRun(
            framework, (*self.options, *self._window(), *words), self.home, self.profiler
        )

    def _window(self) -> tuple[str, ...]:
        words: list[str] = []
        for name, value in (("--warm-up", self.warm_up), ("--steps", self.steps)):
            words += [] if value is None else [name, str(value)]
        return tuple(words)


def _filled(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    for axis in values:
        if not any(f"{{{axis}}}" in word for word in command):
            raise UsageError(
                f"--sweep {axis}: the command has no placeholder {{{axis}}}, as in "
                f"'-- python train.py --{axis} {{{axis}}}'"
            )
    filled = []
    for word in command:
        for axis, value in values.items():
            word = word.replace(f"{{{axis}}}", value)
        filled.append(word)
    return tuple(filled)


SubjectOf = Callable[[Point], Subject]


class SweepRequest(msgspec.Struct, frozen=True):
    """The ``axes`` and their ``points``; ``argv`` is the command at each of them."""

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    argv: tuple[str, ...]
    profiler: str
    force: bool = False
    resume: bool = False


def record_sweep(
    subject_of: SubjectOf,
    target: Path,
    wanted: SweepRequest,
    request: Request,
    before: Callable[[int, Point], None],
) -> Iterator[RecordedRun]:
    """Yield the recorded run of each point; ``before`` is called before each recording.

    Failed runs are kept with their reason, and the sweep continues. A resumed sweep keeps its runs,
    except for interrupted ones. Raises the errors of ``record`` that affect every run.
    """
    subjects = [(point, subject_of(point)) for point in wanted.points]
    for _, subject in subjects:
        subject.check()
    _prepare(target, wanted)
    for number, (point, subject) in enumerate(subjects):
        folder = target / point.folder
        if is_run(folder):
            recorded = read_run(folder)
            if recorded.run.status is not Status.INTERRUPTED:
                yield recorded
                continue
        before(number, point)
        yield record(subject, folder, replace(request, point=point.values, keep_failures=True))
    aside = _replaced(target)
    if aside.exists():
        remove(aside)


def _prepare(target: Path, wanted: SweepRequest) -> None:
    """Create the folder with ``traceana-sweep.json``, or keep that of a resumed sweep."""
    sweep = Sweep(
        axes=wanted.axes,
        points=wanted.points,
        argv=wanted.argv,
        profiler=wanted.profiler,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if wanted.resume and is_sweep(target):
        before = read_sweep(target)
        if msgspec.structs.replace(before, started_at=sweep.started_at) != sweep:
            raise UsageError(
                f"{target} is a sweep with other values or another command: use the values and the "
                f"command in its {SWEEP_FILE}, or choose another name"
            )
        return
    check_free(target, force=wanted.force)
    try:
        if target.exists():
            # The previous sweep is kept until this one is complete.
            aside = _replaced(target)
            if aside.exists():
                remove(target)
            else:
                target.rename(aside)
        target.mkdir(parents=True)
        write_json(target / SWEEP_FILE, sweep)
    except OSError as error:
        raise CannotWriteError(f"cannot write {target}: {error.strerror}") from error


def _replaced(target: Path) -> Path:
    return target.with_name(f"{target.name}.replaced")
