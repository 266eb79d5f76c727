"""The convolutions of a trace: their extents, by its operators, and their executed FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.analyze.operator_flops import Tree
from traceana.analyze.per_trace import per_small_trace
from traceana.enrich.nesting import from_rows, to_rows
from traceana.enrich.texts import Texts
from traceana.flops.aten_convolution import (
    BACKWARD,
    FORWARD,
    OUTPUT,
    backward_extents,
    forward_extents,
    hints,
)
from traceana.flops.call import Call, element_size
from traceana.flops.convolution import Convolution
from traceana.flops.cost import LARGEST, Refusal, UncountableError
from traceana.flops.executed import Direction, executed
from traceana.flops.registry import MOST_INPUTS

if TYPE_CHECKING:
    from traceana.trace import Trace

NAMES: Final = (*FORWARD, *BACKWARD)
CALL: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT)
"""The columns of an operator that describe its convolution: arguments of ``read``."""

_EXTENTS: Final = pl.List(pl.Int64)
SHAPE: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "in_channels": pl.Int64,
    "out_channels": pl.Int64,
    "groups": pl.Int64,
    "transposed": pl.Boolean,
    "window": _EXTENTS,
    "input": _EXTENTS,
    "output": _EXTENTS,
    "stride": _EXTENTS,
    "dilation": _EXTENTS,
    "element_bytes": pl.Int64,
}
"""Columns of the extents, as of :class:`Convolution`, and the size of an element."""


def read(
    name: str, shapes: str | None, types: str | None, inputs: str | None, output: str | None
) -> tuple[Convolution, int | None] | Refusal:
    """Return the convolution of a call and the bytes of an element, or the reason without."""
    try:
        hint = None if output is None else Call.decode("", output).shape(0)
        call = Call.decode(name, shapes, types, inputs, output=hint)
        most = MOST_INPUTS.get(name, len(call.shapes))
        call = call.inputs(slice(max(len(call.shapes) - most, 0), None))
        size = element_size(call.types[0]) if call.types else None
        if name in FORWARD:
            return forward_extents(call, FORWARD[name]), size
        return backward_extents(call, BACKWARD[name]), size
    except UncountableError as error:
        return Refusal(str(error))


def shapes_of(ops: pl.DataFrame, wanted: pl.Series) -> pl.DataFrame:
    """Return ``operator`` (row of ``ops``) and :data:`SHAPE` of those ``wanted`` that have them."""
    calls = _calls(ops)
    calls = calls.filter(pl.col("op").is_in(wanted.drop_nulls().implode()))
    distinct = calls.select(CALL).unique()
    extents = pl.DataFrame(
        [_row(*call) for call in distinct.iter_rows()], schema=SHAPE, orient="row"
    )
    return (
        calls.join(distinct.hstack(extents), on=CALL, nulls_equal=True)
        .drop_nulls("batch")
        .select(pl.col("op").alias("operator"), *SHAPE)
    )


def _calls(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``op`` (row of ``ops``) and :data:`CALL` of the convolutions and their gradients."""
    named = ops.select(
        *("name", "process", "rank", "sequence", "direction", "parent"),
        *("input_shapes", "input_types", "inputs"),
    )
    # The names of the operators that give hints have the word too.
    convolves = pl.Series(Texts.of(ops["name"]).matching("(?i)conv"), dtype=pl.Boolean)
    rows = named.with_row_index("op").filter(convolves)
    rows = rows.with_columns(pl.col("name").cast(pl.String))
    hinted = rows.join(hints(rows), on="op", how="left", maintain_order="left")
    return hinted.filter(pl.col("name").is_in(NAMES)).select("op", *CALL)


def _row(name: str, *call: Any) -> tuple[Any, ...]:
    found = read(name, *call)
    if isinstance(found, Refusal):
        return (None,) * len(SHAPE)
    conv, size = found
    return (*(getattr(conv, column) for column in list(SHAPE)[:-1]), size)


EXECUTED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "episode": pl.UInt32,  # row of `episodes`
    "operator": pl.UInt32,  # row of `ops` with the shapes
    "direct_flops": pl.Int64,  # of a direct convolution; null where the shapes are unknown
    "executed_flops": pl.Int64,  # null with a `reason`
    "reason": pl.String,
}

_STRIDE_OF_ONE: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")
_BEYOND: Final = "FLOP count exceeds 64 bits"
_KEY: Final = (*CALL, "algorithm", "direction")


@per_small_trace
def executed_convolutions(trace: Trace) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``trace``: :func:`executed_by_episode`."""
    return executed_by_episode(trace.ops, trace.episodes)


def executed_by_episode(ops: pl.DataFrame, episodes: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``episodes``: columns of :data:`EXECUTED`.

    The shapes are those of the operator that launched it, or of the nearest parent that has them.
    Where the stride was not recorded and the algorithm supports only a stride of 1, it was 1.
    Formulas are evaluated once per distinct pair of call and algorithm.
    """
    calls = _calls(ops)
    distinct = calls.select(CALL).unique()
    read_calls = [not isinstance(read(*row), Refusal) for row in distinct.iter_rows()]
    readable = calls.join(
        distinct.filter(pl.Series(read_calls, dtype=pl.Boolean)),
        on=CALL,
        how="semi",
        nulls_equal=True,
        maintain_order="left",
    )
    has_shapes = np.zeros(ops.height, dtype=np.bool_)
    has_shapes[readable["op"].to_numpy()] = True
    operator = Tree.of(ops).nearest(has_shapes, from_rows(episodes["op"]))
    rows = (
        episodes.select("algorithm", "direction")
        .with_row_index("episode")
        .with_columns(to_rows(operator).alias("operator"))
        .join(calls.rename({"op": "operator"}), on="operator", how="left", maintain_order="left")
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


_Row = tuple[int | None, int | None, str | None]
"""(direct FLOPs, executed FLOPs, reason)"""


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
        return _refused("no launching operator with shapes", None)
    found = read(name, shapes, types, inputs, output)
    if isinstance(found, Refusal):
        return _refused(found.reason, None)
    conv, size = found
    flops = 2 * conv.macs
    if flops > LARGEST:
        return _refused(_BEYOND, None)
    way = next((one for one in get_args(Direction) if one == direction), None)
    if algorithm is None or way is None:
        return _refused("algorithm or direction unknown", flops)
    if conv.stride is None and algorithm in _STRIDE_OF_ONE:
        ones = (1,) * len(conv.window)
        conv = replace(conv, stride=ones, dilation=ones)
    result = executed(conv, algorithm, way, size=size or 4)
    if isinstance(result, Refusal):
        return _refused(result.reason, flops)
    if max(result.flops, result.workspace or 0) > LARGEST:
        return _refused(_BEYOND, flops)
    return flops, result.flops, None


def _refused(reason: str, flops: int | None) -> _Row:
    return flops, None, reason
