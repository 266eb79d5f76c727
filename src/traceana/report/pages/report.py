"""``report``: summary of a run: steps, classes, layers, copies, recommendations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise import Advice, Finding
from traceana.advise.bottleneck import (
    COLLECTIVES,
    COPIES,
    HOST,
    KERNELS,
    LATE_RANK,
    LAUNCHED,
    NOT_RECORDED,
    PROFILER,
    UNKNOWN,
)
from traceana.analyze.classes import COLUMNS as BY_CLASS
from traceana.analyze.classes import Line, condensed
from traceana.analyze.kernels import COLUMNS as BY_KERNEL
from traceana.analyze.kernels import far_calls_of_layers, kernels
from traceana.analyze.layers import COLUMNS as BY_LAYER
from traceana.analyze.layers import DIRECTIONS
from traceana.analyze.manifest_layers import with_names_of
from traceana.analyze.transfers import COLUMNS as BY_DIRECTION
from traceana.analyze.unrecorded import unread_work
from traceana.report import display_names, numbers
from traceana.report.page import Block, Facts, Findings, Heading, Notes, Page, Table
from traceana.report.page import Finding as Listed
from traceana.report.pages.advise import finding_rows, plan_rows, with_changes
from traceana.report.pages.overview import Overview, ReportBasis, by_phase, overview
from traceana.report.pages.single_table import (
    data_of,
    hidden_of,
    notes_of,
    outside_text,
    ranked,
    source_of,
    table_of,
    window_text,
    with_values,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, arrange
from traceana.runs import batches_beside
from traceana.settings import (
    BOTTLENECK_SHARE,
    FEWEST_STEPS,
    LEAST_PART,
    LEAST_ROW_SHARE,
    MUCH_UNCLASSIFIED,
    PREDICTION_LEVEL,
)
from traceana.table import Column, Columns, Kind, chosen, laid_out
from traceana.timeline.idle_gaps import selects_steps
from traceana.timeline.steps import (
    RUN_AHEAD,
    is_server,
    measured_steps,
    only_sums,
    span_of,
    step_processes,
)
from traceana.timeline.work import has_kernels, kernels_of, work
from traceana.trace import Trace
from traceana.trace.ledger import REASONS
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceana.runs import BatchSeries

MOST_CLASSES: Final = 14
"""Lines of the time by class: with more, smaller classes and parts are folded."""
MOST_LAYERS: Final = 6
MOST_TRANSFERS: Final = 4
MOST_FINDINGS: Final = 3

_HOST_AHEAD: Final = 0.95
"""The host runs ahead where it takes less than this part of the step time."""

_FEW_RANKS: Final = 4
"""More have a command of their own."""


def report(
    trace: Trace, *, batches: BatchSeries | None = None, illustrated: bool = False
) -> CommandResult:
    """Return the time by class; its page is the summary of the run.

    ``batches`` are the step times of runs that differ in the batch size only, by default from
    the sweep of the recorded run. ``illustrated``: the page will have its pictures, so that they
    are begun beside the tables.
    """
    begun = None
    if illustrated:
        from traceana.report.pages.report_html import begin_pictures

        begun = begin_pictures(trace)
    whole = overview(trace, batches=batches or batches_beside(trace.meta.opened))

    def complete(page: Page, limit: int | None, exact: bool) -> Page:
        from traceana.report.pages.report_html import begin_pictures, with_sections

        return with_sections(trace, whole, begun or begin_pictures(trace), page, limit, exact)

    make = partial(_page, trace, whole)
    return CommandResult.of(
        whole.breakdown, make, complete=complete, summary=whole.summary, filterable=False
    )


def _page(trace: Trace, whole: Overview, rows: Arranged) -> Page:
    data = data_of(rows, source_of(trace), whole.sections)
    in_plan = whole.advice.in_plan
    stages = [finding for finding in whole.advice.findings if finding.rule.id in in_plan]
    findings = [*stages, *_others(whole.advice)]
    sections = {
        **data.sections,
        "plan": plan_rows(whole.advice),
        "findings": finding_rows(findings, trace),
    }
    head = Facts(tuple(_head(whole)), tuple(_large(whole)), "Bottleneck")
    facts = whole.facts
    form = display_names.recorded_by(facts["format"], facts["producer"])
    # Without the work of its devices, the trace is not one of the CPU.
    devices = _devices(facts, with_cpu=whole.unrecorded is None)
    parts = (whole.model, facts["framework"], devices, form)
    title = display_names.trace_file(facts["file"])
    blocks: list[Block] = [Heading(title, " · ".join(part for part in parts if part)), head]
    if whole.breakdown.frame.height:
        blocks += [
            *_phases(trace),
            _classes(whole),
            *_layers(whole),
            *_transfers(whole.basis),
            *_findings(whole),
        ]
    blocks += _notes(whole)
    # The recommendations are a section.
    figures = msgspec.structs.asdict(whole.summary)
    del figures["recommendations"]
    figures = msgspec.to_builtins(figures)
    return Page("report", tuple(blocks), replace(data, sections=sections, summary=figures))


def _devices(facts: Mapping[str, Any], *, with_cpu: bool) -> str:
    """Return the devices with activity: ``2 x NVIDIA H100``."""
    working: dict[str, int] = {}
    for device in facts["devices"]:
        is_cpu = device["device"] == CPU_DEVICE
        if device["activities"] and device["device"] is not None and (with_cpu or not is_cpu):
            name = device["name"] or ("CPU" if is_cpu else _unnamed_gpu(device))
            working[name] = working.get(name, 0) + 1
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in working.items())


def _unnamed_gpu(device: Mapping[str, Any]) -> str:
    """Return what the trace has about a GPU without a name: ``CC 7.0, 80 SMs, 16.9 GB``."""
    return ", ".join(display_names.device_properties(device)) or "unknown GPU"


def _head(whole: Overview) -> Iterator[tuple[str, str]]:
    facts = whole.facts
    if facts["summary"] is not None:
        yield from _summary_head(whole)
        return
    if facts["rank"] is not None:
        yield "Rank", _rank(facts)
    yield "Steps", _steps(whole)
    if whole.steps.frame.height:
        yield "Step time", _step_time(whole)
        if only_sums(whole.trace):
            yield "", RUN_AHEAD
    if whole.unrecorded is not None:
        label = "Not recorded" if unread_work(whole.trace) is None else "Not read"
        yield label, whole.unrecorded
    elif whole.busy.frame.height:
        yield f"{whole.processor} utilization", _utilization(whole)
        if whole.busy.frame.height > 1 and has_kernels(whole.trace):
            yield "", "of capture " * whole.basis.stepped + _by_device(whole.busy.frame)
        apart = whole.busy.frame.unique("rank", maintain_order=True)
        if apart.height == 1 and (text := outside_text(apart.row(0, named=True))):
            yield "", text
    if whole.flop_utilization is not None:
        from traceana.report.pages.layers import mfu

        yield "MFU", mfu(whole.flop_utilization)
    if whole.trace.tables.samples.height:
        from traceana.report.pages.samples import sampled

        yield "Sampled", sampled(whole.basis.trace)
    if whole.breakdown.frame.height:
        yield "Bottleneck", _bottleneck(whole)
    if (whole.basis.breakdown.frame["category"] == "collective").any():
        yield from _last_to_arrive(whole)
    if facts["kernels"]:
        yield "Kernels", _kernel_counts(whole)
    elif facts["cpu_operators"]:
        label = "CPU operators" if facts["operators"] else "CPU ranges"
        missing = "no GPU activity" if whole.unrecorded is None else "their time on the host"
        yield label, f"{numbers.count(facts['cpu_operators'])} · {missing}"
    else:
        device_work = whole.breakdown.frame.height
        is_recorded = whole.unrecorded is None and not device_work
        yield "Kernels", "none: no GPU activity" if is_recorded else "none recorded"
    if whole.breakdown.frame.height:
        yield "Tables", _tables(whole)


def _large(whole: Overview) -> Iterator[tuple[str, str]]:
    """Yield the figures of the headline, step time and utilization, as the facts have them."""
    if (step_time := whole.step_time) is not None:
        time = step_time.mean_ns if only_sums(whole.trace) else step_time.median_ns
        unit = numbers.scale(step_time.each_ns, numbers.TIME)
        yield "step time", f"{unit.write(time)} {unit.unit}"
    if whole.unrecorded is None and whole.utilization is not None:
        yield f"{whole.processor} utilization", numbers.share(whole.utilization)


def _rank(facts: Mapping[str, Any]) -> str:
    if facts["world_size"] is None:
        return str(facts["rank"])
    if facts["ranks"]:
        return f"{facts['rank']} of {facts['world_size']}"
    return f"{facts['rank']} (1 of {facts['world_size']} ranks in the trace)"


def _summary_head(whole: Overview) -> Iterator[tuple[str, str]]:
    """Yield the facts of a printed summary."""
    summary = whole.facts["summary"]
    rows = numbers.counted(summary["counted_rows"], "row")
    time = "not printed" if summary["time_ns"] is None else numbers.duration(summary["time_ns"])
    if summary["plus_minus_ns"]:
        time += f" ± {numbers.duration(summary['plus_minus_ns'])}"
    properties = whole.trace.meta.properties
    loading_ns, cpu_ns = (properties.get(name) for name in ("data_loader_ns", "printed_cpu_ns"))
    if loading_ns is not None:
        loading = f"DataLoader {numbers.duration(loading_ns)}"
        if cpu_ns:
            share = numbers.share(loading_ns / cpu_ns)
            loading = f"{numbers.duration(cpu_ns)} · {loading} ({share})"
        yield "CPU time", loading
    yield "Printed summary", f"no timeline: {rows} with names, calls and times"
    if summary["printed_total_ns"] is not None:
        time += f" of {numbers.duration(summary['printed_total_ns'])} printed total"
        if annotations_ns := properties.get("printed_annotations_ns"):
            time += f" including {numbers.duration(annotations_ns)} of annotations"
    in_operators = loading_ns is not None and whole.trace.on_cpu
    yield "CPU operators" if in_operators else f"{whole.processor} time", time
    if whole.facts["kernels"]:
        yield "Kernels", _kernel_counts(whole)
    if summary["host_calls"]:
        called = f"{numbers.count(summary['host_calls'])} in {numbers.duration(summary['host_ns'])}"
        yield "Host API calls", called


def _steps(whole: Overview) -> str:
    facts = whole.facts
    if not facts["steps"]:
        return "none marked"
    marked = f"{facts['steps']} ({facts['step_numbers']}, {facts['step_marker']})"
    if is_server(whole.trace):
        return marked
    measured = measured_steps(whole.trace)
    if measured.cut:
        marked += f", incomplete in the recording: {span_of(list(measured.cut))}"
    if measured.warm_up:
        several = "s" if len(measured.warm_up) > 1 else ""
        return f"{marked}, warm-up step{several} {', '.join(map(str, measured.warm_up))} excluded"
    if measured.cut or only_sums(whole.trace):
        return marked
    if facts["steps"] == 1:
        return f"{marked}, possibly warm-up"
    if facts["steps"] < FEWEST_STEPS:
        return f"{marked}, too few to detect warm-up"
    return f"{marked}, no warm-up detected"


def _step_time(whole: Overview) -> str:
    """Return the step time, where the GPU ends the steps with the host's time for them."""
    step_time = whole.step_time
    if step_time is None:
        return ""
    walls = step_time.each_ns
    unit = numbers.scale(walls, numbers.TIME)
    mean = f"{unit.write(step_time.mean_ns)} {unit.unit} mean"
    if only_sums(whole.trace):
        return mean
    text = f"{unit.write(step_time.median_ns)} {unit.unit}"
    if len(walls) > 1:
        least, most = (unit.write(wall) for wall in (min(walls), max(walls)))
        text += " median"
        if (interval := whole.trace.meta.step_interval_ns) is not None:
            low, high = map(unit.write, interval)
            text += f" ({low}\u2013{high}, {numbers.level(PREDICTION_LEVEL)} interval)"
        text += f" · {unit.write(step_time.mean_ns)} mean · {least}\u2013{most} range"
    processes = step_processes(whole.trace)
    text += f" over {processes} processes" if processes > 1 else ""
    if (recorded := whole.recorded_ns) is not None:
        text += f" · recorded {numbers.duration(recorded)} with the profiler"
    elif whole.timed_ns is not None:
        text += f" · timed {numbers.duration(whole.timed_ns)} without the profiler"
    if step_time.on_gpu and step_time.host_ns < _HOST_AHEAD * step_time.median_ns:
        text += f" (GPU) · queued by the host in {numbers.duration(step_time.host_ns)}"
    return text


