"""The innermost range by thread and time; the direction and the role in the text of a range."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.nesting import NONE, Ints, Nesting, take, to_rows
from traceana.trace import Trace
from traceana.trace.schema import Direction, conform
from traceana.trace.tables import Tables

_ON_THREADS: Final = ("module", "annotation", "step", "nvtx")
"""Kinds that mark parts of the program; Python frames and OS calls are too many."""

_BACKWARD: Final = r"(?i)(?:^|[ ._:/#-])(?:backward|bwd|bprop)(?: ?##|: .*)?$"
BOTH_DIRECTIONS: Final = r"(?i)forward *(?:\+|&|and) *backward"
"""Ranges around both passes, as CNTK's; they have no direction and are not layers."""
_FORWARD: Final = r"(?i)(?:^|[ ._:/#-])(?:forward|fwd|fprop)(?: ?##|: .*)?$"
DIRECTION_WORD: Final = r"(?:forward|backward|fwd|bwd|fprop|bprop)"
DIRECTION_ALONE: Final = rf"^(?:## ?)?{DIRECTION_WORD}(?: ?##)?$"
"""A range around a whole pass."""


ROLE_OF_TEXT: Final = {
    "optimizer": r"(?i)^Optimizer\.|^(?:## )?optimizer(?:[._ ]?step)?(?: ##)?$",
    "data": r"(?i)^enumerate\(DataLoader\)|^(?:load[._ ]?data|data[._ ]?load(?:er|ing)?)$",
    "collective": r"^(?:nccl|gloo|mpi|ucc):|^nccl[A-Z]|^c10d::",
}
"""Pattern of the range texts, by role."""


def role_of(text: pl.Expr) -> pl.Expr:
    """Return the role in a range's text, null without one."""
    return pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(role))
        for role, pattern in ROLE_OF_TEXT.items()
    )


LINE_MARK: Final = "traceana line: "
"""The beginning of the ranges by which ``traceana record`` marks the lines of a program."""


def with_lines(trace: Trace) -> Trace:
    """Return ``trace`` with the marked lines of the program as frames of Python.

    torch.profiler records them as operators, others as annotations.
    """
    ops, ranges = trace.tables.ops, trace.tables.ranges
    is_line = [
        # Texts are few.
        column.cast(pl.String).str.starts_with(LINE_MARK)
        if column.unique().cast(pl.String).str.starts_with(LINE_MARK).any()
        else None
        for column in (ops["name"], ranges["text"])
    ]
    of_ops, of_ranges = is_line
    if of_ranges is not None:
        kind = pl.when(of_ranges).then(pl.lit("python")).otherwise(pl.col("kind").cast(pl.String))
        text = pl.col("text").cast(pl.String).str.strip_prefix(LINE_MARK)
        ranges = ranges.with_columns(
            kind.cast(ranges.schema["kind"]).alias("kind"),
            text.cast(ranges.schema["text"]).alias("text"),
        )
    if of_ops is not None:
        lines = ops.filter(of_ops).select(
            pl.col("name").cast(pl.String).str.strip_prefix(LINE_MARK).alias("text"),
            pl.lit("python").alias("kind"),
            *("process", "thread", "start", "duration", "rank"),
        )
        ranges = pl.concat([ranges, conform("ranges", lines)])
        ops = ops.filter(~of_ops)
    if of_ops is None and of_ranges is None:
        return trace
    return trace.with_tables(ops=ops, ranges=ranges)


def records_frames(tables: Tables) -> bool:
    """Return whether ``tables`` have frames of Python, as ranges or as texts of stacks."""
    return bool((tables.ranges["kind"] == "python").any()) or any(
        table["frames"].null_count() < table.height
        for table in (tables.ops, tables.instructions, tables.memory, tables.memory_blocks)
    )


class ThreadRanges(msgspec.Struct, frozen=True):
    """The nested ranges of threads.

    ``row`` is the row of each in ``ranges``. ``backward`` is 1 inside a range whose text has a word
    for backward, 0 inside one for forward, :data:`NONE` otherwise.
    """

    row: Ints
    nesting: Nesting
    backward: Ints

    @classmethod
    def of(cls, ranges: pl.DataFrame, key: Ints) -> ThreadRanges:
        """Return the nested ``ranges``; ``key`` is the number of each one's thread."""
        chosen = ranges["kind"].is_in(_ON_THREADS).to_numpy()
        frame = ranges.filter(chosen)
        nesting = Nesting.of(key[chosen], frame["start"].to_numpy(), frame["duration"].to_numpy())
        text = pl.col("text").cast(pl.String)
        named = frame.select(pl.col("text").unique()).with_columns(
            pl.when(text.str.contains(BOTH_DIRECTIONS))
            .then(NONE)
            .when(text.str.contains(_BACKWARD))
            .then(1)
            .when(text.str.contains(_FORWARD))
            .then(0)
            .otherwise(NONE)
            .cast(pl.Int64)
            .alias("backward")
        )
        direction_of_row = frame.select("text").join(
            named, on="text", how="left", maintain_order="left"
        )
        return cls(
            np.flatnonzero(chosen),
            nesting,
            nesting.inherit(direction_of_row["backward"].to_numpy()),
        )

    def innermost(self, key: Ints, time: Ints) -> Ints:
        """Return the row in ``ranges`` of the innermost range at each (thread, time)."""
        row = self.nesting.innermost(key, time)
        return take(self.row, row)

    def direction_at(self, key: Ints, time: Ints) -> pl.Series:
        """Return the direction, or null, at each (thread, time), by the ranges' texts."""
        row = self.nesting.innermost(key, time)
        backward = take(self.backward, row)
        return pl.Series(backward).replace_strict(
            {0: "forward", 1: "backward"}, default=None, return_dtype=Direction
        )

    def nested(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """Return ``ranges`` with parent and depth; both are null outside threads."""
        parent = np.full(ranges.height, NONE, dtype=np.int64)
        depth = np.full(ranges.height, NONE, dtype=np.int64)
        above = self.nesting.parent
        if len(self.row):
            parent[self.row] = np.where(above == NONE, NONE, self.row[above])
            depth[self.row] = self.nesting.depth
        return ranges.with_columns(
            to_rows(parent).alias("parent"), to_rows(depth).cast(pl.Int32).alias("depth")
        )
