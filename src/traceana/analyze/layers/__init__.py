"""Time, work and rates by layer: the rows add up to the work of the trace, to the nanosecond."""

from __future__ import annotations

from traceana.analyze.layers.table import layers

__all__ = ["layers"]