def _utilization(whole: Overview) -> str:
    """Return the busy share of the step time, else of the capture, or why there is none."""
    if not has_kernels(whole.trace):
        return "not determined: no kernels, only copies and memsets"
    if whole.step_time is not None and whole.utilization is not None:
        return f"{numbers.share(whole.utilization)} of step time"
    totals = whole.busy.totals
    unit = numbers.scale([totals["span_ns"]], numbers.TIME)
    busy_ns, span_ns = (unit.write(totals[name]) for name in ("busy_ns", "span_ns"))
    share = totals["busy_ns"] / totals["span_ns"] if totals["span_ns"] else 0.0
    devices = whole.busy.frame.height
    summed = f" summed over {devices} devices" if devices > 1 else ""
    of = f"{window_text(whole.trace)}{summed}"
    return f"{numbers.share(share)} of {of} ({busy_ns} of {span_ns} {unit.unit})"


_LIMITS: Final = {
    KERNELS: "kernels take",
    HOST: "the GPU waits for the host",
    PROFILER: "the profiler takes",
    COLLECTIVES: "exposed collectives take",
    COPIES: "exposed copies take",
    LAUNCHED: "the GPU is idle although work is launched",
    UNKNOWN: "the GPU is idle without a recorded cause",
}
"""Bottleneck -> the beginning of a sentence that ends with a share of the time."""
_MOSTLY: Final = {
    "data_loader": "in the data loader",
    "operator": "in operators",
    "host": "outside operators",
    "launch_latency": "in launch calls",
    "synchronization": "after a synchronization",
    "allocation": "in allocations",
    "driver": "in the driver",
    "copy": "in copy calls",
    "collective": "in collectives",
    "profiler": "in the profiler",
    "queued": "for a reason that is not recorded",
    "same_launch": "within one launch",
    "event": "for another stream's event",
    "not_recorded": "for launches not recorded",
    "before_first": "before its first work",
    "after_last": "after its last work",
    LATE_RANK: "waiting for late ranks",
}
"""Cause of idle time -> its part of the sentence."""


