"""Devices that run dry because the host waited for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    return None if figures.on_cpu else waits(figures, "synchronization")


RULE: Final = Rule(
    id="host_synchronization",
    title="a device that runs dry because the host waits for it",
    finds=_finds,
    kind="at most",
    says=(
        "The host waits for the device[, mostly in {culprit}], and the device then for the host: "
        "{idle_ns} idle in {count} gaps."
    ),
    estimate="all the idle time whose cause is a synchronizing call.",
    doubt="A benchmark that synchronizes each step on purpose measures this too.",
    change=Change(
        pytorch="no .item(), .cpu(), print or if on a tensor inside the step; torch.cuda."
        "synchronize() for timings alone; non_blocking=True",
        tensorflow="fetch losses and metrics every N steps; no .numpy() inside the step",
        jax="block_until_ready and float(loss) every N steps alone",
    ),
)
