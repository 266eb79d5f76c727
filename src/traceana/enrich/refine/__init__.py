"""From what an activity's name says to what the activity is: its context decides the rest.

The operator that launched it, the operators around that, the kernels beside it and its launch.
Rules are data (``context.toml``), as those of ``traceana.enrich.classify`` are.
"""

from traceana.enrich.refine.refinement import refine

__all__ = ["refine"]
