"""The figures of the report: its analyses, and the basis of its first screen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.advise import Advice, Finding, advise
from traceana.advise.bottleneck import Bottleneck
from traceana.advise.rule import Stage
from traceana.analyze.classes import breakdown
from traceana.analyze.devices import busy
from traceana.analyze.facts import facts
from traceana.analyze.layers import DIRECTIONS, layers
from traceana.analyze.transfers import transfers
from traceana.analyze.unrecorded import unrecorded
from traceana.result import Arranged, Result
from traceana.timeline.steps import StepTime, is_server, measured, step_processes, step_time, steps
from traceana.timeline.work import processor, work, work_ns
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.runs import BatchSeries

_COUNTS: Final = ("calls", "count")
_SUMS: Final = (*DIRECTIONS, "time_ns", "exposed_ns", "bytes")


class Basis(msgspec.Struct, frozen=True):
    """The figures of the first screen: of the measured steps, else of the capture.

    ``trace`` is the part of the trace that they cover, ``steps`` by how many steps they are
    divided: the measured ones of each process, 1 for the capture. ``work_share`` is the part's
    share of the work of the trace.
    """

    trace: Trace
    steps: int
    stepped: bool
    work_share: float
    breakdown: Result
    layers: Result
    transfers: Result

    def mean(self, shown: Arranged) -> Arranged:
        """Return the rows ``shown``, of a table of this part, with means per step.

        Times and bytes are rounded down.
        """
        if not self.stepped:
            return shown
        has = shown.frame.columns
        counts, times = ([name for name in names if name in has] for names in (_COUNTS, _SUMS))
        frame = shown.frame.with_columns(pl.col(counts) / self.steps, pl.col(times) // self.steps)
        hidden = {name: total // self.steps for name, total in shown.hidden_totals.items()}
        return replace(shown, frame=frame, hidden_totals=hidden)

    @property
    def per(self) -> str:
        """The divisor of the means: ``per step``, or ``per step and process`` with several.

        Empty for sums.
        """
        if not self.stepped:
            return ""
        several = step_processes(self.trace) > 1
        return "per step and process" if several else "per step"

    def title(self, table: str) -> str:
        """Return the title of ``table``, with "per step" if its figures are means."""
        return f"{table}, per step" if self.stepped else table


class Overview(msgspec.Struct, frozen=True):
    """The sections of the report; each is the result of the analysis of its name."""

    trace: Trace
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
    unrecorded: str | None
    """The GPU's work that was not recorded: :func:`traceana.analyze.unrecorded.unrecorded`."""
    advice: Advice
    basis: Basis

    @property
    def sections(self) -> dict[str, Result]:
        """The tables of the report by their names, in the order of the JSON."""
        return {
            "steps": self.steps,
            **by_phase(self.trace),
            "busy": self.busy,
            "breakdown": self.breakdown,
            "layers": self.layers,
            "transfers": self.transfers,
        }

    @property
    def unclassified(self) -> float:
        """The unclassified share of the work."""
        frame = self.basis.breakdown.frame
        return float(frame.filter(pl.col("category") == "other")["share"].sum())

    @property
    def step_time(self) -> StepTime | None:
        """The step time: :func:`traceana.timeline.steps.step_time`."""
        return step_time(self.trace)

    @property
    def recorded_ns(self) -> int | None:
        """The median step as recorded; null where the step time is that."""
        recorded = None if self.trace.recorded is None else step_time(self.trace.recorded)
        return None if recorded is None else recorded.median_ns

    @property
    def timed_ns(self) -> int | None:
        """The step that the recorded run timed without the profiler; null where it did not."""
        timed = self.trace.meta.unprofiled_step_ns
        return None if timed is None else round(timed)

    @property
    def utilization(self) -> float | None:
        """The busy share of the measured steps' time on the devices that they used, else of the
        capture; null without either."""
        measured = self.steps.frame.filter(pl.col("measured") & (pl.col("devices") > 0))
        if measured.height:
            available = int((measured["wall_ns"] * measured["devices"]).sum())
            return int(measured["busy_ns"].sum()) / available if available else None
        totals = self.busy.totals
        return totals["busy_ns"] / totals["span_ns"] if totals.get("span_ns") else None

    @property
    def summary(self) -> Summary:
        """The figures of the report's head."""
        bottleneck = self.advice.bottleneck
        advice = self.advice
        return Summary(
            self.step_time,
            self.trace.meta.step_interval_ns,
            self.recorded_ns,
            self.timed_ns,
            self.utilization,
            bottleneck,
            advice.findings,
            advice.plan,
        )


