"""``report``: summary of a run: steps, classes, layers, copies, recommendations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise import Advice, advise
from traceana.analyze.breakdown import Line, breakdown, condensed
from traceana.analyze.devices import busy
from traceana.analyze.facts import facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layer_rows import DIRECTIONS
from traceana.analyze.layers import layers
from traceana.analyze.steps import steps
from traceana.analyze.transfers import transfers
from traceana.analyze.work import processor
from traceana.report import names, numbers
from traceana.report.columns import Kind
from traceana.report.page import Block, Column, Facts, Findings, Heading, Notes, Page, Rows, Table
from traceana.report.pages.advise import finding_rows, findings_of
from traceana.report.pages.idle import outside_text
from traceana.report.pages.single_table import (
    column,
    columns_of,
    data_of,
    hidden_of,
    source_of,
    without_unknown,
    without_zeros,
)
from traceana.result import Arranged, Result, arrange
from traceana.settings import FEWEST_STEPS
from traceana.trace.ledger import REASONS
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.runs import BatchSeries
    from traceana.trace import Trace

MOST_LAYERS: Final = 6
MOST_TRANSFERS: Final = 4
MOST_FINDINGS: Final = 3


class Overview(msgspec.Struct, frozen=True):
    """The sections of the report; each is the result of the analysis of its name."""

    facts: Mapping[str, Any]
    processor: str
    """``GPU`` or ``CPU``."""
    model: str | None
    """Type of the outermost layer, if the trace has exactly one."""
    steps: Result
    breakdown: Result
    layers: Result
    busy: Result
    transfers: Result
    advice: Advice

    @property
    def sections(self) -> dict[str, Result]:
        """The tables of the report by their names, in the order of the JSON."""
        return {
            "steps": self.steps,
            "busy": self.busy,
            "breakdown": self.breakdown,
            "layers": self.layers,
            "transfers": self.transfers,
        }

    @property
    def unclassified(self) -> float:
        """The unclassified share of all work."""
        frame = self.breakdown.frame
        return float(frame.filter(pl.col("category") == "other")["share"].sum())

    @property
    def step_figures(self) -> dict[str, Any]:
        """Figures of the measured steps: ``wall_ns`` (median), ``mean_wall_ns``, ``busy_share``.

        ``busy_share`` is the busy time of the devices that the steps used over their wall time
        times the number of those devices, null if no step used one.
        """
        measured = self.steps.frame.filter(~pl.col("warm_up"))
        used = bool((measured["devices"] > 0).any())
        available = int((measured["wall_ns"] * measured["devices"].clip(1)).sum()) if used else 0
        return {
            "wall_ns": round(measured["wall_ns"].median()),  # type: ignore[arg-type]
            "mean_wall_ns": int(measured["wall_ns"].sum()) // measured.height,
            "busy_share": int(measured["busy_ns"].sum()) / available if available else None,
        }


def report(trace: Trace, *, batches: BatchSeries | None = None) -> Result:
    """Return the time by class; its page is the summary of the run.

    ``batches`` are the step times of runs that differ in the batch size only.
    """
    whole = overview(trace, batches=batches)

    def pictures(page: Page, limit: int | None) -> Page:
        from traceana.report.pages.whole_report import with_sections

        return with_sections(trace, whole, page, limit)

    return whole.breakdown.with_page(partial(_page, trace, whole), pictures=pictures)


def overview(trace: Trace, *, batches: BatchSeries | None = None) -> Overview:
    """Return the sections of the report on ``trace``."""
    roots = trace.layers.filter((pl.col("role") == "layer") & pl.col("parent").is_null())
    return Overview(
        facts=facts(trace),
        processor=processor(trace),
        model=roots["type"].item() if roots.height == 1 else None,
        steps=steps(trace),
        breakdown=breakdown(trace),
        layers=layers(trace, costs=False),
        busy=busy(trace),
        transfers=transfers(trace),
        advice=Advice((), ()) if trace.is_summary else advise(trace, batches=batches),
    )


def _page(trace: Trace, whole: Overview, rows: Arranged) -> Page:
    data = data_of(rows, source_of(trace), whole.sections)
    findings = whole.advice.findings[:MOST_FINDINGS]
    sections = {**data.sections, "findings": Rows(*finding_rows(findings))}
    blocks: list[Block] = [_title(whole), Facts(tuple(_head(whole)))]
    if whole.breakdown.frame.height:
        blocks += [_classes(whole), *_layers(trace, whole), *_transfers(whole), *_findings(whole)]
    blocks += _notes(whole)
    return Page(
        "report",
        tuple(blocks),
        replace(data, sections=sections),
    )


def _title(whole: Overview) -> Heading:
    known = whole.facts
    version = f" {known['format_version']}" if known["format_version"] else ""
    parts = (whole.model, known["framework"], _devices(known), f"{known['format']}{version}")
    return Heading(PurePath(known["file"]).name, " · ".join(one for one in parts if one))


def _devices(known: Mapping[str, Any]) -> str:
    """Return the devices with activity: ``2 x NVIDIA H100``."""
    working: dict[str, int] = {}
    for device in known["devices"]:
        if device["activities"] and device["device"] is not None:
            unnamed = "CPU" if device["device"] == CPU_DEVICE else "unnamed GPU"
            name = device["name"] or unnamed
            working[name] = working.get(name, 0) + 1
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in working.items())


def _head(whole: Overview) -> Iterator[tuple[str, str]]:
    known = whole.facts
    if known["summary"] is not None:
        yield from _summary_head(whole)
        return
    if known["rank"] is not None:
        of = "" if known["world_size"] is None else f" of {known['world_size']}"
        yield "Rank", f"{known['rank']}{of}"
    yield "Steps", _steps(whole)
    if whole.steps.frame.height:
        yield "Step time", _step_time(whole)
        if (ahead := whole.advice.step_work_ns) is not None:
            busy_ns = numbers.duration(ahead)
            yield "", f"work that a step launches: {busy_ns} busy, the host runs ahead"
    if whole.busy.frame.height:
        yield f"{whole.processor} utilization", _utilization(whole)
        if whole.busy.frame.height > 1:
            yield "", _by_device(whole.busy.frame)
        apart = whole.busy.frame.unique("rank", maintain_order=True)
        if apart.height == 1 and (text := outside_text(apart.row(0, named=True))):
            yield "", text
    if known["kernels"]:
        yield "Kernel launches", _launches(whole)
    elif known["cpu_operators"]:
        label = "CPU operators" if known["operators"] else "CPU ranges"
        yield label, f"{numbers.count(known['cpu_operators'])}, no GPU activity"
    else:
        yield "Kernel launches", "none: no GPU activity"


def _summary_head(whole: Overview) -> Iterator[tuple[str, str]]:
    """Yield the facts of a printed summary."""
    known = whole.facts["summary"]
    rows = numbers.counted(known["counted_rows"], "row")
    time = numbers.duration(known["time_ns"])
    if known["plus_minus_ns"]:
        time += f" ± {numbers.duration(known['plus_minus_ns'])}"
    yield "Printed summary", f"no timeline: {rows} with names, calls and times"
    if known["printed_total_ns"] is not None:
        time += f" of {numbers.duration(known['printed_total_ns'])} printed total"
    yield f"{whole.processor} time", time
    if whole.facts["kernels"]:
        yield "Kernel launches", _launches(whole)
    if known["host_calls"]:
        called = f"{numbers.count(known['host_calls'])} in {numbers.duration(known['host_ns'])}"
        yield "Host API calls", called


def _steps(whole: Overview) -> str:
    known = whole.facts
    if not known["steps"]:
        return "none marked"
    marked = f"{known['steps']} ({known['step_numbers']}, {known['step_marker']})"
    warm_up = sorted(whole.steps.frame.filter("warm_up")["step"].unique().to_list())
    if warm_up:
        return f"{marked}, warm-up excluded: {', '.join(map(str, warm_up))}"
    if known["steps"] == 1:
        return f"{marked}, possibly warm-up"
    if known["steps"] < FEWEST_STEPS:
        return f"{marked}, too few to detect warm-up"
    return f"{marked}, no warm-up detected"


def _step_time(whole: Overview) -> str:
    walls = whole.steps.frame.filter(~pl.col("warm_up"))["wall_ns"].to_list()
    figures = whole.step_figures
    if len(walls) == 1:
        return numbers.duration(figures["wall_ns"])
    unit = numbers.scale(walls, numbers.TIME)
    mean, least, most = (
        unit.write(one) for one in (figures["mean_wall_ns"], min(walls), max(walls))
    )
    median = f"{unit.write(figures['wall_ns'])} {unit.unit} median"
    processes = whole.steps.frame["process"].n_unique()
    of = f" over {processes} processes" if processes > 1 else ""
    return f"{median} · {mean} mean · {least}\u2013{most} range{of}"


def _utilization(whole: Overview) -> str:
    totals = whole.busy.totals
    selected = "selected_steps" in whole.facts["properties"]
    window = "selected steps" if selected else "capture"
    unit = numbers.scale([totals["span_ns"]], numbers.TIME)
    busy_ns, span_ns = (unit.write(totals[name]) for name in ("busy_ns", "span_ns"))
    share = totals["busy_ns"] / totals["span_ns"] if totals["span_ns"] else 0.0
    devices = whole.busy.frame.height
    added = f", {devices} devices added up" if devices > 1 else ""
    text = f"{numbers.share(share)} of {window} ({busy_ns} of {span_ns} {unit.unit}{added})"
    if totals["sum_ns"] > totals["busy_ns"]:
        text += f" · summed {whole.processor} time {numbers.duration(totals['sum_ns'])}"
    if whole.steps.frame.height and whole.step_figures["busy_share"] is not None:
        return f"{numbers.share(whole.step_figures['busy_share'])} of step time · {text}"
    return text


def _by_device(frame: pl.DataFrame) -> str:
    ranked = frame["rank"].null_count() == 0
    rows = frame.select("rank", "device", "busy_ns", "span_ns").iter_rows()
    each = [
        f"{f'{rank}/{device}' if ranked else device}: {numbers.share(busy_ns / span)}"
        for rank, device, busy_ns, span in rows
        if span
    ]
    return f"by {'rank/device' if ranked else 'device'}  {', '.join(each)}"


def _launches(whole: Overview) -> str:
    known = whole.facts
    per_step = ""
    if known["steps"]:
        processes = max(whole.steps.frame["process"].n_unique(), 1)
        of = "step and process" if processes > 1 else "step"
        each = known["kernels"] / known["steps"] / processes
        per_step = f" ({numbers.mean(each)} per {of})"
    kernels = numbers.counted(known["distinct_kernel_names"], "kernel")
    return f"{numbers.count(known['kernels'])}{per_step} of {kernels}"


def _classes(whole: Overview) -> Table:
    """Return the time by category with bars, and the parts of a category below it."""
    lines = condensed(whole.breakdown.frame)
    frame = pl.DataFrame(
        [(_class_name(one), one.calls, one.step_ns, one.time_ns, one.share) for one in lines],
        schema={
            "class": pl.String,
            "calls": pl.Int64,
            "step_ns": pl.Int64,
            "time_ns": pl.Int64,
            "share": pl.Float64,
        },
        orient="row",
    )
    per_step = frame["step_ns"].null_count() < frame.height
    time = column("step_ns") if per_step else column("time_ns")
    title = Column("class", f"{whole.processor} time by class", Kind.LONG)
    columns = (title, column("calls"), time, column("share"))
    return Table(frame, columns, dropped=("bar", "calls"), bars="share", layout="compact")


def _class_name(line: Line) -> str:
    if line.depth:
        return f"  {line.folded} others" if line.folded else f"  {names.part(line.part or 'other')}"
    if line.category is None:
        return f"{line.folded} other classes"
    return names.class_of(line.category, line.part)


def _layers(trace: Trace, whole: Overview) -> list[Block]:
    """Return the layers with the most time; without layers the kernels, and a note.

    Empty for a printed summary, whose times by class come from its kernels.
    """
    if whole.facts["summary"] is not None:
        return []
    if not (whole.layers.frame["role"] == "layer").any():
        return [*_kernels(trace), Notes(tuple(("", note) for note in whole.layers.notes))]
    top = arrange(whole.layers, sort="time_ns", limit=MOST_LAYERS)
    frame = without_unknown(top.frame)
    wanted = ("layer", *DIRECTIONS, "time_ns", "share", "algorithm")
    titles = {"layer": "Slowest layers", "time_ns": "total", "algorithm": "conv algorithm"}
    return [
        Table(
            frame,
            columns_of(frame, wanted, titles=titles),
            dropped=without_zeros(frame, ("other_ns", "optimizer_ns", "algorithm")),
            layout="compact",
            hidden=hidden_of(top, "layers"),
        )
    ]


def _kernels(trace: Trace) -> list[Block]:
    """Return the kernels with the most time."""
    top = arrange(kernels(trace), limit=MOST_LAYERS)
    if top.frame.is_empty():
        return []
    of = "operators" if trace.on_cpu else "kernels"
    titles = {"name": f"Slowest {of}", "time_ns": "total"}
    return [
        Table(
            top.frame,
            columns_of(top.frame, ("name", "calls", "time_ns", "share"), titles=titles),
            dropped=("calls",),
            layout="compact",
            hidden=hidden_of(top, "kernels"),
        )
    ]


def _transfers(whole: Overview) -> list[Block]:
    """Return one row per direction and kind of host memory; empty without copies."""
    top = arrange(whole.transfers, limit=MOST_TRANSFERS)
    if top.frame.is_empty():
        return []
    frame = without_unknown(top.frame)
    wanted = (
        *("direction", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns", "bytes_per_s"),
        "host_memory",
    )
    titles = {"direction": "Transfers", "count": "calls", "time_ns": "total"}
    return [
        Table(
            frame,
            columns_of(frame, wanted, titles=titles),
            dropped=("mean_bytes", "bytes", "host_memory"),
            layout="compact",
            hidden=hidden_of(top, "transfers"),
        )
    ]


def _findings(whole: Overview) -> list[Block]:
    if whole.facts["summary"] is not None:
        return []
    found = whole.advice.findings[:MOST_FINDINGS]
    title = Heading(
        "Recommendations, by estimated saving per step"
        if whole.steps.frame.height
        else "Recommendations, by estimated saving",
        "(traceana advise: evidence)" if found else "",
    )
    if not found:
        return [title, Facts(tuple(("", note) for note in whole.advice.notes))]
    # The evidence of each is there, with a link to the rows that it is from.
    items = (replace(one, section="recommendations") for one in findings_of(found))
    return [title, Findings(tuple(items), brief=True)]


def _notes(whole: Overview) -> Iterator[Notes]:
    known = whole.facts
    rows = [("", note) for note in whole.breakdown.notes if note not in whole.steps.notes]
    if whole.breakdown.frame.height:
        rows.insert(0, ("Unclassified", f"{numbers.share(whole.unclassified)}"))
    if rows:
        yield Notes(tuple(rows))
    warnings = []
    problems = [entry for entry in known["ledger"] if entry["severity"] == "problem"]
    if problems:
        counts: dict[str, int] = {}
        for one in problems:
            counts[one["reason"]] = counts.get(one["reason"], 0) + one["count"]
        listed = "; ".join(
            f"{numbers.count(n)} {reason}: {REASONS[reason][1]}" for reason, n in counts.items()
        )
        warnings.append(("Integrity problems", f"{listed} (traceana info)"))
    if known["truncated"]:
        read = "size unknown"
        if known["bytes_read"] is not None and known["bytes_total"]:
            share = numbers.share(known["bytes_read"] / known["bytes_total"])
            read = f"{share} of {numbers.size(known['bytes_total'])} read"
        warnings.append(("Truncated file", read))
    if warnings:
        yield Notes(tuple(warnings), warning=True)
