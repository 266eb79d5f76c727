"""Layers of one run with layers of another: features, evidence, the optimal alignment."""

from __future__ import annotations

from traceana.compare.align.alignment import Alignment, align
from traceana.compare.align.features import Side, side

__all__ = ["Alignment", "Side", "align", "side"]
