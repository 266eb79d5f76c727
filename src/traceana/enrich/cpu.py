"""Activities of a trace without device work: the operators of the host.

Operators nest, so time is assigned to some of them only. The choice depends on the kinds of the
nested operators, not on shares of time, so that two recordings of a program have the same rows.

1. Every operator has a rank by its name: 3 for what multiplies matrices (:data:`_MULTIPLIES`); 2
   for other operators that compute, and unknown operators; 1 for copies and fills; 0 for views,
   allocations and operators that only call others (:func:`traceana.vocabulary.operators.passive`).
2. An operator is *entered* if an operator inside it, at any depth, has at least the same rank and
   at least rank 1. ``aten::conv2d`` is entered down to ``aten::mkldnn_convolution``. A transposed
   convolution computes in ``aten::_convolution`` and has allocations and copies inside: it is one
   activity, and so is a gradient of a convolution with the sum of a bias in it.
3. An operator that is reached and not entered is one activity. Inside an entered operator,
   operators of rank 0 that contain only such operators are not reached: they are part of its self
   CPU time. So is an operator at which a checkpoint stopped its recomputation early.
4. The self CPU time of an entered operator is in the rows too. ATen's operators, nodes of
   autograd's graph and XLA's control flow only dispatch: their self time is part of the next
   activity inside the operator, or of the last one if none follows. Other operators may compute
   themselves (a compiled region, a program's own autograd function, a range around a block): each
   stretch of their self time is an activity with their name.

The activities of a thread do not overlap, and their sum is the time in which the thread was inside
any operator.

An operator of XLA, a thunk, may end when it has handed its work to a pool of threads, which records
nothing. Where a compiled program waits for completion and no thunk runs, the work is that of the
thunk that ended last, if it is a convolution or a product. Else the program waits for something
that is not recorded, such as another process, and nothing works.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, ascii_classes
from traceana.columns.intervals import times
from traceana.columns.nesting import NONE, Flags, Ints, Nesting, from_rows, take
from traceana.enrich.operators import EarlyStopped
from traceana.enrich.ranges import DIRECTION_ALONE
from traceana.enrich.steps import OUTSIDE_TEXT, STEP_TEXT
from traceana.settings import LONGEST_DISPATCH_NS
from traceana.trace.schema import CPU_DEVICE
from traceana.vocabulary.operators import copying, passive

_FRAMES: Final = f"{STEP_TEXT}|{OUTSIDE_TEXT}|(?i){DIRECTION_ALONE}"
"""Ranges that mark a step or a whole pass; their self time is not work."""

_MULTIPLIES: Final = ascii_classes(
    r"(?i)conv(?:[^e]|$)|attention|"
    r"(?:^|[_.:])(?:\w*mm|\w*matmul|linear|addmv|mv|einsum|bilinear)(?:v\d)?(?:_\w*)?$|"
    r"_rnn(?:_\w*)?$"
)
"""Names of convolutions (not of conversions), matrix products, attention, and layers of recurrent
networks that are one operator of a library."""
_DISPATCHERS: Final = ascii_classes(
    r"^(?:aten::|torch\.|Tensor\.|autograd::engine::|torch::autograd::)|Backward\d+$|"
    r"^(?:while|call|conditional)(?:\.\d+)*$"
)

_MOVE, _COMPUTE, _MULTIPLY = 1, 2, 3


_WAIT: Final = "ThunkExecutor::Execute (wait for completion)"
"""The range of XLA's executor around the time after its own thread has run out of thunks."""
_BY_POOL: Final = ("convolution", "dot")
"""Instructions whose work a pool of threads runs."""
_NAMED_BY_POOL: Final = r"^(?:convolution|dot)(?:[._]|$)"
"""Names of thunks that run such an instruction, in files without instructions."""


