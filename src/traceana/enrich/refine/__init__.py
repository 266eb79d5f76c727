"""Refinement of the classes of activities by their context."""

from traceana.enrich.refine.refinement import refine

__all__ = ["refine"]
