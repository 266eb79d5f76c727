"""Memory that is set to zero or another value, and gradients that are added to zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Tree, from_rows
from traceana.result import Result, sums
from traceana.table import COUNT, LONG, PART, TIME, Column, aggregated, conformed
from traceana.timeline.work import work

if TYPE_CHECKING:
    from traceana.trace import Trace

MEMSET: Final = "memset"
FILL: Final = "fill"
ADDITION: Final = "addition of gradients"
POSSIBLE_ADDITION: Final = "addition, perhaps of gradients"

COLUMNS: Final = (
    Column(
        "work",
        PART,
        f"`{MEMSET}`, `{FILL}`, `{ADDITION}` to zeros, or `{POSSIBLE_ADDITION}`: in a CUDA graph",
    ),
    Column("name", LONG, "name of the kernel or memset"),
    Column("calls", COUNT, "pieces of work", pl.len()),
    Column("time_ns", TIME, "their time", pl.col("duration").sum()),
)
"""The columns of :func:`zeroing`."""
_ZEROS: Final = r"\bZeroFunctor\b"
"""ATen's kernel of ``torch._foreach_zero_``, with which optimizers set gradients to zero."""
_ZERO_GRAD: Final = r"^Optimizer\.zero_grad"
"""The range of an optimizer that sets gradients to zero, or to None without any work."""
_ADDS: Final = r"\bCUDAFunctor_add<"
"""ATen's kernel of one addition."""
_ACCUMULATES: Final = r"(?:^|: )torch::autograd::AccumulateGrad$"


def zeroing(trace: Trace) -> Result:
    """Return one row per kind of work and kernel: memsets, fills and additions of gradients.

    A gradient that an optimizer has set to zero, and not to None, is added to its zeros by
    ``AccumulateGrad``. Additions without zeros add up several backward passes, and are not among
    the rows. The replay of a CUDA graph has no operators: there any addition may be of a gradient.
    The columns are :data:`COLUMNS`. Most time first.
    """
    names = trace.tables.names["name"]
    ran = work(
        trace, "name", "name_id", "op", "kind", "category", "function", "duration", "range_text"
    )
    sets_lists, adds = (
        names.str.contains(pattern).gather(ran["name_id"]) for pattern in (_ZEROS, _ADDS)
    )
    is_fill = (pl.col("function") == "fill").fill_null(False) | pl.lit(sets_lists)
    kind_of_work = (
        pl.when(pl.col("kind") == "memset")
        .then(pl.lit(MEMSET))
        .when((pl.col("category") == "elementwise") & is_fill)
        .then(pl.lit(FILL))
    )
    rows = ran.with_columns(
        kind_of_work.alias("work"), pl.col("name", "range_text").cast(pl.String)
    )
    in_optimizer = pl.col("work").is_not_null() & pl.col("range_text").str.contains(_ZERO_GRAD)
    if sets_lists.any() or rows.select(in_optimizer.any()).item():
        op = from_rows(ran["op"])
        accumulates = Texts.of(trace.tables.ops["name"]).matching(_ACCUMULATES)
        inside = np.append(Tree.of_table(trace.tables.ops).inside(accumulates), [False])
        of_gradients, unknown = pl.Series(inside[op]), pl.Series(op == NONE)
        rows = rows.with_columns(
            pl.when(adds & of_gradients)
            .then(pl.lit(ADDITION))
            .when(adds & unknown)
            .then(pl.lit(POSSIBLE_ADDITION))
            .otherwise("work")
            .alias("work")
        )
    frame = aggregated(rows.drop_nulls("work"), ["work", "name"], COLUMNS).sort(
        ["time_ns", "work", "name"], descending=[True, False, False]
    )
    frame = conformed(frame, COLUMNS)
    return Result(frame, sums(frame, "calls", "time_ns"), (), COLUMNS)
