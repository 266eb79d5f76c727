"""Floating-point operations and compulsory bytes of operators, layers and algorithms.

One multiply-accumulate is two floating-point operations, here and in every table.
"""

from __future__ import annotations

from traceana.flops.call import Call
from traceana.flops.model import Cost, Part, Refusal, Shape
from traceana.flops.registry import cost, formulas

__all__ = ["Call", "Cost", "Part", "Refusal", "Shape", "cost", "formulas"]
