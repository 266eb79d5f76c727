"""Devices that wait for the host to launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.advise.rules.launch_bound import DISPATCH_NS, launches_set_the_pace
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu:
        return None
    # What dispatching costs the host is the other rule's where kernels are short.
    long = (pl.col("cause").cast(pl.String) == "host") | (pl.col("time_ns") > DISPATCH_NS)
    lasting = long if launches_set_the_pace(figures) else None
    return waits(figures, "host", "operator", by="range", lasting=lasting)


RULE: Final = Rule(
    id="host_bound",
    title="a device idle because the host has not launched the next work",
    finds=_finds,
    kind="at most",
    says=(
        "The host was busy with other things than launching[, mostly {culprit},] in {count} gaps "
        "of the device: {idle_ns} idle."
    ),
    estimate="all the idle time in which the host had not begun to launch and waited for nothing.",
    doubt=(
        "A profiler that records stacks or shapes slows the host itself: compare without it. A "
        "recording without steps has the start of the program in it."
    ),
    change=Change(
        pytorch="take Python out of the step (logging, metrics, schedulers every N steps), "
        "optimizers with foreach or fused=True, torch.compile",
        tensorflow="the whole step in one tf.function, steps_per_execution of Keras",
        jax="the whole step in one jax.jit, lax.scan over several steps",
    ),
)
