"""The work of PyTorch's math backend of attention: GEMMs, softmax, scaling and masks, not fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts
from traceana.columns.nesting import Tree, from_rows
from traceana.result import Result, sums
from traceana.table import CATEGORY, COUNT, PART, TIME, Column, aggregated, conformed
from traceana.timeline.work import work

if TYPE_CHECKING:
    from traceana.columns.nesting import Flags
    from traceana.trace import Trace

COLUMNS: Final = (
    Column("category", CATEGORY, "class of kernels, as of `report`", title="class"),
    Column("part", PART, "part of the class, as of `report`"),
    Column("direction", PART, "pass; null where not known"),
    Column("calls", COUNT, "pieces of work", pl.len()),
    Column("time_ns", TIME, "their time", pl.col("duration").sum()),
)
"""The columns of :func:`math_attention`."""
_MATH: Final = "^aten::_scaled_dot_product_attention_math"
_NODE: Final = ("rank", "process", "sequence")


def math_attention(trace: Trace) -> Result:
    """Return the work inside ``aten::_scaled_dot_product_attention_math``, and of its gradients.

    The columns are :data:`COLUMNS`. Most time first.
    """
    of_math = np.append(_of_math(trace.tables.ops), [False])
    ran = work(trace, "category", "part", "direction", "duration", "op")
    rows = ran.filter(of_math[from_rows(ran["op"])]).with_columns(
        pl.col("category", "part", "direction").cast(pl.String)
    )
    frame = aggregated(rows, ["category", "part", "direction"], COLUMNS).sort(
        ["time_ns", "category"], descending=[True, False]
    )
    frame = conformed(frame, COLUMNS)
    return Result(frame, sums(frame, "calls", "time_ns"), (), COLUMNS)


def _of_math(ops: pl.DataFrame) -> Flags:
    """Return which operators are of the math backend: inside its operator, or their gradients'."""
    named = Texts.of(ops["name"]).matching(_MATH)
    if not named.any():
        return named
    tree = Tree.of_table(ops)
    forward = named | tree.inside(named)
    # An operator without a gradient of its own has the sequence number of the one after it.
    numbers = ops.select(*_NODE).with_columns(
        pl.Series("math", forward), backward=(ops["direction"] == "backward").fill_null(False)
    )
    nodes = (
        numbers.filter(~pl.col("backward"), pl.col("sequence").is_not_null())
        .group_by(_NODE)
        .agg(pl.col("math").all())
        .filter("math")
    )
    gradients = numbers.join(
        nodes.select(*_NODE, pl.lit(True).alias("linked")),
        on=_NODE,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).select(pl.col("backward") & pl.col("linked").fill_null(False))
    backward = gradients.to_series().to_numpy()
    return np.asarray(forward | backward | tree.inside(backward))
