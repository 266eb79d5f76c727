"""The FLOPs that the algorithms of a trace's convolutions execute, and the shapes behind them.

The algorithm is that of the kernels. The shapes are those of the operator that launched them, or of
the instruction of a compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.analyze.operator_flops import OUTPUT, hints
from traceana.columns.distinct import Texts
from traceana.columns.nesting import Tree, from_rows, to_rows
from traceana.flops.call import BEYOND, LARGEST, Call, Refusal, UncountableError
from traceana.flops.convolution import Convolution, extents
from traceana.flops.executed import Direction, executed
from traceana.flops.registry import named, operators_of
from traceana.trace import per_small_trace
from traceana.trace.schema import ROW

if TYPE_CHECKING:
    from traceana.trace import Trace

SHAPE: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "in_channels": pl.Int64,
    "out_channels": pl.Int64,
    "groups": pl.Int64,
    "transposed": pl.Boolean,
    "window": pl.List(pl.Int64),
    "input": pl.List(pl.Int64),
    "output": pl.List(pl.Int64),
    "stride": pl.List(pl.Int64),
    "dilation": pl.List(pl.Int64),
    "element_bytes": pl.Int64,
}
"""Columns of the extents, as of :class:`Convolution`, and the size of an element."""
EXECUTED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "episode": pl.UInt32,  # row of `episodes`
    "operator": pl.UInt32,  # row of `ops` with the shapes
    **SHAPE,  # null where the shapes are unknown
    "direct_flops": pl.Int64,  # of a direct convolution; null where the shapes are unknown
    "executed_flops": pl.Int64,  # null with a `reason`
    "reason": pl.String,
}
_CALL: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT)
_CONVOLUTIONS: Final = operators_of(
    *("convolution", "convolution_transpose"),
    *("convolution_backward", "convolution_transpose_backward"),
)
_STRIDE_OF_ONE: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")


@per_small_trace
def executed_convolutions(trace: Trace) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``trace``: :func:`executed_by_episode`."""
    return executed_by_episode(trace.tables.ops, trace.tables.episodes)


def executed_by_episode(ops: pl.DataFrame, episodes: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``episodes``: columns of :data:`EXECUTED`.

    The shapes are from the operator that launched it, or from the nearest parent that has them.
    Where the stride was not recorded and the algorithm supports only a stride of 1, it was 1.
    Formulas are evaluated once per distinct pair of call and algorithm.
    """
    rows = ops.with_row_index("op")
    is_one = Texts.of(ops["name"]).where(pl.col("text").is_in(_CONVOLUTIONS))
    calls = (
        rows.filter(pl.Series(is_one))
        .with_columns(pl.col("name").cast(pl.String))
        .join(hints(rows), on="op", how="left", maintain_order="left")
    )
    distinct = calls.select(_CALL).unique(maintain_order=True).with_row_index("call")
    # The convolution of each call and the bytes of an element, None without its shapes.
    convolutions: list[tuple[Convolution, int | None] | None] = []
    for _, name, shapes, types, inputs, output in distinct.iter_rows():
        try:
            hint = None if output is None else Call.decode("", output).shape(0)
            call = named(Call.decode(name, shapes, types, inputs, output=hint))
            convolutions.append((extents(call), call.size(0)))
        except UncountableError:
            convolutions.append(None)
    countable = pl.Series("known", [conv is not None for conv in convolutions], dtype=pl.Boolean)
    calls = calls.join(distinct.filter(countable), on=_CALL, nulls_equal=True).select("op", "call")
    has_shapes = np.zeros(ops.height, dtype=np.bool_)
    has_shapes[calls["op"].to_numpy()] = True
    operator = Tree.of_table(ops).nearest(has_shapes, from_rows(episodes["op"]))
    launched = (
        episodes.select("algorithm", "direction")
        .with_row_index("episode")
        .with_columns(to_rows(operator).alias("operator"))
        .join(calls, left_on="operator", right_on="op", how="left", maintain_order="left")
    )
    key = ["call", "algorithm", "direction"]
    pairs = launched.select(key).unique()
    counts = [
        _executed(None if row is None else convolutions[row], algorithm, direction)
        for row, algorithm, direction in pairs.iter_rows()
    ]
    schema = list(EXECUTED.items())[2:]
    return launched.join(
        pairs.hstack(pl.DataFrame(counts, schema=schema, orient="row")),
        on=key,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).select(pl.col(name).cast(dtype) for name, dtype in EXECUTED.items())


def _executed(
    recorded: tuple[Convolution, int | None] | None, algorithm: str | None, direction: str | None
) -> tuple[object, ...]:
    """Return the columns of :data:`EXECUTED` of a convolution by an algorithm."""
    if recorded is None:
        return *(None for _ in SHAPE), None, None, "no launching operator with shapes"
    conv, size = recorded
    shape = *(getattr(conv, column) for column in list(SHAPE)[:-1]), size
    flops = 2 * conv.macs
    if flops > LARGEST:
        return *shape, None, None, BEYOND
    way = next((name for name in get_args(Direction) if name == direction), None)
    if algorithm is None or way is None:
        return *shape, flops, None, "algorithm or direction unknown"
    if conv.stride is None and algorithm in _STRIDE_OF_ONE:
        ones = (1,) * len(conv.window)
        conv = replace(conv, stride=ones, dilation=ones)
    result = executed(conv, algorithm, way, size=size or 4)
    if isinstance(result, Refusal):
        return *shape, flops, None, result.reason
    beyond = max(result.flops, result.workspace or 0) > LARGEST
    return *shape, flops, *((None, BEYOND) if beyond else (result.flops, None))


def executed_by_instruction(trace: Trace) -> pl.DataFrame:
    """Return ``instruction``, ``gradient`` and ``executed_flops`` of cuDNN's convolutions by XLA.

    The algorithm is that of the instruction's kernels; null where they have several.
    """
    schema = {"instruction": ROW, "gradient": pl.String, "executed_flops": pl.Int64}
    ran = trace.whole.tables.activities.select("instruction", "episode").drop_nulls().unique()
    if ran.is_empty():
        return pl.DataFrame(schema=schema)
    from traceana.flops.hlo import library_convolutions

    conv_of = library_convolutions(trace.tables.instructions)
    rows = []
    ways = trace.tables.episodes.select("algorithm", "direction")[ran["episode"]]
    by_instruction = ran.select("instruction").hstack(ways).unique().group_by("instruction").all()
    for row, algorithms, directions in by_instruction.iter_rows():
        if row in conv_of and len(algorithms) == 1 and directions[0] is not None:
            result = executed(conv_of[row], algorithms[0] or "", directions[0])
            flops = None if isinstance(result, Refusal) else result.flops
            gradient = directions[0] if directions[0] != "fprop" else None
            rows.append((row, gradient, flops if flops is None or flops <= LARGEST else None))
    return pl.DataFrame(rows, schema=schema, orient="row")