def _bottleneck(whole: Overview) -> str:
    """Return the bottleneck with its share of the step, or why it is not determined.

    On a CPU it is the class with the most time.
    """
    limit = whole.advice.bottleneck
    by_class = whole.basis.breakdown.frame.group_by("category").agg(pl.col("share").sum())
    if limit is None and whole.trace.on_cpu and whole.unrecorded is None and by_class.height:
        category, share = by_class.sort("share", "category", descending=True).row(0)
        return f"{display_names.category(category)} {numbers.share(share)} of CPU time"
    if limit is None:
        missing = "no GPU activity" if whole.unrecorded is None else "the GPU was not recorded"
        if unread_work(whole.trace) is not None:
            missing = "the work of the device was not read"
        return f"not determined: {missing}"
    if limit.by == NOT_RECORDED:
        if limit.share == 1:
            return "not determined: no kernels in the recording"
        lost = numbers.share(limit.share)
        return f"not determined: not the work of {lost} of the launches in the recording"
    of = "of the step" if whole.basis.stepped else f"of the {window_text(whole.trace)}"
    if limit.profiler_steps:
        of += f" without the profiler's overhead in {numbers.counted(limit.profiler_steps, 'step')}"
    bound = limit.bound or "not determined"
    text = f"{bound}: {_LIMITS[limit.by]} {numbers.share(limit.share)} {of}"
    if limit.cause is not None:
        cause, share = limit.cause
        # All of it for one cause is one figure.
        is_all = numbers.share(share) == numbers.share(limit.share)
        part = "" if is_all else f" ({numbers.share(share)})"
        most = "" if is_all else "mostly " if 2 * share >= limit.share else "above all "
        text += f", {most}{_MOSTLY[cause]}{part}"
    kernels = limit.shares.get(KERNELS, 0.0)
    if limit.by in (COPIES, COLLECTIVES) and kernels >= LEAST_PART:
        # Of kernels that take more a reader asks why they are not what limits the run.
        why = ", which overlap cannot shorten" if kernels > limit.share else ""
        text += f" · kernels {numbers.share(kernels)}{why}"
    elif limit.by == HOST and limit.share < BOTTLENECK_SHARE:
        text += f" · kernels {numbers.share(kernels)}, launched after the GPU went idle"
    return text