class Summary(msgspec.Struct, frozen=True):
    """The figures of the report's head: ``step_time`` (null without steps); ``step_interval_ns``
    (the ends of the interval of its median) and ``recorded_ns`` (the median step as recorded, with
    the profiler), null where the step time is as recorded; ``timed_ns`` (the step that the recorded
    run timed without the profiler, null where it did not); ``utilization`` (a fraction of the
    measured steps' time, else of the capture); ``bottleneck`` (null without device work),
    ``recommendations`` and their ``plan``."""

    step_time: StepTime | None
    step_interval_ns: tuple[int, int] | None
    recorded_ns: int | None
    timed_ns: int | None
    utilization: float | None
    bottleneck: Bottleneck | None
    recommendations: tuple[Finding, ...]
    plan: tuple[Stage, ...]


def _model(trace: Trace) -> str | None:
    """Return the name of the model, or of the function that XLA compiled; None if not recorded.

    It is the class of PyTorch's outermost module. A scope has no class: its type is the type of the
    operators in it.
    """
    programs = trace.tables.instructions["program"]
    ran = work(trace, "instruction", "duration").drop_nulls("instruction")
    if ran.height and trace.meta.framework == "JAX":
        named = ran.with_columns(programs.gather(ran["instruction"]).cast(pl.String))
        time = named.group_by("program").agg(pl.col("duration").sum())
        return str(_COMPILED.sub("", time.sort("duration", "program")["program"].item(-1)))
    roots = trace.tables.layers.filter((pl.col("role") == "layer") & pl.col("parent").is_null())
    scopes = trace.tables.ops["scope"].is_not_null().any()
    return roots["path" if scopes else "type"].item() if roots.height == 1 else None


_COMPILED: Final = re.compile(r"^(?:jit|pjit|pmap)_+")
"""Prefix of the name of a compiled program, before the name of its function."""


def overview(trace: Trace, *, batches: BatchSeries | None = None) -> Overview:
    """Return the sections of the report on ``trace``."""
    tables = breakdown(trace), layers(trace, costs=False), transfers(trace)
    missing = unrecorded(trace)
    return Overview(
        trace=trace,
        facts=facts(trace),
        processor=processor(trace),
        model=_model(trace),
        steps=steps(trace),
        breakdown=tables[0],
        layers=tables[1],
        busy=busy(trace),
        transfers=tables[2],
        unrecorded=missing,
        advice=Advice((), ())
        if trace.is_summary or missing is not None
        else advise(trace, batches=batches),
        basis=_basis(trace, *tables),
    )


def _basis(trace: Trace, classes: Result, by_layer: Result, copied: Result) -> Basis:
    """Return the basis of the first screen, given the tables of the whole ``trace``."""
    part = measured(trace)
    ran, of = work_ns(part), work_ns(trace)
    if part is not trace and work(part, "kind").height < work(trace, "kind").height:
        classes, by_layer, copied = breakdown(part), layers(part, costs=False), transfers(part)
    return Basis(
        trace=part,
        steps=part.tables.steps.height if part is not trace else 1,
        stepped=part is not trace,
        work_share=ran / of if of else 1.0,
        breakdown=classes,
        layers=by_layer,
        transfers=copied,
    )


def by_phase(trace: Trace) -> dict[str, Result]:
    """Return the section of a server's phases; empty where the steps are not iterations of one."""
    if not is_server(trace):
        return {}
    from traceana.analyze.serving import phases

    return {"phases": phases(trace)}
