"""The sections of a diff in HTML: its pictures, an icicle of the layers of both runs, tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.layer_tree import work_tree
from traceana.comparison.changes import IDLE as IDLE_CAUSES
from traceana.comparison.columns import FIGURE
from traceana.comparison.diff import IDLE
from traceana.report import display_names, numbers
from traceana.report.page import Axis, Block, Chart, Icicle, Marks, Notes, Page, Section, Table
from traceana.report.pages.analysis_pictures import layer_icicle
from traceana.report.pages.single_table import with_values
from traceana.result import sums
from traceana.table import Column, Kind
from traceana.timeline.idle_gaps import MEANINGS

if TYPE_CHECKING:
    from traceana.comparison.diff import Diff
    from traceana.comparison.verdicts import StatisticVerdict
    from traceana.report.result import CommandResult
    from traceana.vocabulary.option_words import DiffBy

SECTIONS: Final[Mapping[DiffBy, str]] = {
    "layer": "Layers",
    "class": "Classes",
    "algorithm": "Algorithms",
    "kernel": "Kernels",
    "gemm": "GEMMs",
    "transfer": "Transfers",
    "line": "Lines of the program",
}
"""The titles of the sections; the name of a section is what its table is grouped by."""

_MEANINGS: Final = (
    ("(idle):", "time in which the devices have no work; by cause in Idle time"),
    (
        "(overlap correction):",
        "less than 0 for work of several streams at once and for work that ends after its step; "
        "the rows add up to the step",
    ),
)
"""Rows of every table that are not work."""


def with_sections(
    run_diff: Diff,
    tables: Mapping[DiffBy, CommandResult],
    page: Page,
    limit: int | None,
) -> Page:
    """Return ``page`` with a section for each of ``tables``.

    The table of the layers, which the page has in part, is in its section.
    """
    first = tuple(block for block in page.blocks if not (isinstance(block, Table) and block.folded))
    sections = []
    for by, title in SECTIONS.items():
        if by not in tables:
            continue
        content: list[Block] = list(icicle(run_diff)) if by == "layer" else []
        blocks = tables[by].page(limit=limit).blocks
        content += [block for block in blocks if isinstance(block, Table) and block.frame.height]
        if by == "class" and content:
            content.append(Notes(_MEANINGS))
        if content:
            sections.append(Section(by, title, tuple(content)))
    if run_diff.idle.height:
        sections.insert(1, Section("idle", "Idle time", (idle_causes(run_diff),)))
    return replace(page, blocks=first, sections=tuple(sections))


def idle_causes(run_diff: Diff) -> Table:
    """Return the table of the idle time of both runs by cause, and what the causes mean."""
    meanings = [MEANINGS[cause] for cause in run_diff.idle["cause"]]
    frame = run_diff.idle.with_columns(pl.Series("meaning", meanings, pl.String))
    totals = sums(frame, "time_a_ns", "time_b_ns", "delta_ns")
    columns = with_values(frame, IDLE_CAUSES, totals)
    return Table(frame, (*columns, Column("meaning", Kind.LONG)), totals)


_BANDS: Final = {
    "10 % faster or more": "#007a59",
    "2 to 10 % faster": "#7cc9b0",
    "changed by less than 2 %": "#c9ced3",
    "2 to 10 % slower": "#f2a977",
    "10 % slower or more": "#c24e00",
    "in the baseline only": "#56b4e9",
    "in the candidate only": "#cc79a7",
}
"""Changes of a node, and their colours."""


def icicle(run_diff: Diff) -> list[Icicle]:
    """Return the layers of both runs, as wide as their mean time; empty without layers.

    A layer has its name in the candidate, or in the baseline if only that has it.
    """
    runs = [run_diff.candidate, run_diff.baseline]
    cells = pl.concat(
        run.cells.select(
            *("pair", "layer", "role", "direction"),
            pl.col("category").cast(pl.String),
            pl.col("calls") // run.steps.count,
            pl.col("time_ns") // run.steps.count,
            time_a_ns=pl.col("time_ns") // run.steps.count * int(run is run_diff.baseline),
        )
        for run in runs
    )
    work = cells.rename({"pair": "position"}).with_columns(
        pl.col("layer", "role").first().over("position")
    )
    tree = work_tree(work, "time_a_ns")
    alone = [] if tree.is_empty() else layer_icicle(tree)
    if not alone:
        return []
    a, b = pl.col("time_a_ns"), pl.col("time_b_ns")
    change = (b - a) / a
    names = [*_BANDS]
    band = (
        pl.when(a == 0).then(pl.lit(names[6])).when(b == 0).then(pl.lit(names[5]))
        .when(change <= -0.1).then(pl.lit(names[0])).when(change < -0.02).then(pl.lit(names[1]))
        .when(change <= 0.02).then(pl.lit(names[2])).when(change < 0.1).then(pl.lit(names[3]))
        .otherwise(pl.lit(names[4]))
    )  # fmt: skip
    frame = tree.with_columns(time_b_ns=pl.col("time_ns") - a).with_columns(
        (b - a).alias("delta_ns"), band.alias("category"), alone[0].frame["label"]
    )
    per = " per step" if run_diff.baseline.steps.marked else ""
    both = numbers.arrow(frame["time_a_ns"].item(0), frame["time_b_ns"].item(0))
    return [
        Icicle(
            f"Layers by mean time{per} of both runs, coloured by change",
            f"{numbers.counted(tree.height - 1, 'node')} of the layer tree; all work {both}{per}.",
            frame,
            tuple(FIGURE[name] for name in ("time_a_ns", "time_b_ns", "delta_ns")),
            steps=2,
            colours=_BANDS,
        )
    ]


MOST_CLASSES: Final = 10
"""Classes with a bar of their own; the others are one bar."""

_LEAST: Final = 0.005
"""Changes below this share of the step are among the others."""

_COLOURS: Final = {
    **{"step": "#0072b2", "less": "#009e73", "more": "#d55e00"},
    "inconclusive": "#9aa0a6",
}
_CERTAIN: Final = ("faster", "slower", "only in baseline", "only in candidate")

_MOST_STEPS: Final = 1_000


def pictures(run_diff: Diff) -> list[Block]:
    """Return the charts of the steps and of the change by class."""
    return [*_steps(run_diff), *_change(run_diff)]


def _steps(run_diff: Diff) -> list[Chart]:
    """Return the wall time of every step of both runs; empty where steps are not marked."""
    if not run_diff.baseline.steps.marked:
        return []
    runs = {"baseline": run_diff.baseline, "candidate": run_diff.candidate}
    steps = pl.concat(
        run.steps.frame.head(_MOST_STEPS).select("wall_ns", pl.lit(name).alias("run"))
        for name, run in runs.items()
    )
    step = run_diff.step
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
            (Marks(both, "point", "wall_ns", "run", colour="is"),),
            height=110,
        ),
        *_interval(run_diff, decided),
    ]


def _interval(run_diff: Diff, decided: StatisticVerdict) -> list[Chart]:
    """Return the change of the step time with its interval beside 0; empty without an interval."""
    interval = decided.interval
    if interval is None:
        return []
    statistic, level = run_diff.step.statistic, f"{numbers.level(run_diff.criteria.level)} interval"
    low, change, high = (
        round(value) for value in (interval.low, interval.difference, interval.high)
    )
    none = pl.DataFrame({"change_ns": [0]})
    bounds = pl.DataFrame({"change_ns": [low, high], "is": [level] * 2})
    middle = pl.DataFrame({"change_ns": [change], "is": ["change"]})
    return [
        Chart(
            f"Change of the {statistic} step time; left of 0 is faster",
            f"{numbers.signed(change)}, {level} {numbers.signed(low)} to {numbers.signed(high)}.",
            Axis("candidate less baseline", Kind.TIME),
            Axis("", Kind.TEXT),
            (
                Marks(bounds, "line", "change_ns", "is"),
                Marks(middle, "point", "change_ns", "is"),
                Marks(none, "rule", "change_ns"),
            ),
            height=90,
        )
    ]


def _by_cause(run_diff: Diff, idle: int) -> list[tuple[str, int, bool]]:
    """Return the causes by which the idle time changed, and the rest of its change."""
    rows = run_diff.changes.filter((pl.col("change") == "idle") & ~pl.col("least"))
    certain = pl.col("verdict").is_in(_CERTAIN)
    causes = list(rows.select("subject", "delta_ns", certain).iter_rows())
    rest = idle - sum(delta for _, delta, _ in causes)
    named = [(f"idle: {display_names.part(cause)}", delta, sure) for cause, delta, sure in causes]
    name = "idle: other causes" if causes else "idle"
    return [*named, *([(name, rest, False)] if rest else [])]


def _change(run_diff: Diff) -> list[Chart]:
    """Return bars from the baseline's mean step to the candidate's, by class."""
    rows = (
        run_diff.by("class")
        .group_by("category", maintain_order=True)
        .agg(
            pl.col("time_a_ns").sum(),
            pl.col("time_b_ns").sum(),
            pl.col("verdict").is_in(_CERTAIN).any().alias("certain"),
        )
        .with_columns((pl.col("time_b_ns") - pl.col("time_a_ns")).alias("delta_ns"))
        .sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    )
    if rows.is_empty() or not run_diff.same_work:
        return []
    before, after = int(rows["time_a_ns"].sum()), int(rows["time_b_ns"].sum())
    shown = rows.filter(pl.col("delta_ns").abs() >= _LEAST * before).head(MOST_CLASSES)
    changes: list[tuple[str, int, bool]] = []
    for name, delta, certain in shown.select("category", "delta_ns", "certain").iter_rows():
        called = display_names.category(name.strip("()"))
        changes += _by_cause(run_diff, delta) if name == IDLE else [(called, delta, certain)]
    rest = after - before - int(shown["delta_ns"].sum())
    if rest:
        others = rows.height - shown.height
        changes.append((f"{others} other class{'es' * (others != 1)}", rest, False))
    bars: list[tuple[str, int, int, int, str]] = [("baseline", 0, before, before, "step")]
    at = before
    for name, delta, certain in changes:
        direction = "less" if delta < 0 else "more"
        bars.append((name, at, at + delta, delta, direction if certain else "inconclusive"))
        at += delta
    bars.append(("candidate", 0, after, after, "step"))
    frame = pl.DataFrame(
        bars, schema=["class", "start_ns", "end_ns", "change_ns", "is"], orient="row"
    )
    return [
        Chart(
            "From the baseline to the candidate, by class"
            + ("" if run_diff.baseline.steps.marked else " (whole runs)"),
            "; ".join(f"{name} {numbers.signed(delta)}" for name, delta, _ in changes)
            or "no change",
            Axis("", Kind.TEXT),
            Axis("mean time per step" if run_diff.baseline.steps.marked else "time", Kind.TIME),
            (
                Marks(
                    frame,
                    "bar",
                    "class",
                    "start_ns",
                    y_end="end_ns",
                    colour="is",
                    label="class",
                    shown=(Column("change_ns", Kind.TIME, title="time"),),
                ),
            ),
            height=280,
            colours=_COLOURS,
        )
    ]
