"""Refinement of the classes of activities by their context."""

from traceana.enrich.refine.refinement import refine
from traceana.enrich.refine.situations import operator_texts

__all__ = ["operator_texts", "refine"]
