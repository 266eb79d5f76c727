"""Copies by direction, kind of host memory, and who asked for them."""

from __future__ import annotations

from traceana.analyze.transfers.askers import By
from traceana.analyze.transfers.table import transfers

__all__ = ["By", "transfers"]
