"""Two runs beside each other: what changed, where, and whether it is real."""

from __future__ import annotations

from traceana.compare.diff import Diff, diff

__all__ = ["Diff", "diff"]
