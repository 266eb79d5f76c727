"""Warm-up steps that a mean over all steps would count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.advise.model import Change, Found, Rule

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

_FALSIFIED: Final = 0.05
_SLOWER: Final = 1.25


def _finds(figures: Figures) -> Found | None:
    steps = figures.steps.group_by("step").agg(
        pl.col("wall_ns").max(), pl.col("start_ns").min(), pl.col("warm_up").any()
    )
    steps = steps.sort("start_ns")
    if steps.height < 2:
        return None
    slow, rest = steps.filter("warm_up"), steps.filter(~pl.col("warm_up"))
    if slow.is_empty():
        # Of two steps nothing can be told to be warm-up: that the first is slower, can.
        slow, rest = steps.head(1), steps.tail(-1)
        if slow["wall_ns"].item() < _SLOWER * _mean(rest):
            return None
    mean, others = _mean(steps), _mean(rest)
    if mean < (1 + _FALSIFIED) * others:
        return None
    return Found(
        0,
        {
            "count": slow.height,
            "steps_count": steps.height,
            "time_ns": int(_mean(slow)),
            "wall_ns": int(others),
            "ratio": mean / others,
        },
        steps.select("step", "wall_ns", "warm_up"),
    )


def _mean(steps: pl.DataFrame) -> float:
    return int(steps["wall_ns"].sum()) / steps.height


RULE: Final = Rule(
    id="first_step_counted",
    title="a slow first step that a mean over all steps would count",
    finds=_finds,
    kind="measuring",
    says=(
        "The recording begins with slow steps: {count} of {steps_count} take {time_ns} each, the "
        "others {wall_ns}. A mean over all steps is {ratio} times that of the others."
    ),
    estimate="nothing to save: it falsifies what is measured, not the run.",
    doubt="traceana leaves warm-up steps out of its figures per step wherever it can tell them.",
    change=Change(
        pytorch="torch.profiler.schedule(wait=1, warmup=2, active=N), and drop the first steps "
        "from hand-made timings",
        tensorflow="start tf.profiler behind the first steps (profile_batch=(10, 20))",
        jax="run one step and block_until_ready before jax.profiler.start_trace",
    ),
)