def _last_to_arrive(whole: Overview) -> Iterator[tuple[str, str]]:
    """Yield the part of waiting in collectives, and the rank for which the others wait."""
    from traceana.report.pages.transfers import last_to_arrive, wait_and_transfer

    basis = whole.basis
    if text := wait_and_transfer(basis.trace, basis.steps):
        yield "Collectives", f"{text}, {basis.per}" if basis.per else text
    numbered = basis.trace.tables.steps["number"].n_unique() if basis.stepped else None
    ranks = basis.trace.tables.activities["rank"].n_unique()
    each = "traceana ranks: each rank"
    if text := last_to_arrive(basis.trace, numbered):
        yield "Last to arrive", f"{text} · {each}" if ranks > _FEW_RANKS else text
    elif ranks > _FEW_RANKS:
        yield "Ranks", f"{ranks} · {each}"


def _by_device(frame: pl.DataFrame) -> str:
    ranked = frame["rank"].null_count() == 0
    rows = frame.select("rank", "device", "busy_ns", "span_ns").iter_rows()
    each = [
        f"{f'{rank}/{device}' if ranked else device}: {numbers.share(busy_ns / span)}"
        for rank, device, busy_ns, span in rows
        if span
    ]
    return f"by {'rank/device' if ranked else 'device'}  {', '.join(each)}"


