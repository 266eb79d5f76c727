"""The figures of the report: its analyses, and the basis of its first screen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from traceana.advise import Advice, Finding, advise
from traceana.advise.bottleneck import Bottleneck
from traceana.advise.rule import Stage
from traceana.analyze.classes import breakdown
from traceana.analyze.devices import busy
from traceana.analyze.facts import facts
from traceana.analyze.layers import LAYER_KEYS, layers
from traceana.analyze.per_step import Basis, basis
from traceana.analyze.roofline import Utilization, utilization
from traceana.analyze.transfers import transfers
from traceana.analyze.unrecorded import unrecorded
from traceana.result import Result
from traceana.timeline.steps import StepTime, is_server, step_time, steps
from traceana.timeline.work import has_kernels, processor, work
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.runs import BatchSeries


class ReportBasis(Basis, frozen=True):
    """The basis of the first screen, with the tables of the part that it covers."""

    breakdown: Result
    layers: Result
    transfers: Result


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
    flop_utilization: Utilization | None
    """MFU and HFU; None without steps, a known peak, or counted products."""
    advice: Advice
    basis: ReportBasis

    @property
    def sections(self) -> dict[str, Result]:
        """The tables of the report by their names, in the order of the JSON."""
        return {
            "steps": self.steps,
            **by_phase(self.trace),
            "busy": self.busy,
            "breakdown": self.breakdown,
            "layers": self.basis.with_step_columns(self.layers, self.basis.layers, LAYER_KEYS),
            "transfers": self.transfers,
            **_sampled(self.trace),
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
        capture; null without either, and without kernels."""
        if not has_kernels(self.trace):
            return None
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
            None if self.flop_utilization is None else self.flop_utilization.mfu,
            bottleneck,
            advice.findings,
            advice.plan,
        )


class Summary(msgspec.Struct, frozen=True):
    """The figures of the report's head: ``step_time`` (null without steps); ``step_interval_ns``
    (the ends of the interval of its median) and ``recorded_ns`` (the median step as recorded, with
    the profiler), null where the step time is as recorded; ``timed_ns`` (the step that the recorded
    run timed without the profiler, null where it did not); ``utilization`` (a fraction of the
    measured steps' time, else of the capture; null without kernels); ``mfu`` (model FLOP
    utilization, null without steps, a known peak or FLOP counts); ``bottleneck`` (null without
    device work), ``recommendations`` and their ``plan``."""

    step_time: StepTime | None
    step_interval_ns: tuple[int, int] | None
    recorded_ns: int | None
    timed_ns: int | None
    utilization: float | None
    mfu: float | None
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
    if roots.height != 1:
        return None
    name = str(roots["path" if scopes else "type"].item())
    # A layer that is one operator is no network.
    is_operator = (trace.tables.ops["name"].cast(pl.String) == f"aten::{name}").any()
    return None if is_operator else name


_COMPILED: Final = re.compile(r"^(?:jit|pjit|pmap)_+")
"""Prefix of the name of a compiled program, before the name of its function."""


def overview(trace: Trace, *, batches: BatchSeries | None = None) -> Overview:
    """Return the sections of the report on ``trace``."""
    tables = breakdown(trace), layers(trace, costs=False, model=trace.manifest), transfers(trace)
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
        flop_utilization=utilization(trace, trace.manifest),
        advice=Advice((), ()) if missing is not None else advise(trace, batches=batches),
        basis=_basis(trace, *tables),
    )


def _basis(trace: Trace, classes: Result, by_layer: Result, copied: Result) -> ReportBasis:
    """Return the basis of the first screen, given the tables of the whole ``trace``."""
    common = basis(trace)
    return ReportBasis(
        **msgspec.structs.asdict(common),
        breakdown=common.analyzed(breakdown, classes),
        layers=common.analyzed(partial(layers, costs=False, model=trace.manifest), by_layer),
        transfers=common.analyzed(transfers, copied),
    )


def _sampled(trace: Trace) -> dict[str, Result]:
    """Return the section of sampled counters; empty without them."""
    if trace.tables.samples.is_empty():
        return {}
    from traceana.analyze.samples import samples

    return {"samples": samples(trace)}


def by_phase(trace: Trace) -> dict[str, Result]:
    """Return the section of a server's phases; empty where the steps are not iterations of one."""
    if not is_server(trace):
        return {}
    from traceana.analyze.serving import phases

    return {"phases": phases(trace)}
