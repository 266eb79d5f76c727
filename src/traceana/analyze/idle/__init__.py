"""Idle time of the devices: every gap with its cause, launches, and what overlaps."""

from __future__ import annotations

from traceana.analyze.idle.devices import devices
from traceana.analyze.idle.table import By, idle

__all__ = ["By", "devices", "idle"]
