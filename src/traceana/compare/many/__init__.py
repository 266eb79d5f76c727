"""Any number of runs side by side: the tables of the published studies, and a summary.

Each table is a function of a sequence of :class:`Run` and returns a :class:`Table`: rows of a run
and an item, and the same with the runs side by side.
"""

from __future__ import annotations

from traceana.compare.many.epilogue import epilogues
from traceana.compare.many.gemm import gemms, sgemms
from traceana.compare.many.layers import layers
from traceana.compare.many.run import Run, labels
from traceana.compare.many.summary import summary
from traceana.compare.many.table import Table
from traceana.compare.many.transfers import transfers
from traceana.compare.many.work import algorithms, classes, kernels

__all__ = [
    "Run",
    "Table",
    "algorithms",
    "classes",
    "epilogues",
    "gemms",
    "kernels",
    "labels",
    "layers",
    "sgemms",
    "summary",
    "transfers",
]