def _kernel_counts(whole: Overview) -> str:
    """Return the number of kernels and of launches.

    Launches include copies and memsets, as in ``idle`` and the recommendations.
    """
    basis, distinct = whole.basis, whole.facts["distinct_kernel_names"]
    text = numbers.count(whole.facts["kernels"])
    if basis.stepped:
        each = numbers.mean(kernels_of(basis.trace, "kind").height / basis.steps)
        text = f"{each} {basis.per}"
    text += f" · {numbers.count(distinct)} distinct"
    calls = work(basis.trace, "call")["call"].drop_nulls().n_unique()
    if whole.facts["summary"] is None and calls:
        each = numbers.mean(calls / basis.steps) if basis.stepped else numbers.count(calls)
        text += f" · {each} {'launch' if each == '1' else 'launches'} (with copies, memsets)"
    return text


def _tables(whole: Overview) -> str:
    """Return the divisor of all tables, the base of shares, and the time outside the steps."""
    basis, facts = whole.basis, whole.facts
    each_ns = basis.breakdown.totals["time_ns"] // basis.steps
    work = f"{numbers.duration(each_ns)} {whole.processor} time"
    if not basis.stepped:
        devices = whole.busy.frame.height
        of = f" of {devices} devices" if devices > 1 else ""
        why = "no steps marked" if not facts["steps"] else "no work in the measured steps"
        return f"sums over the {window_text(whole.trace)}{of}: {why} · share: % of {work}"
    steps = numbers.counted(basis.trace.tables.steps["number"].n_unique(), "step")
    processes = step_processes(basis.trace)
    of = f" of {processes} processes" if processes > 1 else ""
    text = f"mean of {steps}{of} · share: % of {work}"
    if (outside := basis.outside) is not None:
        text += f" · {numbers.share(outside)} of {whole.processor} time is outside these steps"
    return text


