"""What to change in a run, by what it would save."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from traceana.advise.figures import Figures
from traceana.advise.model import Finding
from traceana.advise.registry import RULES

if TYPE_CHECKING:
    from traceana.runs.model import BatchSeries
    from traceana.trace import Trace

_HOST_BOUND: Final = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    """The findings, most saving first, and what a reader of them has to know."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


def advise(trace: Trace, *, batches: BatchSeries | None = None) -> Advice:
    """Return what the rules find in ``trace``.

    Savings are per measured step and device; of a trace without steps, of all of it and per device.
    They overlap: two findings may be about the same time. ``batches`` are the runs that differ from
    that of ``trace`` in the batch alone, where there are any.
    """
    return advised(Figures(trace, batches))


def advised(figures: Figures) -> Advice:
    """Return what the rules find in ``figures``: :func:`advise`, where these are made already."""
    if not figures.work_ns:
        return Advice((), ("no work: nothing to advise on",))
    found = [
        Finding(
            rule,
            figures.each(one.saving_ns),
            one.saving_ns / figures.paced_ns if figures.paced_ns else 0.0,
            one.figures,
            one.evidence,
        )
        for rule in RULES
        if (one := rule.finds(figures)) is not None
    ]
    found.sort(key=lambda finding: (-finding.saving_ns, finding.rule.id))
    return Advice(tuple(found), _notes(figures, found))


def _notes(figures: Figures, found: list[Finding]) -> tuple[str, ...]:
    if not found:
        return ("nothing stands out",)
    what = "measured step and device" if figures.stepped else "device, over all of the recording"
    notes = [f"savings are estimates per {what}; they overlap and do not add up"]
    if not figures.on_cpu and figures.busy_ns < _HOST_BOUND * figures.window_ns:
        busy = 100 * figures.busy_ns / figures.window_ns
        notes.append(
            f"the devices are busy {busy:.0f} % of the time: what kernels save may show as more "
            "idle time, not as a shorter step"
        )
    return tuple(notes)
