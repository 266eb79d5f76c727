"""Savings of findings by simulation: the trace replayed with the recommended change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from traceana.errors import NoSuchSelectionError
from traceana.settings import FEWEST_LAUNCHES, REPLAYED_ACTIVITIES
from traceana.trace.schema import DEVICE_WORK

if TYPE_CHECKING:
    from traceana.trace import Trace
    from traceana.whatif.whatif import Saving, Unprofiled


class Simulated(NamedTuple):
    """The saving of each scenario that changes something in a trace, the step without the profiler,
    and a note on the part of the trace that was replayed."""

    savings: Mapping[str, Saving]
    unprofiled: Unprofiled
    note: str | None


def simulated(trace: Trace, scenarios: Collection[str]) -> Simulated | None:
    """Return the savings of ``scenarios`` in ``trace``; None where a replay has no meaning.

    A replay needs steps that are marked on the host and not too long, and the launches of most of
    their work. It is of all devices, so there is none of a selection of devices.
    """
    if "selected_devices" in trace.meta.properties or not _has_launches(trace):
        return None
    from traceana.whatif.whatif import Asked, Model, part_of, saving, unprofiled

    if part_of(trace).activities > REPLAYED_ACTIVITIES:
        return None
    model = Model.of(trace)
    if not model.marked:
        return None
    base = unprofiled(model)
    savings = {}
    for one in dict.fromkeys(scenarios):
        with suppress(NoSuchSelectionError):
            savings[one] = saving(model, Asked.of(model, one), base)
    return Simulated(savings, base, model.part.note)


def _has_launches(trace: Trace) -> bool:
    """Return whether the steps have work of a CPU, or calls that launched most of their work."""
    work = trace.activities.filter(pl.col("step").is_not_null())
    if trace.on_cpu:
        return work.height > 0
    launched = work.filter(pl.col("kind").is_in(DEVICE_WORK))["call"].is_not_null()
    return launched.len() > 0 and launched.sum() >= FEWEST_LAUNCHES * launched.len()
