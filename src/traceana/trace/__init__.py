"""The canonical tables, the Trace that holds them, the bundle on disk and the integrity ledger."""

from traceana.trace.ledger import Ledger
from traceana.trace.tables import Tables
from traceana.trace.trace import RECORDED_WITH, Cut, Trace, TraceMeta, per_small_trace, per_trace

__all__ = [
    "RECORDED_WITH",
    "Cut",
    "Ledger",
    "Tables",
    "Trace",
    "TraceMeta",
    "per_small_trace",
    "per_trace",
]
