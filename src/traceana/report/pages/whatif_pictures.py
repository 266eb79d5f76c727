"""Pictures of predicted step times: of each scenario with its interval, and by factor."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.report import numbers
from traceana.report.columns import Kind
from traceana.report.page import Axis, Chart, Column, Marks
from traceana.settings import PREDICTION_LEVEL

_STEP: Final = (Column("step_ns", "step time", Kind.TIME),)
_HEIGHT_OF_ROW: Final = 26
_MOST_LINES: Final = 8


def intervals(frame: pl.DataFrame) -> list[Chart]:
    """Return the predicted step of each scenario in ``frame``, with its interval beside the
    measured step; empty without scenarios."""
    if frame.is_empty():
        return []
    step = int(frame["step_ns"][0])
    ends = pl.concat(
        frame.select("scenario", pl.col(end).alias("step_ns")) for end in ("low_ns", "high_ns")
    )
    middle = frame.select("scenario", pl.col("predicted_ns").alias("step_ns"))
    first, last = frame["scenario"][0], frame["scenario"][-1]
    rule = pl.DataFrame({"scenario": [first, last], "step_ns": [step] * 2}).with_columns(
        pl.lit("measured").alias("rule")
    )
    least = frame.row(frame["predicted_ns"].arg_min() or 0, named=True)
    return [
        Chart(
            f"Predicted step time and its {PREDICTION_LEVEL:.0%} interval, beside the measured",
            f"{numbers.duration(step)} measured; the shortest is predicted of "
            f"{least['scenario']}: {numbers.duration(least['predicted_ns'])}.",
            Axis("step time", Kind.TIME),
            Axis("", Kind.TEXT),
            (
                Marks(ends, "line", "step_ns", "scenario", colour="scenario", shown=_STEP),
                Marks(middle, "point", "step_ns", "scenario", label="scenario", shown=_STEP),
                Marks(rule, "rule", "step_ns", "scenario", colour="rule"),
            ),
            height=70 + _HEIGHT_OF_ROW * frame.height,
        )
    ]


def by_factor(curve: pl.DataFrame) -> list[Chart]:
    """Return the predicted step of the scenarios of ``curve`` by the factor of what changes: of
    those that change it most, as many as have colours that differ."""
    most = (
        curve.filter(pl.col("factor") == 0)
        .sort("predicted_ns", maintain_order=True)["scenario"]
        .head(_MOST_LINES)
    )
    steps = curve.filter(pl.col("scenario").is_in(most.implode())).rename(
        {"predicted_ns": "step_ns"}
    )
    return [
        Chart(
            "Predicted step time by the factor of what changes",
            f"{numbers.counted(len(most), 'scenario')}, factors from 0 to 1.",
            Axis("factor", Kind.NUMBER),
            Axis("step time", Kind.TIME),
            (Marks(steps, "line", "factor", "step_ns", colour="scenario", shown=_STEP),),
        )
    ]
