"""What ``traceana record`` was asked for: the subject at each point of a sweep, or the only one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceana.errors import BadSweepError
from traceana.record.framework import Framework
from traceana.record.script import STEPS, WARM_UP, Script
from traceana.record.subject import Subject
from traceana.record.workload import WorkloadRun
from traceana.runs.model import Profiler

_FRAMEWORK = "framework"
_SWITCH = {"on": "--", "off": "--no-"}


@dataclass(frozen=True)
class Asked:
    """A workload of ``framework`` with its ``options``, or the ``command`` of a script.

    ``home`` is where the workloads are. None is the default of whoever takes it.
    """

    command: tuple[str, ...] = ()
    framework: Framework | None = None
    options: tuple[str, ...] = ()
    home: Path | None = None
    profiler: Profiler | None = None
    warm_up: int | None = None
    steps: int | None = None
    stop: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """What is recorded, before a point's values are put in."""
        if self.command:
            return self.command
        own = [] if self.framework is None else ["--framework", self.framework.value]
        return (*own, *self.options, *self._window())

    def at(self, values: Mapping[str, str]) -> Subject:
        """Return the subject with the ``values`` of a point, by axis.

        In a script's command they take the place of ``{AXIS}``; a workload gets ``--AXIS VALUE``.
        Raises ``BadSweepError`` where an axis would change nothing.
        """
        if self.command:
            return Script(
                _filled(self.command, values),
                self.profiler,
                WARM_UP if self.warm_up is None else self.warm_up,
                STEPS if self.steps is None else self.steps,
                self.stop,
            )
        assert self.home is not None
        given = {word.partition("=")[0] for word in (*self.options, *self._window())}
        words: list[str] = []
        framework = self.framework
        for axis, value in values.items():
            if axis == _FRAMEWORK:
                framework = _framework(value)
                continue
            if f"--{axis}" in given:
                raise BadSweepError(f"--{axis} is given and swept: leave one of the two out")
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


def _framework(value: str) -> Framework:
    try:
        return Framework(value)
    except ValueError:
        known = ", ".join(Framework)
        raise BadSweepError(f"--sweep framework: {value} is none of {known}") from None


def _filled(command: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    for axis in values:
        if not any(f"{{{axis}}}" in word for word in command):
            raise BadSweepError(
                f"--sweep {axis}: the command has no {{{axis}}} for its values, as in "
                f"'-- python train.py --{axis} {{{axis}}}'"
            )
    filled = []
    for word in command:
        for axis, value in values.items():
            word = word.replace(f"{{{axis}}}", value)
        filled.append(word)
    return tuple(filled)
