"""Savings of findings by simulation: the trace replayed with the recommended change."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from traceana.errors import NoSuchSelectionError

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.whatif import Base, Model, Saving


class Simulator:
    """The replay of a trace: its ``model``, and ``base``, the step before any change."""

    def __init__(self, model: Model, base: Base) -> None:
        """Keep both."""
        self.model, self.base = model, base

    @classmethod
    def of(cls, trace: Trace) -> Self | None:
        """Return the simulator of ``trace``; None where a replay has no meaning.

        A replay needs steps that are marked on the host and not too long, and the launches of most
        of their work. It is of all devices, so there is none of a selection of devices.
        """
        from traceana.whatif.whatif import Model, before_changes

        model = Model.of_marked(trace)
        return None if model is None else cls(model, before_changes(model))

    def saving(self, scenario: str) -> Saving | None:
        """Return the saving of ``scenario``; None where it changes nothing in the trace."""
        from traceana.whatif.whatif import BoundScenario, saving

        with suppress(NoSuchSelectionError):
            return saving(self.model, BoundScenario.of(self.model, scenario), self.base)
        return None

    def excess_reason(self, scenario: str) -> str | None:
        """Return why a step saves more than the time of what ``scenario`` selects.

        None where no reason is known.
        """
        from traceana.whatif.whatif import BoundScenario

        bound = BoundScenario.of(self.model, scenario).scenario
        # An implied change is kept only where the trace has work that it is about.
        if any(change.implied for change in bound.changes):
            return "; ".join(text.partition(": ")[2] for text in bound.assumes)
        if all(change.what != "work" for change in bound.changes):
            return "other waits become shorter too"
        return None