def operator_activities(
    ops: pl.DataFrame, nesting: Nesting, ranges: pl.DataFrame, instructions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) of the operators ``ops``, by the rules of this module.

    Column ``op`` is the row in ``ops``, and ``range`` that of a wait in ``ranges``; ``stream`` is
    the thread.
    """
    name = pl.col("name").cast(pl.String)
    ranks = ops.select(pl.col("name").unique()).with_columns(
        pl.when(name.str.contains(_MULTIPLIES) & ~passive(name))
        .then(_MULTIPLY)
        .when(passive(name))
        .then(0)
        .when(name.is_in(sorted(copying())))
        .then(_MOVE)
        .otherwise(_COMPUTE)
        .cast(pl.Int64)
        .alias("rank"),
        name.str.contains(_DISPATCHERS).alias("dispatches"),
    )
    ranked = ops.select("name").join(ranks, on="name", how="left", maintain_order="left")
    # Operators inside an instruction of XLA are instructions of its body.
    dispatches = ranked["dispatches"].fill_null(False) | ops["instruction"].is_not_null()
    stopped = EarlyStopped.of(ops)
    stopped_or_around = stopped.innermost | stopped.around
    rank = np.where(stopped_or_around, 0, ranked["rank"].fill_null(_COMPUTE).to_numpy())
    exclusive = _exclusive_times(
        nesting, rank, dispatches.to_numpy(), np.zeros(ops.height, dtype=np.bool_)
    )
    exclusive = _with_pool_work(exclusive, ops, ranges, instructions)
    return _activities("op", ops, exclusive)


def range_activities(ranges: pl.DataFrame, nesting: Nesting) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) of ``ranges``, for a trace without operators.

    A range is entered if it contains others. The self time of steps and whole passes
    (:data:`_FRAMES`) is excluded. Column ``range`` is the row in ``ranges``.
    """
    text = ranges["text"].cast(pl.String)
    frames = text.str.contains(_FRAMES).fill_null(False).to_numpy()
    rank = np.full(ranges.height, _COMPUTE, dtype=np.int64)
    exclusive = _exclusive_times(nesting, rank, np.zeros(ranges.height, dtype=np.bool_), frames)
    return _activities("range", ranges, exclusive)


def _with_pool_work(
    exclusive: pl.DataFrame, ops: pl.DataFrame, ranges: pl.DataFrame, instructions: pl.DataFrame
) -> pl.DataFrame:
    """Return the activities ``exclusive``, longer by the work of pools of threads.

    They have ``row`` (of ``ops``), ``start`` and ``duration``.
    """
    rows = np.flatnonzero(Texts.of(ranges["text"]).where(pl.col("text") == _WAIT))
    if not len(rows):
        return exclusive
    # Where a program waits and no thunk runs, between the moments at which one begins or ends.
    start, end = times(exclusive)
    wait_start, wait_end = times(ranges[rows])
    moments = np.unique(np.concatenate([start, end, wait_start, wait_end]))

    def running(begins: Ints, ends: Ints) -> Flags:
        begun, ended = (
            np.searchsorted(np.sort(bounds), moments[:-1], side="right")
            for bounds in (begins, ends)
        )
        return begun > ended

    idle = np.flatnonzero(running(wait_start, wait_end) & ~running(start, end))
    idle_start, idle_end = moments[idle], moments[idle + 1]

    is_product = instructions["opcode"].is_in(_BY_POOL).to_numpy()
    by_pool = np.append(is_product, False)
    by_pool[from_rows(instructions["parent"])[is_product]] = True
    by_pool[-1] = False
    order = np.argsort(end, kind="stable")
    last_ended = np.searchsorted(end[order], idle_start, side="right") - 1
    last = take(order, last_ended)
    recent = idle_start - end[last] < LONGEST_DISPATCH_NS
    thunk = exclusive["row"].to_numpy()[last]
    asynchronous = by_pool[from_rows(ops["instruction"])[thunk]]
    if instructions.is_empty():
        asynchronous = Texts.of(ops["name"]).matching(_NAMED_BY_POOL)[thunk]
    by_thunk = (last_ended != NONE) & recent & asynchronous
    np.maximum.at(end, last[by_thunk], idle_end[by_thunk])
    return exclusive.with_columns(pl.Series("duration", end - start))