_LAYERS: Final = laid_out(
    chosen(BY_LAYER, ("layer", "type", *DIRECTIONS, "time_ns", "share", "algorithm")),
    dropped="other_ns optimizer_ns algorithm type",
    titles={"time_ns": "total", "algorithm": "conv algorithm"},
)
_KERNELS: Final = laid_out(
    chosen(BY_KERNEL, ("name", "calls", "time_ns", "share")),
    dropped="calls",
    titles={"time_ns": "total"},
)
_TRANSFERS: Final = laid_out(
    chosen(
        BY_DIRECTION,
        (
            *("direction", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
            *("bytes_per_s", "host_memory"),
        ),
    ),
    dropped="mean_bytes bytes host_memory bytes_per_s",
    titles={"time_ns": "total"},
)


def _classes(whole: Overview) -> Table:
    """Return the time by category with bars, and the parts of a category below it."""
    basis = whole.basis
    lines = condensed(basis.breakdown.frame)
    least = 2 * LEAST_ROW_SHARE
    while len(lines) > MOST_CLASSES:
        lines, least = condensed(basis.breakdown.frame, least), 2 * least
    passes = _passes(basis.trace)
    frame = pl.DataFrame(
        [(_class_name(line, passes), line.calls, line.time_ns, line.share) for line in lines],
        schema={
            "class": pl.String,
            "calls": pl.Int64,
            "time_ns": pl.Int64,
            "share": pl.Float64,
        },
        orient="row",
    )
    title = Column("class", Kind.LONG, title=basis.title(f"{whole.processor} time by class"))
    columns = (title, *chosen(BY_CLASS, ("calls", "time_ns", "share")))
    means = basis.means(Result(frame, columns=columns))
    return Table(means.frame, columns, dropped=("bar", "calls"), bars="share", layout="compact")


_CUDNN_PASS: Final = {"forward": "Fwd", "dgrad": "BwdData", "wgrad": "BwdFilter"}


def _passes(trace: Trace) -> Mapping[str, str]:
    """Return the passes of each algorithm with a number, as cuDNN names them.

    ALGO_0 of the data gradient and ALGO_0 of the filter gradient are two algorithms.
    """
    launched = work(trace, "algorithm", "kernel_direction").unique()
    algorithm = pl.col("algorithm").cast(pl.String)
    by_part = (
        launched.filter(algorithm.str.contains(r"^algo_\d$"))
        .group_by(algorithm)
        .agg(pl.col("kernel_direction").cast(pl.String).unique())
    )
    return {
        algorithm: " + ".join(
            name for direction, name in _CUDNN_PASS.items() if direction in directions
        )
        for algorithm, directions in by_part.iter_rows()
    }


def _class_name(line: Line, passes: Mapping[str, str]) -> str:
    if line.depth:
        if line.folded:
            return f"  {line.folded} others"
        part = display_names.part(line.part or "other")
        return f"  {passes.get(line.part or '', '')} {part}".replace("   ", "  ")
    if line.category is None:
        return f"{line.folded} other classes"
    return display_names.class_of(line.category, line.part)


def _layers(whole: Overview) -> list[Block]:
    """Return the layers with the most time; without layers the kernels, and a note.

    Empty for a printed summary: its times by class come from its kernels.
    """
    if whole.facts["summary"] is not None:
        return []
    basis = whole.basis
    if not (basis.layers.frame["role"] == "layer").any():
        return [*_kernels(basis), Notes(tuple(("", note) for note in basis.layers.notes))]
    top = arrange(basis.means(basis.layers), sort="time_ns", limit=MOST_LAYERS)
    titles = {"layer": basis.title("Slowest layers")}
    named = with_names_of(basis.trace, whole.trace.manifest)
    far = far_calls_of_layers(named, top.frame["layer"])
    return [_compact(top, _LAYERS, titles, "layers"), *notes_of(far)]


def _compact(top: Arranged, columns: Columns, titles: Mapping[str, str], command: str) -> Table:
    """Return the rows ``top`` in ``columns``; ``command`` shows the hidden rows."""
    rows = replace(top, totals={}, columns=columns)
    table = table_of(rows, layout="compact", titles=titles)
    return replace(table, hidden=hidden_of(top, command))


def _kernels(basis: ReportBasis) -> list[Block]:
    """Return the kernels with the most time."""
    top = arrange(basis.means(kernels(basis.trace)), limit=MOST_LAYERS)
    if top.frame.is_empty():
        return []
    of = "operators" if basis.trace.on_cpu else "kernels"
    return [_compact(top, _KERNELS, {"name": basis.title(f"Slowest {of}")}, "kernels")]


def _phases(trace: Trace) -> list[Block]:
    """Return the iterations of a server by phase; empty where the steps are none."""
    if not (results := by_phase(trace)):
        return []
    phases = results["phases"]
    columns = with_values(phases.frame, phases.columns)
    return [Table(phases.frame, columns, dropped=ranked(columns), layout="compact")]


def _transfers(basis: ReportBasis) -> list[Block]:
    """Return one row per direction and kind of host memory; empty without copies."""
    top = arrange(basis.means(basis.transfers), limit=MOST_TRANSFERS)
    if top.frame.is_empty():
        return []
    return [_compact(top, _TRANSFERS, {"direction": basis.title("Transfers")}, "transfers")]


def _findings(whole: Overview) -> list[Block]:
    """Return the plan, then the first of the other recommendations."""
    advice = whole.advice
    if whole.facts["summary"] is not None and not advice.findings:
        return []
    others = _others(advice)
    if not others and not advice.plan:
        notes = Facts(tuple(("", note) for note in advice.notes))
        return [Heading("Recommendations"), notes] if advice.notes else []
    more = len(advice.findings) - len(advice.plan) - len(others)
    remark = f"(traceana advise: evidence{f', {more} more' if more else ''})"
    # What would save more than the plan's first change comes before it.
    ranks = {finding.rule.id: at for at, finding in enumerate(advice.findings)}
    by_rule = {finding.rule.id: finding for finding in advice.findings}
    first = ranks[advice.plan[0].rule] if advice.plan else 0
    ahead = [finding for finding in others if ranks[finding.rule.id] < first]
    behind = [finding for finding in others if ranks[finding.rule.id] >= first]
    parts = (
        (_title(whole, ahead), _listed(ahead)),
        (
            "Plan: each change on top of those before, by simulation",
            with_changes([by_rule[stage.rule] for stage in advice.plan], advice.plan),
        ),
        (
            "Not in the plan: ≈ estimated, ≤ at most" if advice.plan else _title(whole, others),
            _listed(behind),
        ),
    )
    blocks: list[Block] = []
    number = 1
    for title, items in parts:
        if items:
            linked = tuple(replace(item, section=item.anchor, anchor="") for item in items)
            blocks += [Heading(title, remark), Findings(linked, brief=True, first=number)]
            number, remark = number + len(items), ""
    why = _not_about_the_bottleneck(advice)
    return [*blocks, *([Facts((("", why),))] if why else [])]


def _listed(findings: Sequence[Finding]) -> tuple[Listed, ...]:
    """Return findings outside the plan as blocks; a simulated saving is of the change alone."""
    return tuple(
        replace(item, effect=f"{item.effect} alone") if finding.simulation else item
        for finding, item in zip(findings, with_changes(findings), strict=True)
    )


def _others(advice: Advice) -> Sequence[Finding]:
    """Return the first recommendations that are not in the plan; one about the bottleneck is among
    them, unless the plan has one."""
    left = [finding for finding in advice.findings if finding.rule.id not in advice.in_plan]
    count = max(MOST_FINDINGS - len(advice.plan), 1)
    limits = advice.bottleneck
    if limits is None or any(map(limits.shortened_by, advice.in_plan)):
        return left[:count]
    rules = [finding.rule.id for finding in left]
    about = [rule for rule in rules if limits.shortened_by(rule)][:1]
    first = [rule for rule in rules if rule not in about][: count - len(about)]
    return [finding for finding in left if finding.rule.id in (*about, *first)]


def _not_about_the_bottleneck(advice: Advice) -> str:
    """Return the note that no recommendation shortens the bottleneck, if so."""
    limits = advice.bottleneck
    if limits is None or limits.bound is None:
        return ""
    if any(limits.shortened_by(finding.rule.id) for finding in advice.findings):
        return ""
    return f"no recommendation is about the bottleneck, {limits.by}"


def _title(whole: Overview, findings: Sequence[Finding]) -> str:
    """Return the title of recommendations without a plan, with the unit of their savings."""
    units = ["step"] * whole.basis.stepped + ["device"] * (whole.busy.frame.height > 1)
    per = f" per {' and '.join(units)}" if units else ""
    how = "simulated" if any(finding.simulation for finding in findings) else "estimated"
    return f"Recommendations, by {how} saving{per}"


def _notes(whole: Overview) -> Iterator[Notes]:
    facts = whole.facts
    rows = [("", note) for note in whole.breakdown.notes if note not in whole.steps.notes]
    if whole.breakdown.frame.height:
        shown = numbers.share(whole.unclassified)
        if whole.unclassified > MUCH_UNCLASSIFIED:
            shown += " (--rules FILE: classes for kernels of your own)"
        rows.insert(0, ("Unclassified", shown))
    if rows:
        yield Notes(tuple(rows))
    warnings = []
    problems = [entry for entry in facts["ledger"] if entry["severity"] == "problem"]
    if problems:
        counts: dict[str, int] = {}
        times: dict[str, int] = {}
        for problem in problems:
            reason = problem["reason"]
            counts[reason] = counts.get(reason, 0) + problem["count"]
            if problem["table"] == "activities" and problem["kept"]:
                times[reason] = times.get(reason, 0) + (problem["time_ns"] or 0)
        # The ledger is of the whole file: a share of selected steps would be wrong.
        of_ns = 0 if selects_steps(whole.trace) else whole.breakdown.totals["time_ns"]
        listed = "; ".join(
            f"{numbers.count(n)}{_part_of(times.get(reason, 0), of_ns, whole.processor)}: "
            f"{REASONS[reason][1]}"
            for reason, n in counts.items()
        )
        warnings.append(("Integrity problems", f"{listed} (traceana info)"))
    if whole.unrecorded is None and (unread := unread_work(whole.trace)) is not None:
        warnings.append(("Not read", unread))
    if facts["truncated"]:
        read = "size unknown"
        if facts["bytes_read"] is not None and facts["bytes_total"]:
            share = numbers.share(facts["bytes_read"] / facts["bytes_total"])
            read = f"{share} of {numbers.size(facts['bytes_total'])} read"
            if facts["bytes_read"] == facts["bytes_total"]:
                read = "ends early, later events are missing"
        warnings.append(("Truncated file", read))
    if warnings:
        yield Notes(tuple(warnings), warning=True)


def _part_of(time_ns: int, of_ns: int, processor: str) -> str:
    """Return the share of the time of the processor in parentheses; empty without either."""
    return (
        f" ({numbers.share(time_ns / of_ns)} of {processor} time)" if 0 < time_ns <= of_ns else ""
    )
