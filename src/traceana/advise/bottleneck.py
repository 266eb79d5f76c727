"""What limits the run: its kernels, the host, communication or copies, with the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.advise.figures import HOST_CAUSES
from traceana.settings import BOTTLENECK_SHARE, LEAST_PART, LONGEST_DISPATCH_NS, UNRECORDED_SHARE

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_LAUNCHED: Final = ("queued", "same_launch", "event")
"""Causes of idle time before work that had been launched."""
_UNKNOWN: Final = ("not_recorded", "before_first", "after_last")
"""Causes of idle time that no record explains."""

KERNELS: Final = "kernels"
HOST: Final = "waiting for the host"
PROFILER: Final = "profiler overhead"
COLLECTIVES: Final = "exposed collectives"
COPIES: Final = "exposed copies"
LAUNCHED: Final = "idle before launched work"
UNKNOWN: Final = "idle without a recorded cause"
IDLE: Final = "idle"
LATE_RANK: Final = "late_rank"
"""The cause of exposed collectives that wait for late ranks most of the time."""
NOT_RECORDED: Final = "launches without recorded work"

_IDLE_BY: Final = {HOST: HOST_CAUSES, LAUNCHED: _LAUNCHED, UNKNOWN: _UNKNOWN}


_OF_COPIES: Final = ("small_copies", "pageable_copies", "slow_copies", "exposed_copies")
_OF_HOST: Final = (
    *("data_loading", "host_bound", "launch_bound", "host_synchronization", "allocation"),
    *("code_loading", "synchronous_copies"),
)
RULES_ABOUT: Final = {
    COPIES: (*_OF_COPIES, "synchronous_copies"),
    COLLECTIVES: ("exposed_communication",),
    HOST: _OF_HOST,
    PROFILER: ("profiler_overhead",),
}
"""The rules of :mod:`traceana.advise` that shorten what limits a run; others shorten kernels."""


class Bottleneck(msgspec.Struct, frozen=True):
    """What limits the run, by the time of the devices in the measured steps, or in the capture;
    without the profiler, as far as its cost is known.

    ``bound`` is ``GPU-bound``, ``input-bound``, ``launch-bound``, ``host-bound``,
    ``communication-bound`` or ``transfer-bound``; None where it cannot be determined. ``by`` is
    the time that decides it (:data:`KERNELS` …), ``share`` its share, and ``cause`` the largest
    cause of that idle time, or :data:`LATE_RANK`, with its share. ``shares`` is the whole: kernels
    without collectives, collectives that no other kernel overlaps, copies that no kernel overlaps,
    idle time. ``profiler_steps`` is the number of the few steps with profiler overhead, which is in
    none of these times; 0 where it is.
    """

    bound: str | None
    by: str
    share: float
    cause: tuple[str, float] | None
    shares: Mapping[str, float]
    profiler_steps: int = 0

    def shortened_by(self, rule: str) -> bool:
        """Return whether the recommendation of ``rule`` shortens what limits the run."""
        if self.bound == "input-bound":
            return rule == "data_loading"
        if self.bound == "launch-bound" and rule == "small_batch":
            return True
        if self.by == KERNELS:
            return all(rule not in rules for rules in RULES_ABOUT.values())
        return rule in RULES_ABOUT.get(self.by, ())


def bottleneck(figures: Figures) -> Bottleneck | None:
    """Return what limits the run; None without device work.

    It is what takes most of the devices' time besides kernels, exposed or waited for, from
    :data:`BOTTLENECK_SHARE` of that time on. Below, the kernels limit the run, unless a replay
    with half the host's time is shorter by that share: kernels of several streams would overlap
    if they were launched in time. Profiler overhead in less than half of the steps is left out: the
    program does not spend it, and the other steps have another bottleneck.
    """
    span = int(figures.devices["span_ns"].sum())
    if figures.on_cpu or not span:
        return None
    rare = 2 * (figures.profiler_steps or 0) < figures.measured["step"].n_unique()
    profiler_steps = (figures.profiler_steps or 0) if rare else 0
    if profiler_steps:
        span -= figures.idle_ns("profiler")
    kernels, copies, collectives, busy = figures.devices.select(
        pl.col("kernel_ns", "copy_exposed_ns", "collective_exposed_ns", "busy_ns").sum() / span
    ).row(0)
    idle = max(0.0, 1 - busy)
    causes = _causes(figures, span)
    if profiler_steps:
        causes = {**causes, "profiler": 0.0}
    idle_by = {by: {cause: causes.get(cause, 0.0) for cause in own} for by, own in _IDLE_BY.items()}
    losses = {
        COLLECTIVES: collectives + causes.get("collective", 0.0),
        COPIES: copies + causes.get("copy", 0.0),
        PROFILER: causes.get("profiler", 0.0),
        **{by: sum(own.values()) for by, own in idle_by.items()},
    }
    by = max(losses, key=lambda one: losses[one])
    shares = {
        KERNELS: kernels - collectives,
        COLLECTIVES: collectives,
        COPIES: copies,
        IDLE: idle,
    }
    if figures.unrecorded >= UNRECORDED_SHARE:
        # What is missing was kernels, so that neither busy nor idle time is known.
        return Bottleneck(None, NOT_RECORDED, figures.unrecorded, None, shares, profiler_steps)
    if losses[by] < BOTTLENECK_SHARE:
        waits = by == HOST and losses[by] >= LEAST_PART
        simulator = figures.simulator if waits else None
        saved = None if simulator is None else simulator.saving("host x 0.5")
        if saved is None or saved.share < BOTTLENECK_SHARE:
            if not kernels:
                return Bottleneck(None, NOT_RECORDED, 1.0, None, shares, profiler_steps)
            share = shares[KERNELS]
            return Bottleneck("GPU-bound", KERNELS, share, None, shares, profiler_steps)
    cause = max(idle_by[by].items(), key=lambda one: one[1]) if by in idle_by else None
    if by == COLLECTIVES and 2 * (late := figures.late_ns / span) > losses[by]:
        cause = (LATE_RANK, late)
    bounds = {COLLECTIVES: "communication-bound", COPIES: "transfer-bound"}
    if by == HOST and cause is not None:
        bound = _of_host(figures, cause[0])
        return Bottleneck(bound, by, losses[by], cause, shares, profiler_steps)
    return Bottleneck(bounds.get(by), by, losses[by], cause, shares, profiler_steps)


def _of_host(figures: Figures, cause: str) -> str:
    """Return the name of a run that waits for the host, most of the time for ``cause``."""
    if cause == "data_loader":
        return "input-bound"
    if cause == "operator" and figures.is_launch_bound:
        gaps = figures.gaps(("operator",), "operator")["time_ns"]
        # As the rule launch_bound: in a long gap the host did more than dispatch.
        dispatching = gaps.filter(gaps <= LONGEST_DISPATCH_NS).sum()
        return "launch-bound" if 2 * dispatching >= gaps.sum() else "host-bound"
    return "launch-bound" if cause == "launch_latency" else "host-bound"


def _causes(figures: Figures, span: float) -> Mapping[str, float]:
    """Return the share of each cause of idle time in the time ``span`` of all devices."""
    by_cause = figures.idle().group_by("cause", maintain_order=True).agg(pl.col("time_ns").sum())
    return {cause: time / span for cause, time in by_cause.iter_rows()}
