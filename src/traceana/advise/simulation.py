"""Savings of findings by simulation: the trace replayed with the recommended change."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from traceana.errors import NoSuchSelectionError

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.changed import Selection
    from traceana.whatif.scenario import Change
    from traceana.whatif.whatif import Base, BoundScenario, Model, PredictedStep, Replays, Saving


_MORE: Final = 1.1
"""A simulated saving of more than so many times the rule's estimate is explained."""


class Simulator:
    """The replay of a trace: its ``model``, and ``base``, the step before any change."""

    def __init__(self, model: Model, base: Base) -> None:
        """Keep both."""
        self.model, self.base = model, base
        self._selections: dict[Change, list[Selection] | NoSuchSelectionError] = {}
        self._replays: dict[str, Replays | None] = {}

    @classmethod
    def of(cls, trace: Trace) -> Self | None:
        """Return the simulator of ``trace``; None where a replay has no meaning.

        The conditions are those of :meth:`traceana.whatif.whatif.Model.of_marked`.
        """
        from traceana.whatif.whatif import Model, before_changes

        model = Model.of_marked(trace)
        return None if model is None else cls(model, before_changes(model))

    def saving(self, scenario: str) -> Saving | None:
        """Return the saving of ``scenario``; None where it changes nothing in the trace."""
        from traceana.whatif.whatif import saving

        replays = self._replayed(scenario)
        if replays is None:
            return None
        return saving(self.model, replays, self.base, self._run_error_ns)

    def mean_step_ns(self, scenario: str) -> float | None:
        """Return the mean step after ``scenario``; None where it changes nothing in the trace."""
        from traceana.whatif.whatif import mean_step_ns

        bound = self._bound(scenario)
        return None if bound is None else mean_step_ns(self.model, bound)

    def step(self, scenario: str) -> PredictedStep | None:
        """Return the median step after ``scenario``; None where it changes nothing."""
        from traceana.whatif.whatif import predicted_step

        replays = self._replayed(scenario)
        if replays is None:
            return None
        return predicted_step(self.model, replays, self.base, self._highest_ns)

    @cached_property
    def _run_error_ns(self) -> float:
        """By what the steps of two runs of the program differ."""
        from traceana.whatif.whatif import run_error_ns

        return run_error_ns(self.model, self.base)

    @cached_property
    def _highest_ns(self) -> float:
        """The upper end of the interval of the step before any change."""
        from traceana.whatif.whatif import predicted_step

        return predicted_step(self.model, self.base.replays, self.base).high_ns

    def _replayed(self, scenario: str) -> Replays | None:
        from traceana.whatif.whatif import Replays

        if scenario not in self._replays:
            bound = self._bound(scenario)
            self._replays[scenario] = None if bound is None else Replays.of(self.model, bound)
        return self._replays[scenario]

    def _bound(self, scenario: str) -> BoundScenario | None:
        from traceana.whatif.whatif import BoundScenario

        with suppress(NoSuchSelectionError):
            return BoundScenario.of(self.model, scenario, self._selections)
        return None

    def excess_reason(self, scenario: str, saving_ns: float, estimate_ns: int) -> str | None:
        """Return why ``scenario`` saves more of a step than its rule estimates.

        None where it does not, and where no reason is known.
        """
        if saving_ns <= _MORE * estimate_ns:
            return None
        replayed = self._bound(scenario)
        assert replayed is not None
        bound = replayed.scenario
        # An implied change is kept only where the trace has work that it is about.
        if any(change.implied and not change.beside for change in bound.changes):
            return "; ".join(text.partition(": ")[2] for text in bound.assumes)
        if all(change.what != "work" for change in bound.changes):
            return "other waits become shorter too"
        return None
