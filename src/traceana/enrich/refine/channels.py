"""Whether an operator adds along the channels, as its recorded shapes tell."""

from __future__ import annotations

from typing import Final

import polars as pl

_TWO_OPERANDS: Final = r"^\[\[([0-9, ]+)\], \[([0-9, ]+)\]"
_OPERANDS: Final = r"^\[\["
_ADDS: Final = r"^aten::add_?$"


def along_channels(ops: pl.DataFrame, names: pl.Series) -> pl.Series:
    """Return true where the second input is one number a channel of the first, null where unknown.

    ``names`` are the operators' names as text. The channels are the second dimension of three or
    more (NCL, NCHW, NCDHW) or the last of any. Only additions whose shapes are recorded are judged.
    """
    adds = pl.DataFrame({"shapes": ops["input_shapes"], "name": names}).select(
        pl.when(pl.col("name").str.contains(_ADDS) & pl.col("shapes").str.contains(_OPERANDS))
        .then("shapes")
        .alias("shapes")
    )
    operands = pl.col("shapes").str.extract_groups(_TWO_OPERANDS).struct
    added = pl.col("added").list.eval(pl.element().filter(pl.element() != 1))
    # Of a tensor of one channel the bias is a single number.
    size = (
        pl.when(added.list.len() == 0).then(1).when(added.list.len() == 1).then(added.list.first())
    )
    second = pl.when(pl.col("to").list.len() >= 3).then(pl.col("to").list.get(1, null_on_oob=True))
    judged = (
        adds.unique()
        .drop_nulls()
        .with_columns(
            _dimensions(operands.field("1")).alias("to"),
            _dimensions(operands.field("2")).alias("added"),
        )
        .select(
            "shapes",
            ((size == second) | (size == pl.col("to").list.last()))
            .fill_null(False)
            .alias("channel"),
        )
    )
    return adds.join(judged, on="shapes", how="left", maintain_order="left")["channel"]


def _dimensions(text: pl.Expr) -> pl.Expr:
    return text.str.split(", ").cast(pl.List(pl.Int64))
