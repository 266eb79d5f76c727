"""Time that the profiler itself takes of the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    found = None if figures.on_cpu else waits(figures, "profiler")
    return None if found is None else replace(found, saving_ns=0)


RULE: Final = Rule(
    id="profiler_overhead",
    title="a device idle for the profiler's own work",
    finds=_finds,
    kind="measuring",
    says=(
        "The device is idle for {idle_ns} ({share}) for the profiler's own overhead, in {count} "
        "gaps: without it steps are that much shorter."
    ),
    estimate="nothing to save: the idle time whose cause is overhead that the profiler recorded.",
    doubt="Only the overhead that the profiler itself records is seen.",
    change=Change(
        pytorch="fewer activities and no with_stack; larger buffers; a schedule of few steps",
        tensorflow="fewer steps and a lower host_tracer_level",
        jax="fewer steps, host_tracer_level=1 in ProfileOptions",
    ),
)
