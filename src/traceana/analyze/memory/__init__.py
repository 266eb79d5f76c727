"""Memory of the devices: how much was allocated when, by what, and for how long."""

from __future__ import annotations

from traceana.analyze.memory.table import NO_EVENTS, By, memory

__all__ = ["NO_EVENTS", "By", "memory"]
