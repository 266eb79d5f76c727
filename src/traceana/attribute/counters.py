"""Measured counters to the kernels of a timeline, and the arithmetic that they count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.classify.spelling import canonical
from traceana.trace.ledger import Ledger

if TYPE_CHECKING:
    from traceana.trace import Trace

_SIZES: Final = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
_FLOPS: Final = {
    # per thread instruction: add, multiply, fused multiply-add; those of fp16 work on two halves
    "fp64": (1, 1, 2),
    "fp32": (1, 1, 2),
    "fp16": (2, 2, 4),
}


def with_counters(trace: Trace, counters: pl.DataFrame) -> Trace:
    """Return ``trace`` with ``counters`` of the same program, each with the row of its kernel.

    The n-th measured launch of a name and of a grid and block size is the n-th kernel of that name
    and size by start. Spellings of a name that differ between profilers are one. A launch whose
    sizes were not recorded goes by its name alone. Launches that the timeline does not have keep a
    null ``activity``; they, and the kernels of measured names that no launch was left for, are
    counted in the ledger as ``unmatched``.
    """
    measured = counters.drop("activity", strict=False).with_row_index("_row")
    sized = measured.select(pl.all_horizontal(pl.col(_SIZES).is_not_null()).all()).item()
    keys = ["_name", *(_SIZES if sized else [])]
    work = trace.activities.with_row_index("activity").filter(pl.col("kind") == "kernel")
    spelled = canonical(trace.names["name"]).gather(work["name_id"])
    kernels = (
        work.with_columns(spelled.alias("_name"))
        .sort("start", maintain_order=True)
        .select("activity", *keys)
        .with_columns(pl.int_range(pl.len()).over(keys).alias("_nth"))
    )
    launches = (
        measured.with_columns(canonical(measured["name"]).alias("_name"))
        .sort("launch", maintain_order=True)
        .with_columns(pl.int_range(pl.len()).over(keys).alias("_nth"))
    )
    joined = (
        launches.join(kernels, on=[*keys, "_nth"], how="left", maintain_order="left")
        .sort("_row")
        .select(counters.columns)
    )
    of_measured = kernels.filter(pl.col("_name").is_in(launches["_name"].unique().implode()))
    lacking = joined["activity"].null_count()
    left = of_measured.height - (joined.height - lacking)
    ledger = Ledger()
    absent = "measured launches that are not in the timeline"
    ledger.add("unmatched", lacking, table="counters", kept=True, detail=absent)
    unmeasured = "kernels of a measured name that were not measured"
    ledger.add("unmatched", left, table="activities", kept=True, detail=unmeasured)
    return trace.with_tables(counters=joined, ledger=pl.concat([trace.ledger, ledger.frame()]))


def flops(counters: pl.DataFrame) -> pl.DataFrame:
    """Return the floating-point operations of each launch: fp64, fp32, fp16 (Int64), in order.

    Of the CUDA cores; those of the tensor cores are ``counters.tensor_ops``. One multiply-add is
    two operations. Null where one of the three counters of a type was not measured. Weights: the
    roofline sections of Nsight Compute (``…op_hfma_pred_on_x4``).
    """
    return counters.select(
        pl.sum_horizontal(
            *(
                weight * pl.col(f"{kind}_{operation}")
                for operation, weight in zip(("add", "mul", "fma"), weights, strict=True)
            ),
            ignore_nulls=False,
        ).alias(kind)
        for kind, weights in _FLOPS.items()
    )
