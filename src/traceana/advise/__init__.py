"""Recommendations for a run: rules over the analyses' tables, by estimated saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from traceana.advise import (  # noqa: F401  # these modules register their rules
    convolution_algorithms,
    device_utilization,
    fusion,
    gpu_idle,
    host_copies,
    measurement,
)
from traceana.advise.figures import Figures
from traceana.advise.rule import RULES, Finding, Rule
from traceana.settings import LEAST_SAVING, LOW_UTILIZATION

if TYPE_CHECKING:
    from traceana.runs.run_files import BatchSeries
    from traceana.trace import Trace

__all__ = ["RULES", "Advice", "Finding", "Rule", "advise", "advised"]


class Advice(msgspec.Struct, frozen=True):
    """The findings, largest saving first, and notes on them."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def advise(trace: Trace, *, batches: BatchSeries | None = None) -> Advice:
    """Return the findings on ``trace``.

    Savings are per measured step and device; without steps per device, over the capture. They
    overlap: two findings may cover the same time. ``batches`` are the step times of the runs of a
    sweep that differ from this run in the batch only.
    """
    return advised(Figures(trace, batches))


def advised(figures: Figures) -> Advice:
    """Return the findings on ``figures``, like :func:`advise` on a trace."""
    if not figures.work_ns:
        return Advice((), ("no device activity: no findings",))
    found = [
        Finding(
            rule,
            figures.each(one.saving_ns),
            one.saving_ns / figures.paced_ns if figures.paced_ns else 0.0,
            one.figures,
            one.evidence,
        )
        for rule in RULES
        if (one := rule.find(figures)) is not None
    ]
    found.sort(key=lambda finding: (-finding.saving_ns, finding.rule.id))
    return Advice(tuple(found), _notes(figures, found))


def _notes(figures: Figures, found: list[Finding]) -> tuple[str, ...]:
    whole = "step" if figures.stepped else "capture"
    if not found:
        return (f"no findings above {LEAST_SAVING:.0%} of the {whole}".replace("%", " %"),)
    unit = "step and device" if figures.stepped else "device, over the capture"
    notes = [f"savings: estimates per {unit}; they overlap, do not add them"]
    if not figures.on_cpu and figures.busy_ns < LOW_UTILIZATION * figures.window_ns:
        utilization = 100 * figures.busy_ns / figures.window_ns
        notes.append(
            f"GPU utilization {utilization:.0f} %: savings of kernel time may become idle time, "
            "not a shorter step"
        )
    return tuple(notes)