def _activities(
    row: str, table: pl.DataFrame, exclusive: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) of the rows ``exclusive`` of ``table``, of operators or ranges.

    Column ``row`` of the activities is the row in the table.
    """
    named = (
        table[exclusive["row"]]
        .select(
            pl.col("^(?:name|text)$").cast(pl.Categorical).alias("name"),
            *("process", "thread"),
            # Ranges do not have this column.
            pl.col("^instruction$"),
        )
        .with_columns(exclusive["row"].alias(row), exclusive["start"], exclusive["duration"])
    )
    names = named.select(pl.col("name").unique(maintain_order=True)).with_row_index("name_id")
    activities = named.join(names, on="name", maintain_order="left").select(
        pl.col("^(?:op|range|instruction)$"),
        "name_id",
        pl.lit("op").alias("kind"),
        "start",
        "duration",
        "process",
        pl.lit(CPU_DEVICE).alias("device"),
        pl.col("thread").alias("stream"),
    )
    return activities, names.select(pl.col("name").cast(pl.String))


def _exclusive_times(
    nesting: Nesting, rank: Ints, dispatches: Flags, frames: Flags
) -> pl.DataFrame:
    """Return ``row``, ``start`` and ``duration`` of each activity, in the order of the rows.

    The time of each thread is cut where a reached interval begins or ends. A piece belongs to the
    innermost interval around it. Pieces of a dispatcher are then assigned to another activity.
    """
    reached, entered, end = _reached_rows(nesting, rank)
    row, item, is_leave, time = _boundaries(nesting, reached, end)
    above = nesting.parent[row[item]]
    inner = np.where(is_leave, above, row[item])[:-1]
    inside = (inner != NONE) & ~(frames & entered)[inner]
    pieces = (
        pl.DataFrame(
            {
                "row": inner,
                "start": time[:-1],
                "duration": np.diff(time),
                "own": ~(entered & dispatches)[inner],
                "whole": ~entered[inner],
                "last": is_leave[1:],
            }
        )
        .filter(inside)
        .with_row_index("piece")
        .with_columns(pl.when("own").then("piece").alias("owner"))
        .with_columns(
            pl.coalesce(
                "owner",
                # After the last nested operator, the time is assigned to that operator.
                pl.when("last")
                .then(pl.col("owner").forward_fill())
                .otherwise(pl.col("owner").backward_fill()),
            )
        )
    )
    return (
        pieces.group_by("owner")
        .agg(
            pl.col("row").filter("own").first(),
            pl.col("start").min(),
            pl.col("duration").sum(),
            pl.col("whole").filter("own").first(),
        )
        # An operator of duration 0 is kept, an empty stretch of self time is not.
        .filter(pl.col("whole") | (pl.col("duration") > 0))
        .sort("row", "start")
        .select("row", "start", "duration")
    )


def _reached_rows(nesting: Nesting, rank: Ints) -> tuple[Flags, Flags, Ints]:
    """Return which rows are reached, which are entered, and the end of each within its parent."""
    levels, parent = nesting.levels, nesting.parent
    highest_inside = np.zeros(len(rank), dtype=np.int64)
    for rows in reversed(levels[1:]):
        np.maximum.at(highest_inside, parent[rows], np.maximum(rank[rows], highest_inside[rows]))
    entered = highest_inside >= np.maximum(rank, _MOVE)
    reached = np.maximum(rank, highest_inside) >= _MOVE
    reached[levels[0]] = True
    end = nesting.end.copy()
    for rows in levels[1:]:
        above = parent[rows]
        reached[rows] &= reached[above] & entered[above]
        end[rows] = np.minimum(end[rows], end[above])
    return reached, entered, end


def _boundaries(nesting: Nesting, reached: Flags, end: Ints) -> tuple[Ints, Ints, Flags, Ints]:
    """Return the starts and ends of the reached intervals, thread by thread, properly nested.

    The result is the reached rows, and for each boundary the index into them, whether it is an
    end, and its time. All intervals around a reached interval are reached.
    """
    row = nesting.order[reached[nesting.order]]
    count = len(row)
    position = np.full(len(reached), NONE, dtype=np.int64)
    position[row] = np.arange(count)
    last = np.arange(count)
    for rows in reversed(nesting.levels[1:]):
        positions = position[rows[reached[rows]]]
        np.maximum.at(last, position[nesting.parent[row[positions]]], last[positions])
    item = np.tile(np.arange(count), 2)
    is_leave = np.repeat(np.array([False, True]), count)
    inwards = np.where(is_leave, -nesting.depth[row[item]], 0)
    order = np.lexsort((inwards, is_leave, np.concatenate((np.arange(count), last))))
    item, is_leave = item[order], is_leave[order]
    time = np.where(is_leave, end[row[item]], nesting.start[row[item]])
    return row, item, is_leave, time
