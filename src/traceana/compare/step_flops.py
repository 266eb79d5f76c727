"""What the layers of a run compute in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.layers import layers
from traceana.analyze.selection import select
from traceana.analyze.steps import measured_steps

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace


def step_flops(
    trace: Trace, model: Manifest | None = None, *, whole: bool = False
) -> dict[str, float]:
    """Return by layer the FLOPs of all its passes, mean over the measured steps of ``trace``.

    Layers of which no shapes are known, neither from the trace nor from ``model``, are not there.
    With ``whole``, and without steps, they are those of the whole recording.
    """
    numbers = trace.steps["number"].gather(measured_steps(trace).rows).unique().to_list()
    part = select(trace, steps=numbers) if numbers and not whole else trace
    table = layers(part, model=model).frame.filter(
        pl.col("role") == "layer", pl.col("flops").is_not_null(), pl.col("flops") > 0
    )
    steps = 1 if whole else max(len(numbers), 1)
    return dict(table.select("layer", pl.col("flops") / steps).iter_rows())
