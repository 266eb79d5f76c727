"""The sections of the report in HTML: every analysis, its pictures first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from traceana.analyze.classes import COLUMNS as BY_CLASS
from traceana.analyze.devices import step_parts
from traceana.analyze.timeline import Window, timeline
from traceana.report import numbers
from traceana.report.page import (
    Bars,
    Block,
    Chart,
    Columns,
    Facts,
    Illustration,
    Notes,
    Page,
    Section,
    Single,
    Table,
    in_order,
)
from traceana.report.pages.advise import advised
from traceana.report.pages.analysis_pictures import (
    plan_bars,
    step_bars,
    step_strip,
    step_timeline,
)
from traceana.report.pages.bars import bars
from traceana.report.pages.idle import critical, idle
from traceana.report.pages.info import info
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import flops, layers
from traceana.report.pages.memory import memory
from traceana.report.pages.samples import samples
from traceana.report.pages.transfers import all_collectives, transfers
from traceana.table import chosen
from traceana.timeline.steps import only_sums
from traceana.timeline.work import has_frames

if TYPE_CHECKING:
    from traceana.report.pages.overview import Overview
    from traceana.report.result import CommandResult
    from traceana.trace import Trace


def begin_pictures(trace: Trace) -> Future[tuple[Window, ...]]:
    """Begin the timeline of ``trace`` in a thread of its own.

    It takes as long as all other sections together; polars and numpy let both run.
    """
    beside = ThreadPoolExecutor(1)
    begun = beside.submit(_timeline, trace)
    beside.shutdown(wait=False)
    return begun


def _timeline(trace: Trace) -> tuple[Window, ...]:
    return () if trace.is_summary else timeline(trace)


def with_sections(
    trace: Trace,
    whole: Overview,
    drawn: Future[tuple[Window, ...]],
    page: Page,
    limit: int | None,
    exact: bool,
) -> Page:
    """Return ``page`` with the time of the steps and the classes, and a section per analysis.

    ``drawn`` is of :func:`begin_pictures`. Tables have at most ``limit`` rows, with means per step
    or ``exact`` sums.
    """

    def section(
        name: str, title: str, result: CommandResult, *, folded: bool = False, command: str = ""
    ) -> Section:
        return Section(
            name, title, result.illustrated(limit=limit, exact=exact).blocks, folded, command
        )

    basis = whole.basis
    shown = basis.means(basis.breakdown).frame
    by_class = bars(
        shown,
        f"{whole.processor} time by class{f', mean {basis.per}' if basis.per else ''}",
        chosen(BY_CLASS, ("category", "time_ns", "calls")),
        axis=f"time {basis.per}".rstrip(),
        coloured=True,
    )
    classes = [Bars(*msgspec.structs.astuple(chart)) for chart in by_class]
    if trace.is_summary:
        of_summary = (
            section("kernels", "Kernels", kernels(trace)),
            section("transfers", "Transfers", transfers(trace)),
            section("trace", "Trace and integrity", info(trace), command="info"),
        )
        title, head, *rest = page.blocks
        blocks = _ordered(title, head, rest, (), classes, whole.utilization)
        return replace(page, blocks=blocks, sections=of_summary)
    ranks = trace.tables.steps.select("process", "rank").drop_nulls().unique()
    ranks = ranks.filter(ranks["process"].is_unique()).sort("rank")
    recorded = whole.unrecorded is None
    # Of steps that run ahead only the sum is exact.
    steps: list[Chart] = []
    if recorded and not only_sums(trace):
        steps = step_bars(whole.steps.frame, step_parts(trace), ranks)
    gaps = [_pictures_beside(section("idle", "Idle time", idle(trace)))] if recorded else []
    tables = _tables(trace, whole, section)
    windows = step_timeline(drawn.result(), whole.steps.frame["step"].n_unique())
    # The timeline has found the paths.
    paths = [section("critical", "Critical path", critical(trace))] if recorded else []
    sections = (
        Section("timeline", "Timeline", (*windows, *steps)),
        *gaps,
        *map(_pictures_beside, paths),
        *tables,
    )
    title, head, *rest = page.blocks
    pictures = [*plan_bars(whole.advice), *step_strip(drawn.result())]
    return replace(
        page,
        blocks=_ordered(title, head, rest, pictures, classes, whole.utilization),
        sections=tuple(part for part in sections if part.blocks),
        summary="Step time",
    )


def _tables(trace: Trace, whole: Overview, section: Callable[..., Section]) -> tuple[Section, ...]:
    """Return the sections that need neither gaps nor paths."""
    collectives = all_collectives(trace)
    of_program = []
    if has_frames(trace):
        from traceana.report.pages.lines import lines, sources

        of_program = [
            section("lines", "Lines", lines(trace)),
            section("stacks", "Call tree", lines(trace, by="stack"), folded=True),
            Section("source", "Source", sources(trace), command="lines"),
        ]
    return (
        *of_program,
        section("layers", "Layers", layers(trace)),
        section("types", "Layers by type", layers(trace, by="type"), folded=True),
        section(
            "roofline",
            "FLOPs and roofline",
            flops(trace, by="class"),
            command="flops",
        ),
        # The roofline's table has it by class.
        section("operators", "FLOPs by operator", flops(trace), folded=True),
        section("kernels", "Kernels", kernels(trace)),
        section("transfers", "Transfers", transfers(trace)),
        *([section("collectives", "Collectives", collectives)] if collectives.frame.height else []),
        section("memory", "Memory", memory(trace)),
        *(
            [section("samples", "Sampled counters", samples(trace))]
            if trace.tables.samples.height
            else []
        ),
        section(
            "recommendations",
            "Recommendations",
            advised(trace, whole.advice, explain=True),
            command="advise",
        ),
        section("trace", "Trace and integrity", info(trace), command="info"),
    )


def _pictures_beside(section: Section) -> Section:
    """Return ``section`` with its first table left of its pictures, which are above it."""
    blocks = [*in_order(section.blocks)]
    pictures = [block for block in blocks if isinstance(block, Illustration)]
    others = [block for block in blocks if not isinstance(block, Illustration)]
    at = next((at for at, block in enumerate(others) if isinstance(block, Table)), len(others))
    behind = next(
        (end for end in range(at + 1, len(others)) if not isinstance(others[end], Notes)),
        len(others),
    )
    if not pictures or at == len(others):
        return section
    beside = Columns(tuple(others[at:behind]), (*pictures, *others[behind:]))
    return replace(section, blocks=(*others[:at], beside))


_IN_LARGE: Final = ("GPU utilization", "CPU utilization")
"""Facts that stand in large letters above the others."""


def _without_large(head: Facts) -> Iterator[tuple[str, str]]:
    """Yield the facts of ``head`` without the figures in large letters, and without the lead."""
    figures = dict(head.large)
    for label, value in head.rows:
        if label == head.lead or (label in _IN_LARGE and label in figures):
            continue
        figure = figures.get(label.lower(), "")
        rest = value.removeprefix(figure)
        if figure and rest != value:
            rest = rest.removeprefix(" median").removeprefix(" mean").lstrip(" ·")
        if rest:
            yield label, rest


def _without_share(lead: str, utilization: float | None) -> str:
    """Return ``lead`` without the share that is the utilization, which stands above it."""
    if utilization is None or utilization <= 0.5:
        return lead
    return lead.replace(f" {numbers.share(utilization)} of the ", " most of the ")


def _ordered(
    title: Block,
    head: Block,
    rest: Sequence[Block],
    pictures: Sequence[Single],
    classes: Sequence[Block],
    utilization: float | None,
) -> tuple[Block, ...]:
    """Return the blocks of the summary in the order of a page.

    The figures and the bottleneck come first, then the recommendations with ``pictures`` beside
    them, the other facts, and the time by class beside the other tables. ``classes`` are its bars,
    for files of pictures. A figure in large letters stands nowhere else.
    """
    facts: tuple[Block, ...] = ()
    if isinstance(head, Facts):
        leading = tuple(row for row in head.rows if row[0] == head.lead)
        others = [row for row in head.rows if row not in leading]
        if head.large:
            others = list(_without_large(head))
            leading = tuple((label, _without_share(value, utilization)) for label, value in leading)
        head, facts = replace(head, rows=leading), (Facts(tuple(others)),)
    is_table = [isinstance(block, Table) for block in rest]
    tables = len(rest) - is_table[::-1].index(True) if True in is_table else 0
    notes = [block for block in rest[tables:] if isinstance(block, Notes)]
    advice = tuple(block for block in in_order(rest[tables:]) if not isinstance(block, Notes))
    beside: tuple[Block, ...] = (*advice, *pictures)
    if advice and pictures:
        beside = (Columns(advice, tuple(pictures)),)
    shown = [*in_order(rest[:tables])]
    at = [isinstance(block, Table) and block.columns[0].name == "class" for block in shown]
    tabled: tuple[Block, ...] = tuple(shown)
    if True in at[:-1]:
        by_class = at.index(True)
        sides = Columns((shown[by_class],), tuple(shown[by_class + 1 :]), even=False)
        tabled = (*shown[:by_class], sides)
    return (title, head, *beside, *facts, *classes, *tabled, *notes)
