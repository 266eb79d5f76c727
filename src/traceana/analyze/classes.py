"""The class of activities and of kernel names, and the time by class, which adds up to all work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from traceana.analyze import summaries
from traceana.analyze.measured import measured_notes
from traceana.enrich.classify.engine import classify_names, explain
from traceana.result import Result, sums, with_share
from traceana.settings import LEAST_ROW_SHARE
from traceana.table import (
    CATEGORY,
    COUNT,
    KERNEL,
    LONG,
    PART,
    SHARE,
    STEP,
    TEXT,
    TIME,
    Column,
    conformed,
    laid_out,
    names_of,
)
from traceana.timeline.steps import measured_steps
from traceana.timeline.work import why_no_work, work
from traceana.trace.taxonomy import CLASS_SCHEMA
from traceana.trace.work import CLASS

if TYPE_CHECKING:
    from traceana.enrich.classify import RuleSet
    from traceana.trace import Trace


CLASSIFIED: Final = laid_out(
    (
        Column("name", KERNEL, "the name as given"),
        *(CLASS[name] for name in CLASS_SCHEMA if name in CLASS),
        Column("rule", TEXT, "id of the rule that decided"),
    ),
    dropped="family tensor_core gemm_layout epilogue rule tile library function batched precision "
    "direction",
)
"""The classes of names."""
REASONS: Final = (
    Column("reason", LONG, "with `--explain`: the reason of the rule"),
    Column("file", TEXT, "the file of the rule"),
    Column("head", TEXT, "the part of the name that rules match"),
    Column("also_matched", LONG, "ids of later rules that match too, comma-separated"),
)
EXPLAINED: Final = laid_out((*CLASSIFIED, *REASONS))


def name_classes(
    names: Sequence[str], rules: RuleSet | None, given: Sequence[str] | None = None
) -> Result:
    """Return one row per name, in order, with :data:`CLASSIFIED`.

    ``given`` holds the names as the user gave them (mangled) where ``names`` are demangled: the
    rows have these names, so that they can be joined.
    """
    frame = classify_names(pl.Series("name", names, dtype=pl.String), rules)
    if given is not None:
        frame = frame.with_columns(pl.Series("name", given, dtype=pl.String))
    return Result(frame, {}, () if names else ("no names given",), CLASSIFIED)


def explained_names(
    names: Sequence[str], rules: RuleSet | None, given: Sequence[str] | None = None
) -> Result:
    """Return one row per name, in order, as :func:`name_classes` does, with the reason.

    The columns are :data:`EXPLAINED`.
    """
    explained = [explain(name, rules) for name in names]
    why = pl.DataFrame(
        [(e.reason, e.file, e.head, ", ".join(e.also_matched)) for e in explained],
        schema=names_of(REASONS),
        orient="row",
    )
    whole = name_classes(names, rules, given)
    frame = conformed(pl.concat([whole.frame, why], how="horizontal"), EXPLAINED)
    return Result(frame, {}, whole.notes, EXPLAINED)


COLUMNS: Final = (
    Column("category", CATEGORY, "class of the work", title="class"),
    Column(
        "part",
        PART,
        "algorithm of a convolution, BLAS name of a product, direction of a copy, function of some "
        "others; null where a class has no parts",
    ),
    Column("calls", COUNT, "pieces of work", additive=True),
    Column("time_ns", TIME, "summed durations", additive=True),
    Column(
        "step_ns",
        TIME,
        "mean over the measured steps, rounded down; null without steps",
        title="per step",
        scale=STEP,
    ),
    Column("share", SHARE, "of all work"),
)


def breakdown(trace: Trace) -> Result:
    """Return one row per category and part, with :data:`COLUMNS`.

    Rows are ordered by the time of their category, then by their own.
    """
    measured = measured_steps(trace)
    in_measured = pl.col("step").is_in(measured.rows)
    if trace.is_summary:
        by_class = summaries.by_class(trace).with_columns(in_steps=None)
    else:
        by_class = (
            work(trace, "category", "part", "duration", "step")
            .with_columns(pl.when(in_measured).then("duration").otherwise(0).alias("in_steps"))
            .group_by("category", "part")
            .agg(
                pl.len().cast(pl.Int64).alias("calls"),
                pl.col("duration").sum().alias("time_ns"),
                pl.col("in_steps").sum(),
            )
            .with_columns(pl.col("category", "part").cast(pl.String))
        )
    frame = (
        by_class.group_by("category", "part")
        .agg(pl.col("calls", "time_ns", "in_steps").sum())
        .with_columns(pl.col("time_ns").sum().over("category").alias("of_category"))
        .sort(
            ["of_category", "category", "time_ns", "part"],
            descending=[True, False, True, False],
            nulls_last=True,
        )
    )
    steps = len(measured.rows)
    step_ns = pl.col("in_steps") // steps if steps else pl.lit(None, pl.Int64)
    frame = with_share(frame.with_columns(step_ns.alias("step_ns")))
    notes = list(measured.notes)
    if frame.is_empty():
        notes.append(why_no_work(trace))
    waits = int((trace.tables.activities["kind"] == "sync").sum())
    if waits:
        notes.append(f"synchronization events excluded: {waits:,}")
    notes += [*measured_notes(trace), *summaries.notes(trace)]
    return Result(
        conformed(frame, COLUMNS),
        sums(frame, "calls", "time_ns"),
        tuple(notes),
        COLUMNS,
    )


class Line(msgspec.Struct, frozen=True):
    """A category, a part of the one before it (``depth`` 1), or the rest of either.

    ``category`` and ``part`` are null in a line of the rest, where ``folded`` is the number of
    rows in it.
    """

    depth: int
    category: str | None
    part: str | None
    calls: int
    time_ns: int
    step_ns: int | None
    share: float
    folded: int = 0


def condensed(breakdown: pl.DataFrame, least: float = LEAST_ROW_SHARE) -> list[Line]:
    """Return the lines of ``breakdown``.

    Lines of depth 0 add up to all work, lines of depth 1 to the line of depth 0 before them. A
    category with one part is one line. Parts and categories with less than the share ``least`` of
    all work are folded if there are several.
    """
    groups = breakdown.partition_by("category", maintain_order=True)
    shown = [group for group in groups if (group["share"].sum() or 0) >= least]
    small = groups[len(shown) :]
    if len(small) == 1:
        shown, small = groups, []
    lines: list[Line] = []
    for group in shown:
        category = group["category"][0]
        if group.height == 1:
            lines.append(_line(0, category, group["part"][0], group))
            continue
        lines.append(_line(0, category, None, group))
        large = pl.col("share") >= least
        small_parts = group.filter(pl.col("share") < least)
        parts = group if small_parts.height < 2 else group.filter(large)
        lines += [_line(1, category, row["part"][0], row) for row in parts.iter_slices(1)]
        if 0 < parts.height < group.height:
            lines.append(_line(1, None, None, small_parts, folded=small_parts.height))
    if small:
        lines.append(_line(0, None, None, pl.concat(small), folded=len(small)))
    return lines


def _line(
    depth: int, category: str | None, part: str | None, rows: pl.DataFrame, folded: int = 0
) -> Line:
    in_step = rows["step_ns"]
    return Line(
        depth=depth,
        category=category,
        part=part,
        calls=int(rows["calls"].sum()),
        time_ns=int(rows["time_ns"].sum()),
        step_ns=None if in_step.null_count() else int(in_step.sum()),
        share=float(rows["share"].sum() or 0.0),
        folded=folded,
    )
