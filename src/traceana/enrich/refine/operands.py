"""The precision of what an operator multiplies, by the recorded types of its inputs."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.trace import Trace

MULTIPLIED: Final = ("attention", "conv", "gemm", "rnn")
"""Categories of kernels that multiply the operator's inputs."""

_FIRST_TYPE: Final = r'"(?:struct |class )?(?:c10::|at::)?(\w[\w<>: ]*)"'
# PyTorch's names and HLO's. Nothing follows from single precision: it may be computed as TF32.
_PRECISIONS: Final = {
    **dict.fromkeys(("Half", "half", "float16", "f16"), "fp16"),
    **dict.fromkeys(("BFloat16", "bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("double", "float64", "f64"), "fp64"),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e4m3fnuz", "Float8_e5m2", "Float8_e5m2fnuz"), "fp8"),
    **dict.fromkeys(("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"), "fp8"),
    **dict.fromkeys(("signed char", "int8", "s8"), "int8"),
    **dict.fromkeys(("complex<float>", "complex64", "c64"), "c64"),
    **dict.fromkeys(("complex<double>", "complex128", "c128"), "c128"),
}


def operand_precision(trace: Trace) -> pl.Series:
    """Return, for each activity, the precision of its operator's first typed input.

    Of a compiled program's kernel it is that of its instruction. Null where no type is recorded
    or it does not decide the precision.
    """
    activities = trace.activities
    of_op = _precisions(trace.ops["input_types"]).gather(activities["op"])
    of_instruction = _precisions(trace.instructions["input_types"]).gather(
        activities["instruction"]
    )
    return pl.select(pl.coalesce(of_op, of_instruction)).to_series()


def _precisions(types: pl.Series) -> pl.Series:
    """Return the precision of each JSON list of types; each distinct list is looked at once."""
    lists = types.alias("types").to_frame()
    first = pl.col("types").str.extract(_FIRST_TYPE)
    precision = first.replace_strict(_PRECISIONS, default=None, return_dtype=pl.String)
    told = lists.unique().drop_nulls().with_columns(precision.alias("precision"))
    return lists.join(told, on="types", how="left", maintain_order="left")["precision"]
