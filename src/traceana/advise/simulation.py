"""Savings of findings by simulation: the trace replayed with the recommended change."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

import polars as pl

from traceana.errors import NoSuchSelectionError
from traceana.settings import FEWEST_LAUNCHES, REPLAYED_ACTIVITIES
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.whatif import Model, Saving, Unprofiled


class Simulator:
    """The replay of a trace: its ``model``, and ``base``, the step without the profiler."""

    def __init__(self, model: Model, base: Unprofiled) -> None:
        """Keep both."""
        self.model, self.base = model, base

    @classmethod
    def of(cls, trace: Trace) -> Self | None:
        """Return the simulator of ``trace``; None where a replay has no meaning.

        A replay needs steps that are marked on the host and not too long, and the launches of most
        of their work. It is of all devices, so there is none of a selection of devices.
        """
        if "selected_devices" in trace.meta.properties or not _has_launches(trace):
            return None
        from traceana.whatif.whatif import Model, part_of, unprofiled

        if part_of(trace).activities > REPLAYED_ACTIVITIES:
            return None
        model = Model.of(trace)
        return cls(model, unprofiled(model)) if model.marked else None

    def saving(self, scenario: str) -> Saving | None:
        """Return the saving of ``scenario``; None where it changes nothing in the trace."""
        from traceana.whatif.whatif import BoundScenario, saving

        with suppress(NoSuchSelectionError):
            return saving(self.model, BoundScenario.of(self.model, scenario), self.base)
        return None


def _has_launches(trace: Trace) -> bool:
    """Return whether the steps have work of a CPU, or calls that launched most of their work."""
    work = trace.tables.activities.filter(pl.col("step").is_not_null())
    if trace.on_cpu:
        return work.height > 0
    launched = work.filter(pl.col("kind").is_in(DEVICE_WORK))["call"].is_not_null()
    return launched.len() > 0 and launched.sum() >= FEWEST_LAUNCHES * launched.len()
