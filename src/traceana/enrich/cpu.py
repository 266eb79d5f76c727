"""Activities of a trace without device work: the operators of the host.

Operators nest, so some of them have to stand for others. Which ones is decided by what kind of
operator is inside, never by shares of time: two recordings of one program then have the same rows.

1. Every operator has a rank by its name: 3 for convolutions, matrix products and attention; 2 for
   whatever else computes, unknown operators among them; 1 for copies and fills; 0 for views,
   allocations and operators that only call others (:mod:`traceana.flops.passive`).
2. An operator is *entered* if one inside it, however deep, has a rank that is at least its own,
   and at least 1. ``aten::conv2d`` is entered as far as ``aten::mkldnn_convolution``. A transposed
   convolution computes in ``aten::_convolution`` and has allocations and copies inside: it is one
   activity, and so is a gradient of a convolution with the sum of a bias in it.
3. Whatever is reached and not entered is one activity. Inside an entered operator, operators of
   rank 0 with nothing else inside are not reached: they are part of its self CPU time. So is an
   operator that a checkpoint left before it computed.
4. The self CPU time of an entered operator is in the rows too. ATen's operators, nodes of
   autograd's graph and XLA's control flow only dispatch: their self time is part of the activity
   that follows it inside the operator, behind the last one part of that. All others may compute
   themselves (a compiled region, a program's own autograd function, a range around a block): each
   stretch of their self time is an activity of their own name.

So the activities of a thread do not overlap, and they add up to the time in which the thread was
inside any operator.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Flags, Ints, Nesting
from traceana.enrich.operators import Left
from traceana.enrich.ranges import DIRECTION_ALONE
from traceana.enrich.steps import STEP_TEXT, WARM_UP_TEXT
from traceana.flops.passive import passive
from traceana.trace.schema import CPU_DEVICE

_FRAMES: Final = f"{STEP_TEXT}|{WARM_UP_TEXT}|(?i){DIRECTION_ALONE}"
"""Ranges that mark a step or a whole pass: only what they hold is work."""

_MULTIPLIES: Final = (
    r"(?i)conv(?:[^e]|$)|attention|"
    r"(?:^|[_.:])(?:\w*mm|\w*matmul|linear|addmv|mv|einsum|bilinear)(?:v\d)?(?:_\w*)?$"
)
"""Names of convolutions (not of conversions), matrix products and attention."""
_MOVES: Final = r"^aten::(?:copy_|_copy_from|fill_|zero_|cat|stack)$"
_DISPATCHERS: Final = (
    r"^(?:aten::|torch\.|Tensor\.|autograd::engine::|torch::autograd::)|Backward\d+$|"
    r"^(?:while|call|conditional)(?:\.\d+)*$"
)

_MOVE, _COMPUTE, _MULTIPLY = 1, 2, 3


def operator_activities(ops: pl.DataFrame, nesting: Nesting) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) of the operators ``ops``, by the rule of this module.

    Column ``op`` is the row in ``ops``; ``stream`` is the thread.
    """
    name = pl.col("name").cast(pl.String)
    judged = ops.select(pl.col("name").unique()).with_columns(
        pl.when(name.str.contains(_MULTIPLIES) & ~passive(name))
        .then(_MULTIPLY)
        .when(passive(name))
        .then(0)
        .when(name.str.contains(_MOVES))
        .then(_MOVE)
        .otherwise(_COMPUTE)
        .cast(pl.Int64)
        .alias("rank"),
        name.str.contains(_DISPATCHERS).alias("dispatches"),
    )
    ranked = ops.select("name").join(judged, on="name", how="left", maintain_order="left")
    # Operators inside an instruction of XLA are instructions of its body.
    dispatches = ranked["dispatches"].fill_null(False) | ops["instruction"].is_not_null()
    left = Left.of(ops)
    idle = left.innermost | left.around
    rank = np.where(idle, 0, ranked["rank"].fill_null(_COMPUTE).to_numpy())
    found = _exclusive(nesting, rank, dispatches.to_numpy(), np.zeros(ops.height, dtype=np.bool_))
    return _activities(ops, "name", found, "op")


