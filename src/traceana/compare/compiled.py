"""Work that compiled functions launched: they hold several layers, which are then told as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

_FUNCTION: Final = "CompiledFunction"
"""AOTAutograd's function of a compiled graph, and (with ``Backward``) that of its gradient."""

_BEGINS: Final = ("Torch-Compiled Region", "## Call CompiledFxGraph")
"""What Dynamo and Inductor draw around compiled code."""


def compiled(trace: Trace) -> pl.Series:
    """Return for each row of the work whether ``torch.compile`` made the code that launched it."""
    rows = work(trace).select("op", "range")
    inside = _inside(trace.ops, "name", rows["op"]) | _inside(trace.ranges, "text", rows["range"])
    return inside.alias("compiled")


def _inside(table: pl.DataFrame, name: str, rows: pl.Series) -> pl.Series:
    """Return whether each of ``rows`` of ``table``, or one around it, is of compiled code."""
    text = pl.col(name).cast(pl.String)
    marks = text.str.contains(_FUNCTION, literal=True)
    for begin in _BEGINS:
        marks |= text.str.starts_with(begin)
    found = table.select(marks.fill_null(False))[name].to_numpy()
    if not found.any():
        return pl.repeat(False, len(rows), dtype=pl.Boolean, eager=True)
    parent = table["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    while True:
        around = found | np.where(parent >= 0, found[parent], False)
        if (around == found).all():
            break
        found = around
    at = rows.cast(pl.Int64).fill_null(-1).to_numpy()
    return pl.Series(np.where(at >= 0, found[at], False))
