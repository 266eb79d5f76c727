"""Steps whose kernels end sooner than the host launches the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule
from traceana.advise.waiting import waits

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_MOST: Final = 0.5
DISPATCH_NS: Final = 1_000_000
"""No operator takes longer to be dispatched: a longer gap has another reason."""


def launches_set_the_pace(figures: Figures) -> bool:
    """Tell whether half of the kernels last shorter than the call that launched them."""
    return figures.launch_bound is not None and figures.launch_bound >= _MOST


def _finds(figures: Figures) -> Found | None:
    if figures.on_cpu or not launches_set_the_pace(figures):
        return None
    launches = figures.devices["launches"].sum()
    return waits(
        figures,
        "operator",
        "launch_latency",
        lasting=pl.col("time_ns") <= DISPATCH_NS,
        launch_bound_share=figures.launch_bound,
        launches_count=figures.each(int(launches)),
    )


RULE: Final = Rule(
    id="launch_bound",
    title="steps bound by launches: kernels shorter than the calls that launch them",
    finds=_finds,
    kind="at most",
    says=(
        "The device is idle for {idle_ns} while the host dispatches {launches_count} launches; "
        "{launch_bound_share} of the kernels are shorter than the call that launches them."
    ),
    estimate=(
        "all the idle time in which the host was in an operator that had not launched yet, or in "
        "the launch itself, for 1 ms at most, where half of the kernels or more are shorter than "
        "their launching call: a graph launches them with one call."
    ),
    doubt=(
        "A profiler makes each launch slower: the time of a step without it is what counts. A "
        "larger batch helps as well."
    ),
    change=Change(
        pytorch="torch.compile(mode='reduce-overhead') or torch.cuda.graphs; fused optimizers; a "
        "larger batch",
        tensorflow="tf.function(jit_compile=True), steps_per_execution; a larger batch",
        jax="one jax.jit around the whole step; --xla_gpu_enable_command_buffer; a larger batch",
    ),
)
