"""Runs beside each other: what changed between two and whether it is real, or many in one table.

>>> import traceana
>>> traceana.diff("before.json.gz", "after.json.gz").layers           # doctest: +SKIP
>>> traceana.compare(["caffe.sqlite", "tensorflow.sqlite"]).gemms     # doctest: +SKIP
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from traceana.compare.comparison import Comparison, compare
from traceana.compare.diff import Diff, diff

__all__ = ["Comparison", "Diff", "compare", "diff"]


class _CallableModule(ModuleType):
    """Importing this package makes ``traceana.compare`` a module; it is the function as well."""

    def __call__(self, *arguments: Any, **options: Any) -> Comparison:
        return compare(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
