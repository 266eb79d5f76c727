"""Rules on measurement validity: algorithm search, profiler overhead, slow first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.advise.gpu_idle import idle_for
from traceana.advise.rule import Change, Found, rule
from traceana.settings import MEAN_SHIFT, WARM_UP_RATIO
from traceana.trace.taxonomy import SEARCH

if TYPE_CHECKING:
    from traceana.advise.figures import Figures


@rule(
    title="algorithm search",
    kind="estimate",
    sentence="{calls} kernels of algorithm search in the measured steps: {time_ns}, {share} of "
    "GPU time",
    estimate="the kernels of autotuners and their trials, and all but the last of each call that "
    "runs three algorithms or more.",
    caveat="The search runs once per shape: in longer runs it is spread over more steps.",
    change=Change(
        pytorch="profile after the first steps (schedule(wait=…, warmup=…)), and keep input "
        "shapes fixed: cudnn.benchmark searches again for each new shape",
        tensorflow="leave the first steps out, and keep shapes fixed (drop_remainder=True)",
        jax="compile ahead (jit(...).lower().compile()) and profile after; keep shapes fixed",
        native="search once before the loop, and keep the algorithms; keep shapes fixed",
    ),
)
def algorithm_search(figures: Figures) -> Found | None:
    """Algorithm search (cuDNN's, XLA's, TensorFlow's) inside the measured steps."""
    search = figures.breakdown.filter(pl.col("category") == SEARCH)
    total = int(search["time_ns"].sum())
    if not figures.worth(total):
        return None
    tried = (
        figures.convolutions.filter(pl.col("tried") > 0)
        .group_by("layer", "operator", "direction")
        .agg(
            pl.col("algorithm").unique().sort().str.join(", ").alias("algorithms"),
            pl.col("tried", "tried_ns").sum(),
        )
        .sort("tried_ns", "layer", descending=[True, False])
    )
    rest = total - int(tried["tried_ns"].sum())
    others = pl.DataFrame({"operator": ["(other search kernels)"], "tried_ns": [rest]})
    evidence = pl.concat([tried, others], how="diagonal") if rest else tried
    return Found(
        total,
        {
            "calls": figures.mean(int(search["calls"].sum())),
            "time_ns": figures.each(total),
            "share": total / figures.work_ns,
        },
        evidence,
    )


_MOST_NAMED: Final = 3
"""Steps with profiler overhead that a finding names."""


@rule(
    title="profiler overhead",
    kind="measurement validity",
    sentence="GPU idle {idle_ns} ({share}) during profiler overhead[, in {steps} of {steps_count} "
    "steps][: {which}]",
    estimate="no saving; shown is the idle time with the cause profiler.",
    caveat="Only overhead that the profiler itself records is included.",
    change=Change(
        pytorch="fewer activities and no with_stack; larger buffers; a schedule of few steps",
        tensorflow="fewer steps and a lower host_tracer_level",
        jax="fewer steps, host_tracer_level=1 in ProfileOptions",
        native="trace fewer APIs (nsys profile --trace); a shorter capture",
    ),
)
def profiler_overhead(figures: Figures) -> Found | None:
    """GPU idle time during the profiler's own overhead."""
    if figures.on_cpu:
        return None
    steps = figures.profiler_steps
    every = None if steps is None else figures.measured["step"].n_unique()
    numbers = figures.profiler_step_numbers
    which = None
    # Few steps are named: the others have no overhead.
    if every is not None and 0 < len(numbers) <= _MOST_NAMED and 2 * len(numbers) < every:
        which = f"step{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
    found = idle_for(figures, "profiler", steps=steps, steps_count=every, which=which)
    return None if found is None else replace(found, saving_ns=0)


@rule(
    title="slow first steps",
    kind="measurement validity",
    sentence="first {count} of {steps_count} steps: {time_ns} each, the others {wall_ns}; a mean "
    "over all steps is {ratio} times that of the others",
    estimate="no saving: it affects what is measured, not the run.",
    caveat="traceana leaves detected warm-up steps out of its averages.",
    change=Change(
        pytorch="torch.profiler.schedule(wait=1, warmup=2, active=N), and drop the first steps "
        "from manual timings",
        tensorflow="start tf.profiler after the first steps (profile_batch=(10, 20))",
        jax="run one step and block_until_ready before jax.profiler.start_trace",
        native="begin the capture after the first iterations (cudaProfilerStart)",
    ),
)
def first_step_counted(figures: Figures) -> Found | None:
    """Warm-up steps that a mean over all steps would include."""
    steps = (
        figures.steps.filter("complete")
        .group_by("step")
        .agg(pl.col("wall_ns").max(), pl.col("start_ns").min(), pl.col("warm_up").any())
    )
    steps = steps.sort("start_ns")
    if steps.height < 2:
        return None
    slow, rest = steps.filter("warm_up"), steps.filter(~pl.col("warm_up"))
    if slow.is_empty():
        # Warm-up is not detected with two steps, so a slower first step is tested here.
        slow, rest = steps.head(1), steps.tail(-1)
    if rest.is_empty():
        return None
    # Of up to ten later steps the slowest: steps as slow as the first ones are no warm-up.
    usual = rest.select(pl.col("wall_ns").quantile(0.9, "higher")).item()
    if slow.select(pl.col("wall_ns").min()).item() < WARM_UP_RATIO * usual:
        return None
    mean, others = _mean(steps), _mean(rest)
    if others == 0 or mean < (1 + MEAN_SHIFT) * others:
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
