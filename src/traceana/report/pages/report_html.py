"""The sections of the report in HTML: every analysis, its pictures first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceana.analyze.classes import COLUMNS as BY_CLASS
from traceana.analyze.devices import step_parts
from traceana.analyze.timeline import Window, timeline
from traceana.report.page import Block, Heading, Page, Section, Table
from traceana.report.pages.advise import advised
from traceana.report.pages.analysis_pictures import step_bars, step_timeline
from traceana.report.pages.bars import bars
from traceana.report.pages.idle import critical, idle
from traceana.report.pages.info import info
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import flops, layers
from traceana.report.pages.memory import memory
from traceana.report.pages.transfers import all_collectives, transfers
from traceana.table import chosen

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
    classes = bars(
        shown,
        f"{whole.processor} time by class{f', mean {basis.per}' if basis.per else ''}",
        chosen(BY_CLASS, ("category", "time_ns", "calls")),
        axis=f"time {basis.per}".rstrip(),
        coloured=True,
    )
    if trace.is_summary:
        of_summary = (
            section("kernels", "Kernels", kernels(trace)),
            section("transfers", "Transfers", transfers(trace)),
            section("trace", "Trace and integrity", info(trace), command="info"),
        )
        return replace(page, blocks=_ordered(page.blocks, classes), sections=of_summary)
    ranks = trace.tables.steps.select("process", "rank").drop_nulls().unique()
    ranks = ranks.filter(ranks["process"].is_unique()).sort("rank")
    recorded = whole.unrecorded is None
    steps = step_bars(whole.steps.frame, step_parts(trace), ranks) if recorded else []
    gaps = [section("idle", "Idle time", idle(trace))] if recorded else []
    tables = _tables(trace, whole, section)
    windows = step_timeline(drawn.result(), whole.steps.frame["step"].n_unique())
    # The timeline has found the paths.
    paths = [section("critical", "Critical path", critical(trace))] if recorded else []
    sections = (Section("timeline", "Timeline", tuple(windows)), *gaps, *paths, *tables)
    title, head, *rest = (_plain(block, classes) for block in _ordered(page.blocks, classes))
    return replace(
        page,
        blocks=(title, head, *steps, *rest),
        sections=tuple(part for part in sections if part.blocks),
        summary="Step time",
    )


def _tables(trace: Trace, whole: Overview, section: Callable[..., Section]) -> tuple[Section, ...]:
    """Return the sections that need neither gaps nor paths."""
    collectives = all_collectives(trace)
    return (
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
        section(
            "recommendations", "Recommendations", advised(trace, whole.advice), command="advise"
        ),
        section("trace", "Trace and integrity", info(trace), command="info"),
    )


def _plain(block: Block, classes: Sequence[Block]) -> Block:
    """Return ``block``; the table of the classes has no bars where the ``classes`` have a chart."""
    if isinstance(block, Table) and classes and block.columns[0].name == "class":
        return replace(block, bars=None)
    return block


def _ordered(blocks: tuple[Block, ...], pictures: Sequence[Block]) -> tuple[Block, ...]:
    """Return ``blocks`` with the recommendations and ``pictures`` above the tables."""
    first = next((at for at, block in enumerate(blocks) if isinstance(block, Table)), len(blocks))
    title = next((at for at, block in enumerate(blocks) if at and isinstance(block, Heading)), None)
    if title is None:
        return (*blocks[:first], *pictures, *blocks[first:])
    first, findings = min(first, title), title + 1
    return (
        *(*blocks[:first], *blocks[title : findings + 1], *pictures),
        *(*blocks[first:title], *blocks[findings + 1 :]),
    )
