"""Pictures of a diff, for HTML: the steps of both runs, and what the change consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.comparison.diff_rows import IDLE
from traceana.report import names, numbers
from traceana.report.columns import Kind
from traceana.report.page import Axis, Block, Chart, Column, Marks
from traceana.report.pages.single_table import column

if TYPE_CHECKING:
    from traceana.comparison.diff import Diff
    from traceana.comparison.verdicts import StatisticVerdict

MOST_CLASSES: Final = 10
"""Classes with a bar of their own; the others are one bar."""

_LEAST: Final = 0.005
"""Changes below this share of the step are among the others."""

_COLOURS: Final = {"step": "#0072b2", "less": "#009e73", "more": "#d55e00"}

_MOST_STEPS: Final = 1_000


def pictures(found: Diff) -> list[Block]:
    """Return the chart of the steps and that of the change by class."""
    return [*_steps(found), *_change(found)]


def _steps(found: Diff) -> list[Chart]:
    """Return the wall time of every step of both runs; empty where steps are not marked."""
    if not found.baseline.steps.marked:
        return []
    runs = {"baseline": found.baseline, "candidate": found.candidate}
    steps = pl.concat(
        run.steps.frame.head(_MOST_STEPS).select("wall_ns", pl.lit(name).alias("run"))
        for name, run in runs.items()
    )
    step = found.step
    decided = step.median if step.statistic == "median" else step.mean
    centre = pl.DataFrame(
        {
            "run": list(runs),
            "wall_ns": [round(decided.a), round(decided.b)],
            "is": [step.statistic] * 2,
        }
    )
    both = pl.concat(
        [steps.with_columns(pl.lit("step").alias("is")), centre.select("wall_ns", "run", "is")]
    )
    return [
        Chart(
            f"Steps of both runs and their {step.statistic}",
            f"Wall time of {numbers.counted(steps.height, 'step')}; {step.statistic} "
            f"{numbers.arrow(round(decided.a), round(decided.b))}.",
            Axis("wall time", Kind.TIME, from_zero=False),
            Axis("", Kind.TEXT),
            (
                Marks(
                    both,
                    "point",
                    "wall_ns",
                    "run",
                    colour="is",
                    label="run",
                    shown=(column("wall_ns"),),
                ),
            ),
            height=110,
        ),
        *_interval(found, decided),
    ]


def _interval(found: Diff, decided: StatisticVerdict) -> list[Chart]:
    """Return the change of the step time with its interval beside 0; empty without an interval."""
    interval = decided.interval
    if interval is None:
        return []
    statistic, level = found.step.statistic, f"{100 * found.criteria.level:g} % interval"
    low, change, high = (
        round(value) for value in (interval.low, interval.difference, interval.high)
    )
    none = pl.DataFrame({"change_ns": [0, 0], "is": ["change", level], "rule": ["none"] * 2})
    bounds = pl.DataFrame({"change_ns": [low, high], "is": [level] * 2})
    shown = (column("change_ns", "change"),)
    return [
        Chart(
            f"Change of the {statistic} step time; left of 0 is faster",
            f"{numbers.signed(change)}, {level} {numbers.signed(low)} to {numbers.signed(high)}.",
            Axis("candidate less baseline", Kind.TIME),
            Axis("", Kind.TEXT),
            (
                Marks(bounds, "line", "change_ns", "is", shown=shown),
                Marks(
                    pl.DataFrame({"change_ns": [change], "is": ["change"]}),
                    "point",
                    "change_ns",
                    "is",
                    label="is",
                    shown=shown,
                ),
                Marks(none, "rule", "change_ns", "is", colour="rule"),
            ),
            height=90,
        )
    ]


def _by_cause(found: Diff, idle: int) -> list[tuple[str, int]]:
    """Return the causes by which the idle time changed, and the rest of its change."""
    rows = found.changes.filter((pl.col("change") == "idle") & ~pl.col("least"))
    causes = list(rows.select("subject", "delta_ns").iter_rows())
    rest = idle - sum(delta for _, delta in causes)
    named = [(f"idle: {names.part(cause)}", delta) for cause, delta in causes]
    return [*named, *([("idle: other causes" if causes else "idle", rest)] if rest else [])]


def _change(found: Diff) -> list[Chart]:
    """Return the bars from the mean step of the baseline to that of the candidate, by class."""
    rows = (
        found.by("class")
        .group_by("category", maintain_order=True)
        .agg(pl.col("time_a_ns").sum(), pl.col("time_b_ns").sum())
        .with_columns((pl.col("time_b_ns") - pl.col("time_a_ns")).alias("delta_ns"))
        .sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    )
    if rows.is_empty():
        return []
    before, after = int(rows["time_a_ns"].sum()), int(rows["time_b_ns"].sum())
    shown = rows.filter(pl.col("delta_ns").abs() >= _LEAST * before).head(MOST_CLASSES)
    changes: list[tuple[str, int]] = []
    for name, delta in shown.select("category", "delta_ns").iter_rows():
        called = names.category(name.strip("()"))
        changes += _by_cause(found, delta) if name == IDLE else [(called, delta)]
    rest = after - before - int(shown["delta_ns"].sum())
    if rest:
        others = rows.height - shown.height
        changes.append((f"{others} other class{'es' * (others != 1)}", rest))
    bars: list[tuple[str, int, int, int, str]] = [("baseline", 0, before, before, "step")]
    at = before
    for name, delta in changes:
        bars.append((name, at, at + delta, delta, "less" if delta < 0 else "more"))
        at += delta
    bars.append(("candidate", 0, after, after, "step"))
    frame = pl.DataFrame(
        bars, schema=["class", "start_ns", "end_ns", "change_ns", "is"], orient="row"
    )
    return [
        Chart(
            "From the baseline to the candidate, by class"
            + ("" if found.baseline.steps.marked else " (whole runs)"),
            "; ".join(f"{name} {numbers.signed(delta)}" for name, delta in changes) or "no change",
            Axis("", Kind.TEXT),
            Axis("mean time per step" if found.baseline.steps.marked else "time", Kind.TIME),
            (
                Marks(
                    frame,
                    "bar",
                    "class",
                    "start_ns",
                    y_end="end_ns",
                    colour="is",
                    label="class",
                    shown=(Column("change_ns", "time", Kind.TIME),),
                    colours=_COLOURS,
                ),
            ),
            height=280,
        )
    ]
