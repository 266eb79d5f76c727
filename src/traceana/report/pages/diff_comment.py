"""``diff --comment``: the verdict, a picture, the largest changes, and what is unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.comparison.diff import COLUMNS, IDLE, OVERLAP, Diff
from traceana.comparison.verdicts import step_times
from traceana.report import display_names, numbers
from traceana.report.page import Block, Facts, Findings, Heading, Page, Table
from traceana.report.pages.diff import changed_layers, first_changes
from traceana.report.pages.single_table import data_of, notes_of
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result
from traceana.table import PART, TEXT, TIME, Column

if TYPE_CHECKING:
    from traceana.comparison.verdicts import Gated

_MOST_CAUSES: Final = 3
_MOST_CLASSES: Final = 6
_WIDTH: Final = 20
"""Blocks of the longest bar."""
_PICTURE: Final = (
    Column("class", PART, "class of work"),
    Column("time_a_ns", TIME, "mean time per step of the baseline", title="baseline"),
    Column("time_b_ns", TIME, "mean time per step of the candidate", title="candidate"),
    Column("delta_ns", TIME, "candidate less baseline", title="change", signed=True),
    Column("size", TEXT, "the size of the change as a bar", title=" "),
)
_WORDS: Final = {
    "slower": "Slower",
    "faster": "Faster",
    "same": "Same step time",
    "not enough steps": "Inconclusive: not enough steps",
}


def comment(run_diff: Diff, gate: tuple[float, Gated, str] | None = None) -> CommandResult:
    """Return what a comment on a change says of ``run_diff``; the rows are those by class.

    ``gate`` is the limit of a gate, its outcome and reason.
    """
    classes = run_diff.by("class")

    def page(shown: Arranged) -> Page:
        blocks: tuple[Block, ...] = (
            Heading(_verdict(run_diff), _gate(gate)),
            *_picture(run_diff),
            *_causes(run_diff),
            Facts(tuple(_facts(run_diff))),
            *notes_of(shown.notes),
        )
        return Page("diff", blocks, data_of(shown, {}))

    return CommandResult.of(Result(classes, {}, (), COLUMNS["class"]), page, summary=run_diff)


def _verdict(run_diff: Diff) -> str:
    tested = run_diff.step.decides
    times = numbers.arrow(round(tested.a), round(tested.b))
    if not run_diff.same_work:
        return f"Not compared: different work, steps not marked in both runs ({times})"
    words = _WORDS.get(tested.verdict, "Inconclusive")
    text = f"{words}: step {times}"
    return f"{text} ({numbers.percent(tested.relative)})" if tested.a else text


def _gate(gate: tuple[float, Gated, str] | None) -> str:
    if gate is None:
        return ""
    limit, outcome, reason = gate
    return f"gate of {numbers.level(limit)}: {outcome}{f' ({reason})' if reason else ''}"


def _picture(run_diff: Diff) -> Iterator[Block]:
    """Yield the classes with the largest change, each with a bar."""
    if not run_diff.same_work:
        return
    rows = (
        run_diff.by("class")
        .filter(pl.col("category") != OVERLAP)
        .group_by("category", maintain_order=True)
        .agg(pl.col("time_a_ns", "time_b_ns").sum())
        .with_columns((pl.col("time_b_ns") - pl.col("time_a_ns")).alias("delta_ns"))
        .sort(pl.col("delta_ns").abs(), "category", descending=[True, False])
        .filter(pl.col("delta_ns").abs() >= max(_least(run_diff) / 10, 1))
        .head(_MOST_CLASSES)
    )
    if rows.is_empty():
        return
    longest = int(rows["delta_ns"].abs().max())  # type: ignore[arg-type]
    bars = [
        ("▒" if delta < 0 else "█") * max(round(_WIDTH * abs(delta) / longest), 1)
        for delta in rows["delta_ns"]
    ]
    named = ["idle" if name == IDLE else display_names.category(name) for name in rows["category"]]
    frame = rows.with_columns(
        pl.Series("class", named, pl.String), pl.Series("size", bars, pl.String)
    )
    yield Table(frame, _PICTURE, layout="compact")


def _causes(run_diff: Diff) -> Iterator[Block]:
    findings = first_changes(run_diff, _MOST_CAUSES)
    if findings:
        yield Heading("Largest changes")
        yield Findings(findings, brief=True)


def _least(run_diff: Diff) -> float:
    """Return the smallest change that matters to the step (ns)."""
    return run_diff.criteria.least(*step_times(run_diff.baseline.steps, run_diff.candidate.steps))


def _facts(run_diff: Diff) -> Iterator[tuple[str, str]]:
    """Yield what is unchanged, and the runs."""
    least = _least(run_diff)
    of_step = f"within {numbers.level(run_diff.criteria.minimum_effect)} of the step"
    parts = []
    for by, noun in (("class", "class"), ("layer", "layer"), ("kernel", "kernel")):
        rows = run_diff.by(by).filter(  # type: ignore[arg-type]
            ~pl.nth(0).is_in([IDLE, OVERLAP]).fill_null(value=False)
        )
        if by == "layer":
            rows = rows.filter(pl.col("role") == "layer")
        if rows.height:
            same = rows.filter(pl.col("delta_ns").abs() < least).height
            plural = "classes" if noun == "class" else f"{noun}s"
            parts.append(f"{same:,} of {numbers.counted(rows.height, noun, plural)}")
    if parts and run_diff.same_work:
        yield "Unchanged", f"{', '.join(parts)} ({of_step})"
    if run_diff.same_work and (layers := changed_layers(run_diff, _MOST_CAUSES)):
        yield "Layers", layers
    kernels = run_diff.kernel_time
    if kernels is not None:
        tested = kernels.decides
        yield (
            "GPU kernels",
            f"{numbers.arrow(round(tested.a), round(tested.b))} per step; {tested.verdict}",
        )
    for label, run in (("Baseline", run_diff.baseline), ("Candidate", run_diff.candidate)):
        file = display_names.trace_file(run.run.trace.meta.source)
        yield label, f"{file} · {numbers.counted(run.steps.count, 'step')}"
