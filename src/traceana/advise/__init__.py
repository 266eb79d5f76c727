"""What to change: rules over the results of the analyses, each with its evidence and its saving."""

from __future__ import annotations

from traceana.advise.advice import Advice, advise
from traceana.advise.model import Finding, Rule
from traceana.advise.registry import RULES

__all__ = ["RULES", "Advice", "Finding", "Rule", "advise"]
