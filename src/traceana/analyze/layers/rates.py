"""What the rows of a table of layers compute, how fast, and how far from the machine that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.frame import COUNTS, whole_sum
from traceana.analyze.layers.located import PASSES

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final = ("flops", "executed_flops", "flops_per_s", "bytes")
"""Columns that :func:`with_costs` adds.

``flops``: of a direct computation, a multiply-accumulate being two; ``executed_flops``: what the
algorithms of the convolutions execute instead, null where one is not known; ``flops_per_s``:
``flops`` over the time of the work that they are known of; ``bytes``: each operand read and each
result written once.
"""

_PASSES_OF: Final[dict[str, tuple[str | None, ...]]] = {
    "forward": ("forward", "optimizer", "backward", None),
    "dgrad": ("dgrad", "backward", None),
    "wgrad": ("wgrad", "backward", None),
    "bias_grad": ("backward", "wgrad", None),
    "backward": ("backward", "dgrad", "wgrad", None),
}
"""The rows that a part of the work may be in, the first that there is. What runs forward inside a
backward pass is computed anew."""


def with_costs(
    frame: pl.DataFrame, keys: list[str], work: pl.DataFrame, charged: pl.DataFrame, trace: Trace
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return ``frame``, which has a row each of ``keys``, with :data:`COLUMNS`, and notes."""
    if "direction" in keys:
        charged = _with_pass(charged, frame, [key for key in keys if key != "direction"])
    sums = charged.group_by(keys).agg(whole_sum(column) for column in COUNTS)
    over = (
        work.group_by(keys)
        .agg(pl.col("launched_ns", "time_ns").sum())
        .select(
            *keys,
            pl.when(pl.col("launched_ns") > 0)
            .then("launched_ns")
            .otherwise("time_ns")
            .alias("over"),
        )
    )
    return (
        frame.join(sums, on=keys, how="left", nulls_equal=True)
        .join(over, on=keys, how="left", nulls_equal=True)
        .with_columns(
            pl.when((pl.col("over") > 0) & (pl.col("flops") > 0))
            .then(pl.col("flops") / pl.col("over") * 1e9)
            .alias("flops_per_s")
        )
        .drop("over"),
        (),
    )


def _with_pass(charged: pl.DataFrame, frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the charges with the ``direction`` of the row that they are in."""
    rows = frame.select(*keys, pl.col("direction").cast(pl.String)).with_columns(there=True)
    numbered = charged.with_columns(pl.col("part").cast(pl.String)).with_row_index("charge")
    taken: list[pl.DataFrame] = []
    waiting = numbered
    for rank in range(max(map(len, _PASSES_OF.values()))):
        choice = {
            part: (rows_of[rank] if rank < len(rows_of) else None)
            for part, rows_of in _PASSES_OF.items()
        }
        tried = waiting.with_columns(
            pl.col("part").replace_strict(choice, return_dtype=pl.String).alias("direction")
        ).join(rows, on=[*keys, "direction"], how="left", nulls_equal=True, maintain_order="left")
        taken.append(tried.filter(pl.col("there")).drop("there"))
        waiting = tried.filter(pl.col("there").is_null()).drop("there", "direction")
    return pl.concat(taken).with_columns(pl.col("direction").cast(PASSES))