def range_activities(ranges: pl.DataFrame, nesting: Nesting) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (activities, names) of ``ranges``, of a trace that has no operators.

    Each is entered if it holds others. Steps and whole passes (:data:`_FRAMES`) mark a time,
    not work: their self time is in no row. Column ``range`` is the row in ``ranges``.
    """
    text = ranges["text"].cast(pl.String)
    frames = text.str.contains(_FRAMES).fill_null(False).to_numpy()
    rank = np.full(ranges.height, _COMPUTE, dtype=np.int64)
    found = _exclusive(nesting, rank, np.zeros(ranges.height, dtype=np.bool_), frames)
    return _activities(ranges, "text", found, "range")


def _activities(
    host: pl.DataFrame, name: str, found: pl.DataFrame, row: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    named = host[found["row"]].with_columns(
        pl.col(name).alias("name"), found["row"].alias(row), found["start"], found["duration"]
    )
    names = named.select(pl.col("name").unique(maintain_order=True)).with_row_index("name_id")
    activities = named.join(names, on="name", maintain_order="left").select(
        row,
        "name_id",
        pl.lit("op").alias("kind"),
        "start",
        "duration",
        "process",
        pl.lit(CPU_DEVICE).alias("device"),
        pl.col("thread").alias("stream"),
        # Ranges have none.
        pl.col("^instruction$"),
    )
    return activities, names.select(pl.col("name").cast(pl.String))


def _exclusive(nesting: Nesting, rank: Ints, dispatches: Flags, frames: Flags) -> pl.DataFrame:
    """Return ``row``, ``start`` and ``duration`` of each activity, in the order of the rows.

    Each thread's time is cut wherever an interval that matters begins or ends. A piece belongs to
    the innermost interval around it; pieces of one that dispatches are then given away.
    """
    reached, entered, end = _reached(nesting, rank)
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
                # Behind the last operator inside there is only the one before.
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
        # An operator of no duration ran; a stretch of none did not.
        .filter(pl.col("whole") | (pl.col("duration") > 0))
        .sort("row", "start")
        .select("row", "start", "duration")
    )


def _reached(nesting: Nesting, rank: Ints) -> tuple[Flags, Flags, Ints]:
    """Return which rows are reached, which are entered, and where each ends within its parent."""
    levels, parent = nesting.levels(), nesting.parent
    held = np.zeros(len(rank), dtype=np.int64)
    for rows in reversed(levels[1:]):
        np.maximum.at(held, parent[rows], np.maximum(rank[rows], held[rows]))
    entered = held >= np.maximum(rank, _MOVE)
    reached = np.maximum(rank, held) >= _MOVE
    reached[levels[0]] = True
    end = nesting.end.copy()
    for rows in levels[1:]:
        above = parent[rows]
        reached[rows] &= reached[above] & entered[above]
        end[rows] = np.minimum(end[rows], end[above])
    return reached, entered, end


def _boundaries(nesting: Nesting, reached: Flags, end: Ints) -> tuple[Ints, Ints, Flags, Ints]:
    """Return the begins and ends of the reached intervals, thread by thread, properly nested.

    The result is the reached rows, and for each boundary: the index into them, whether it is an
    end, and its time. Everything around a reached interval is reached.
    """
    row = nesting.order[reached[nesting.order]]
    count = len(row)
    position = np.full(len(reached), NONE, dtype=np.int64)
    position[row] = np.arange(count)
    last = np.arange(count)
    for rows in reversed(nesting.levels()[1:]):
        here = position[rows[reached[rows]]]
        np.maximum.at(last, position[nesting.parent[row[here]]], last[here])
    item = np.tile(np.arange(count), 2)
    is_leave = np.repeat(np.array([False, True]), count)
    inwards = np.where(is_leave, -nesting.depth[row[item]], 0)
    order = np.lexsort((inwards, is_leave, np.concatenate((np.arange(count), last))))
    item, is_leave = item[order], is_leave[order]
    time = np.where(is_leave, end[row[item]], nesting.start[row[item]])
    return row, item, is_leave, time
