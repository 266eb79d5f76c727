"""All that the one-screen report shows, gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from traceana.analyze.attention import Figures, attention
from traceana.analyze.breakdown import breakdown
from traceana.analyze.busy import busy
from traceana.analyze.facts import facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.analyze.result import Result
from traceana.analyze.steps import steps
from traceana.analyze.transfers import transfers
from traceana.analyze.work import place

if TYPE_CHECKING:
    from traceana.trace import Trace


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
    attention: Result

    @property
    def sections(self) -> dict[str, Result]:
        """The tables of the report by their names, in the order they are shown."""
        return {
            "steps": self.steps,
            "busy": self.busy,
            "breakdown": self.breakdown,
            "layers": self.layers,
            "transfers": self.transfers,
            "attention": self.attention,
        }

    @property
    def by_category(self) -> list[dict[str, Any]]:
        """The breakdown by category, most time first.

        Each has ``category``, ``calls``, ``time_ns``, ``step_ns``, ``share`` and ``parts``, the
        rows of the breakdown that add up to it.
        """
        frame = self.breakdown.frame
        groups = []
        for (category,), rows in frame.partition_by(
            "category", as_dict=True, maintain_order=True
        ).items():
            sums = rows.select(pl.col("calls", "time_ns", "step_ns", "share").sum()).row(
                0, named=True
            )
            groups.append({"category": category, **sums, "parts": rows.to_dicts()})
        return groups

    @property
    def step_figures(self) -> dict[str, Any]:
        """Medians over the measured steps: ``wall_ns``, and ``busy_share`` of all their time.

        ``busy_share`` is the busy time of the devices that the steps used over their wall time
        times the number of those devices; null where a step used none.
        """
        measured = self.steps.frame.filter(~pl.col("warm_up"))
        available = int((measured["wall_ns"] * measured["devices"]).sum())
        return {
            "wall_ns": round(measured["wall_ns"].median()),  # type: ignore[arg-type]
            "busy_share": int(measured["busy_ns"].sum()) / available if available else None,
        }


def overview(trace: Trace) -> Overview:
    """Return the report on ``trace``."""
    by_class, by_kernel, by_layer = breakdown(trace), kernels(trace), layers(trace)
    copies, by_device = transfers(trace), busy(trace)
    figures = Figures(
        breakdown=by_class.frame,
        kernels=by_kernel.frame,
        layers=by_layer.frame,
        transfers=copies.frame,
        busy=by_device.frame,
        on_cpu=trace.on_cpu,
    )
    return Overview(
        facts=facts(trace),
        place=place(trace),
        model=_model(trace),
        steps=steps(trace),
        breakdown=by_class,
        layers=by_layer,
        busy=by_device,
        transfers=copies,
        attention=attention(figures),
    )


def _model(trace: Trace) -> str | None:
    roots = trace.layers.filter((pl.col("role") == "layer") & pl.col("parent").is_null())
    return roots["type"].item() if roots.height == 1 else None
