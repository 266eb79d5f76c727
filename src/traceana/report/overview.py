"""All that the one-screen report shows, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.advise import Advice, advise
from traceana.analyze.breakdown import Line, breakdown, condensed
from traceana.analyze.devices import busy
from traceana.analyze.facts import facts
from traceana.analyze.layers import layers
from traceana.analyze.steps import steps
from traceana.analyze.transfers import transfers
from traceana.analyze.work import place
from traceana.result import Arranged, Result, arrange

if TYPE_CHECKING:
    from traceana.advise import Finding
    from traceana.runs import BatchSeries
    from traceana.trace import Trace

MOST_LAYERS: Final = 6
MOST_TRANSFERS: Final = 4
MOST_FINDINGS: Final = 3


@dataclass(frozen=True, slots=True)
class Overview:
    """The sections of the report; each is the result of the analysis of its name."""

    facts: Mapping[str, Any]
    place: str
    """``GPU`` or ``CPU``."""
    model: str | None
    """Type of the outermost layer, where the trace has exactly one."""
    steps: Result
    breakdown: Result
    layers: Result
    busy: Result
    transfers: Result
    advice: Advice

    @property
    def sections(self) -> dict[str, Result]:
        """The tables of the report by their names, in the order they are shown."""
        return {
            "steps": self.steps,
            "busy": self.busy,
            "breakdown": self.breakdown,
            "layers": self.layers,
            "transfers": self.transfers,
        }

    @property
    def by_class(self) -> list[Line]:
        """The breakdown, condensed."""
        return condensed(self.breakdown.frame)

    @property
    def unclassified(self) -> float:
        """The share of all work that is of no known class."""
        frame = self.breakdown.frame
        return float(frame.filter(pl.col("category") == "other")["share"].sum())

    @property
    def top_layers(self) -> Arranged:
        """The layers and roles with the most time."""
        return arrange(self.layers, sort="time_ns", limit=MOST_LAYERS)

    @property
    def top_transfers(self) -> Arranged:
        """The copies that took the most time."""
        return arrange(self.transfers, limit=MOST_TRANSFERS)

    @property
    def top_findings(self) -> tuple[Finding, ...]:
        """The findings with the largest savings."""
        return self.advice.findings[:MOST_FINDINGS]

    @property
    def step_figures(self) -> dict[str, Any]:
        """Figures of the measured steps: ``wall_ns`` (median), ``mean_wall_ns``, ``busy_share``.

        ``busy_share`` is the busy time of the devices that the steps used over their wall time
        times the number of those devices; null where no step used one.
        """
        measured = self.steps.frame.filter(~pl.col("warm_up"))
        used = bool((measured["devices"] > 0).any())
        available = int((measured["wall_ns"] * measured["devices"].clip(1)).sum()) if used else 0
        return {
            "wall_ns": round(measured["wall_ns"].median()),  # type: ignore[arg-type]
            "mean_wall_ns": int(measured["wall_ns"].sum()) // measured.height,
            "busy_share": int(measured["busy_ns"].sum()) / available if available else None,
        }


def overview(trace: Trace, *, batches: BatchSeries | None = None) -> Overview:
    """Return the report on ``trace``; ``batches`` as of :func:`traceana.advise.advise`."""
    return Overview(
        facts=facts(trace),
        place=place(trace),
        model=_model(trace),
        steps=steps(trace),
        breakdown=breakdown(trace),
        layers=layers(trace, costs=False),
        busy=busy(trace),
        transfers=transfers(trace),
        advice=advise(trace, batches=batches),
    )


def _model(trace: Trace) -> str | None:
    roots = trace.layers.filter((pl.col("role") == "layer") & pl.col("parent").is_null())
    return roots["type"].item() if roots.height == 1 else None
