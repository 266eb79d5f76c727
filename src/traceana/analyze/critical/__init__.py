"""The critical path of each step: what its end waited for, and what that waited for, and so on."""

from __future__ import annotations

from traceana.analyze.critical.segments import segments
from traceana.analyze.critical.table import By, critical

__all__ = ["By", "critical", "segments"]
