"""From the class of an activity's name to the class of the activity, by its context."""

from traceana.enrich.refine.refinement import refine

__all__ = ["refine"]
