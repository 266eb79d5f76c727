"""The sections of a diff in HTML: the layers of both runs as icicles, and every table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.idle_gaps import MEANINGS
from traceana.analyze.layer_tree import work_tree
from traceana.report.columns import Kind
from traceana.report.page import Block, Column, Icicle, Notes, Page, Section, Table
from traceana.report.pages.diff_pictures import pictures
from traceana.report.pages.pictures import above, layer_icicle
from traceana.report.pages.single_table import columns_of
from traceana.result import sums

if TYPE_CHECKING:
    from traceana.choices import DiffBy
    from traceana.comparison.diff import Diff
    from traceana.comparison.diff_rows import PairedRun
    from traceana.result import Result

SECTIONS: Final[Mapping[DiffBy, str]] = {
    "layer": "Layers",
    "class": "Classes",
    "algorithm": "Algorithms",
    "kernel": "Kernels",
    "gemm": "GEMMs",
    "transfer": "Transfers",
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

_IDLE: Final = ("cause", "time_a_ns", "time_b_ns", "delta_ns", "of_step", "verdict")


def with_sections(
    found: Diff,
    tables: Mapping[DiffBy, Result],
    titles: Mapping[str, str],
    page: Page,
    limit: int | None,
) -> Page:
    """Return ``page`` with its pictures, and a section for each of ``tables``.

    The table of the layers, which the page has in part, is in its section. ``titles`` are those of
    columns.
    """
    first = tuple(one for one in page.blocks if not (isinstance(one, Table) and one.folded))
    shown = above(lambda: pictures(found))(replace(page, blocks=first), limit)
    sections = []
    for by, title in SECTIONS.items():
        own: list[Block] = list(icicles(found)) if by == "layer" else []
        blocks = tables[by].page(limit=limit).blocks
        own += [one for one in blocks if isinstance(one, Table) and one.frame.height]
        if by == "class" and own:
            own.append(Notes(_MEANINGS))
        if own:
            sections.append(Section(by, title, tuple(own)))
    if found.idle.height:
        sections.insert(1, Section("idle", "Idle time", (idle_causes(found, titles),)))
    return replace(shown, sections=tuple(sections))


def idle_causes(found: Diff, titles: Mapping[str, str]) -> Table:
    """Return the table of the idle time of both runs by cause, and what the causes mean."""
    meanings = [MEANINGS[cause] for cause in found.idle["cause"]]
    frame = found.idle.with_columns(pl.Series("meaning", meanings, pl.String))
    totals = sums(frame, "time_a_ns", "time_b_ns", "delta_ns")
    columns = columns_of(frame, _IDLE, totals, titles)
    return Table(frame, (*columns, Column("meaning", "meaning", Kind.LONG)), totals)


def icicles(found: Diff) -> list[Icicle]:
    """Return the layers of both runs, on one scale of time per step; empty without layers."""
    runs = {"Baseline": found.baseline, "Candidate": found.candidate}
    trees = {name: _tree(run) for name, run in runs.items()}
    if any(tree.is_empty() for tree in trees.values()):
        return []
    longest = max(tree["time_ns"].item(0) / runs[name].steps.count for name, tree in trees.items())
    per = " per step" if found.baseline.steps.marked else ""
    both = {name: layer_icicle(tree) for name, tree in trees.items()}
    if not any(both.values()):
        return []
    return [
        replace(
            icicle,
            title=f"{name}: layers by time{per}, coloured by the class with most time",
            steps=runs[name].steps.count,
            whole_ns=round(longest * runs[name].steps.count),
            paired=True,
        )
        for name, one in both.items()
        for icicle in one
    ]


def _tree(run: PairedRun) -> pl.DataFrame:
    """Return the tree of the work of the compared steps, its layers in the order of the pairs."""
    return work_tree(run.cells.rename({"pair": "position"}))
