"""What the layers of a run compute in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceana.analyze.layers import layers

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace


def step_flops(trace: Trace, model: Manifest | None = None) -> dict[str, float]:
    """Return by layer the FLOPs of all its passes, mean over all steps of ``trace``.

    Layers of which no shapes are known, neither from the trace nor from ``model``, are not there.
    Without steps it is the whole recording's.
    """
    steps = max(trace.steps["number"].n_unique(), 1)
    table = layers(trace, model=model).frame.filter(
        pl.col("role") == "layer", pl.col("flops").is_not_null(), pl.col("flops") > 0
    )
    return dict(table.select("layer", pl.col("flops") / steps).iter_rows())
