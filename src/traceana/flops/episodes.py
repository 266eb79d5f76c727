"""What the convolutions of a trace executed: algorithms of kernels, shapes of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, get_args

import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, from_rows, to_rows
from traceana.flops.conv_shapes import CALL, NAMES, read
from traceana.flops.coverage import Tree
from traceana.flops.executed import Direction, executed
from traceana.flops.hints import with_hints
from traceana.flops.model import LARGEST, Refusal

EXECUTED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "episode": pl.UInt32,  # row of `episodes`
    "operator": pl.UInt32,  # row of `ops` that tells the shapes
    "direct_flops": pl.Int64,  # of a direct convolution; null where the shapes are not known
    "executed_flops": pl.Int64,  # null where the reason says why
    "product_flops": pl.Int64,
    "transform_flops": pl.Int64,
    "workspace": pl.Int64,  # bytes; null where no formula is known
    "formula": pl.String,
    "reason": pl.String,
}

_STRIDE_OF_ONE: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")
_BEYOND: Final = "the count is beyond 64 bits"
_KEY: Final = (*CALL, "algorithm", "direction")


def executed_by_episode(ops: pl.DataFrame, episodes: pl.DataFrame) -> pl.DataFrame:
    """Return what each convolution of ``episodes`` executed: columns of :data:`EXECUTED`.

    The shapes are those of the operator that launched it, or of the nearest around it that has
    them. Where the stride was not recorded and an algorithm ran that takes a stride of 1 only, it
    was 1. Formulas run on the distinct pairs of call and algorithm.
    """
    named = with_hints(ops.with_columns(pl.col("name").cast(pl.String)).with_row_index("op"))
    calls = named.filter(pl.col("name").is_in(NAMES)).select(CALL).unique()
    readable = [not isinstance(read(*row), Refusal) for row in calls.iter_rows()]
    named = named.join(
        calls.with_columns(pl.Series("_readable", readable, dtype=pl.Boolean)),
        on=CALL,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    nearest = Tree.of(ops).nearest(named["_readable"].fill_null(False).to_numpy())
    launched = from_rows(episodes["op"])
    operator = np.full(len(launched), NONE, dtype=np.int64)
    operator[launched != NONE] = nearest[launched[launched != NONE]]
    rows = (
        episodes.select("algorithm", "direction")
        .with_row_index("episode")
        .with_columns(to_rows(operator).alias("operator"))
        .join(
            named.select(pl.col("op").alias("operator"), *CALL),
            on="operator",
            how="left",
            maintain_order="left",
        )
    )
    distinct = rows.select(_KEY).unique()
    results = pl.DataFrame(
        [_executed(*row) for row in distinct.iter_rows()],
        schema=[(name, dtype) for name, dtype in EXECUTED.items()][2:],
        orient="row",
    )
    return rows.join(
        pl.concat([distinct, results], how="horizontal"),
        on=_KEY,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).select(pl.col(name).cast(dtype) for name, dtype in EXECUTED.items())


_Row = tuple[int | None, int | None, int | None, int | None, int | None, str | None, str | None]


def _executed(
    name: str | None,
    shapes: str | None,
    types: str | None,
    inputs: str | None,
    output: str | None,
    algorithm: str | None,
    direction: str | None,
) -> _Row:
    if name is None:
        return _refused("no operator with shapes launched it", None)
    found = read(name, shapes, types, inputs, output)
    if isinstance(found, Refusal):
        return _refused(found.reason, None)
    conv, size = found
    flops = 2 * conv.macs
    if flops > LARGEST:
        return _refused(_BEYOND, None)
    way = next((one for one in get_args(Direction) if one == direction), None)
    if algorithm is None or way is None:
        return _refused("the algorithm or the direction is not known", flops)
    if conv.stride is None and algorithm in _STRIDE_OF_ONE:
        ones = (1,) * len(conv.window)
        conv = replace(conv, stride=ones, dilation=ones)
    result = executed(conv, algorithm, way, size=size or 4)
    if isinstance(result, Refusal):
        return _refused(result.reason, flops)
    if max(result.flops, result.workspace or 0) > LARGEST:
        return _refused(_BEYOND, flops)
    return (
        flops,
        result.flops,
        result.product.flops,
        result.transforms.flops,
        result.workspace if size is not None else None,
        result.formula,
        None,
    )


def _refused(reason: str, flops: int | None) -> _Row:
    return flops, None, None, None, None, None, reason
