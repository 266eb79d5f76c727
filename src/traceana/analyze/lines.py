"""``lines``: the work, waits and host time of each line of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.charges import charges
from traceana.columns.intervals import union, until
from traceana.columns.nesting import NONE, Ints, from_rows
from traceana.result import Result, share_of, sums
from traceana.table import (
    COUNT,
    FLOPS,
    LONG,
    NUMBER,
    PATH,
    SHARE,
    TIME,
    Column,
    conformed,
    laid_out,
)
from traceana.timeline.idle import analyzed_gaps, idle_time
from traceana.timeline.source_frames import (
    SourceFrames,
    frames_of_gaps,
    source_frames,
)
from traceana.timeline.steps import step_windows
from traceana.timeline.work import processor, why_no_work, work, work_ns
from traceana.vocabulary.option_words import LinesBy

if TYPE_CHECKING:
    from traceana.trace import Trace

NO_LINES: Final = (
    "no lines of the program recorded: record it with traceana record, or with "
    "torch.profiler(with_stack=True)"
)
NO_LAUNCH: Final = "(launch not recorded)"
NO_FRAME: Final = "(no Python frame at the launch)"
UNRECORDED: Final = "(no lines recorded)"

_PASSES: Final = ("forward", "backward", "optimizer")
COLUMNS: Final = laid_out(
    (
        Column(
            "file",
            PATH,
            "the file, as recorded; in parentheses why there is none. Of work outside the "
            "program's own files, the library's innermost one",
        ),
        Column("line", NUMBER, "number of the line; where functions are recorded, their first"),
        Column("function", LONG, "the function around it"),
        Column("text", LONG, "the line itself, where the recording keeps the file"),
        Column("stack", LONG, "by stack: the program's lines that called it, outermost first"),
        Column("calls", COUNT, "how often its work ran", additive=True),
        *(
            Column(f"{name}_ns", TIME, f"time of its {name} pass", additive=True)
            for name in _PASSES[:2]
        ),
        Column("optimizer_ns", TIME, "time of its updates of parameters", additive=True),
        Column("other_ns", TIME, "time of other work", additive=True),
        Column("copy_ns", TIME, "time of its copies", additive=True),
        Column("time_ns", TIME, "all of these", additive=True),
        Column("share", SHARE, "of the GPU time, copies and memsets included, as in `report`"),
        Column(
            "idle_ns",
            TIME,
            "idle time that began while the host was on the line, as in `idle --by line`; null "
            "where stacks are of operators or instructions alone",
            title="idle",
            additive=True,
        ),
        Column(
            "host_ns",
            TIME,
            "time of the host's thread on the line, without lines that it calls; null likewise",
            title="host",
            additive=True,
        ),
        Column("flops", FLOPS, "FLOPs", additive=True),
    ),
    dropped="flops host_ns optimizer_ns other_ns copy_ns calls function forward_ns backward_ns",
)
KEYS: Final[Mapping[LinesBy, tuple[str, ...]]] = {
    "line": ("file", "line", "function"),
    "function": ("file", "function"),
    "file": ("file",),
    "stack": ("file", "line", "function", "stack"),
}
"""The columns that identify a row."""
_SUMMED: Final = tuple(column.name for column in COLUMNS if column.additive)


def lines(trace: Trace, by: LinesBy = "line") -> Result:
    """Return the work of ``trace`` by line of the program, function, file or stack of lines.

    The columns are :data:`COLUMNS`. The rows add up to all work; work without a line has rows of
    its own, with the reason in ``file``. Most time first, then most idle time.
    """
    found = source_frames(trace.whole)
    rows = work(trace, "op", "call", "instruction", "direction", "kind", "duration")
    frame = found.of_work(trace, rows)
    launched = (from_rows(rows["op"]) != NONE) | (from_rows(rows["call"]) != NONE)
    place = np.where(
        frame != NONE, frame, np.where(launched, found.frames.height, found.frames.height + 1)
    )
    copy = (rows["kind"] == "memcpy").to_numpy()
    direction = rows["direction"].cast(pl.String)
    time = pl.col("duration")
    part = pl.col("part")
    parts = [*_PASSES, "other", "copy"]
    summed = (
        pl.DataFrame(
            {
                "place": place,
                "part": pl.select(
                    pl.when(pl.Series(copy))
                    .then(pl.lit("copy"))
                    .otherwise(pl.Series(direction.fill_null("other")))
                ).to_series(),
                "duration": rows["duration"],
            }
        )
        .group_by("place")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            *(time.filter(part == name).sum().alias(f"{name}_ns") for name in parts),
            time.sum().alias("time_ns"),
        )
    )
    sources = [
        summed,
        _placed(_idle_by_frame(trace, found), "idle_ns"),
        _placed(_host_by_frame(trace, found), "host_ns"),
        _placed(_flops_by_frame(trace, found), "flops"),
    ]
    reason = NO_FRAME if found.recorded else UNRECORDED
    without = [(why, None, None, False, NONE, None) for why in (reason, NO_LAUNCH)]
    known = pl.concat(
        [found.frames, pl.DataFrame(without, schema=found.frames.schema, orient="row")]
    ).with_row_index("place")
    table = (
        pl.concat([source.cast({"place": pl.UInt32}) for source in sources], how="diagonal")
        .group_by("place")
        .agg(pl.all().sum())
        .join(known, on="place")
    )
    if by == "stack":
        table = table.with_columns(_stacks(known, table["place"]))
    first = []
    if by in ("line", "stack"):
        first = [pl.col("text").first()]
    elif by == "function":
        first = [pl.col("line").min()]
    keys = KEYS[by]
    table = table.group_by(keys).agg(pl.col(_SUMMED).sum(), *first)
    # A frame of the program whose work, waits and time are nothing did run nothing.
    table = table.filter(pl.any_horizontal(pl.col(_SUMMED) != 0))
    table = table.with_columns(share_of(work_ns(trace)))
    summed_columns = _SUMMED
    if not found.ranges.height:
        # Stacks of operators and instructions do not tell where the host was at other times.
        unknown = ("idle_ns", "host_ns")
        table = table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in unknown)
        summed_columns = tuple(name for name in _SUMMED if name not in unknown)
    order = ["time_ns", "idle_ns", "host_ns", *keys]
    table = table.sort(order, descending=[True, True, True, *[False] * len(keys)], nulls_last=True)
    table = conformed(table, COLUMNS)
    notes = [] if rows.height else [why_no_work(trace)]
    if not found.recorded:
        notes.append(NO_LINES)
    elif rows.height:
        own = np.append(found.frames["own"].to_numpy(), [False])
        of_program = int(rows["duration"].filter(pl.Series(own[frame])).sum())
        whole = max(work_ns(trace), 1)
        notes.append(
            f"lines of the program: {100 * of_program / whole:.1f} % of the {processor(trace)} time"
        )
    return Result(table, sums(table, *summed_columns), tuple(notes), COLUMNS)


def _placed(values: Ints, name: str) -> pl.DataFrame:
    """Return the rows with a value; the last of ``values`` is of no frame."""
    rows = np.flatnonzero(values)
    return pl.DataFrame({"place": rows, name: values[rows]})


def _idle_by_frame(trace: Trace, found: SourceFrames) -> Ints:
    """Return the idle time (ns) of each frame, the last entry that without a frame."""
    total = np.zeros(found.frames.height + 1, dtype=np.int64)
    if found.ranges.height:
        of_gaps = idle_time(trace)
        gaps = analyzed_gaps(trace, of_gaps, of_gaps.gaps)
        np.add.at(total, frames_of_gaps(trace.whole, gaps), gaps["part"].to_numpy())
    return total


def _host_by_frame(trace: Trace, found: SourceFrames) -> Ints:
    """Return the time (ns) of each frame on its thread, without the frames that it calls.

    In the windows of the selected steps, else in the whole recording.
    """
    total = np.zeros(found.frames.height + 1, dtype=np.int64)
    nesting = found.nesting
    time = nesting.end - nesting.start
    windows = step_windows(trace)
    if windows.height:
        # Windows of several processes overlap.
        steps = union(windows["start"].to_numpy(), windows["end"].to_numpy())
        time = until(steps, nesting.end) - until(steps, nesting.start)
    inner = nesting.parent != NONE
    own = time.copy()
    np.subtract.at(own, nesting.parent[inner], time[inner])
    on_main = np.isin(nesting.key, found.main)
    np.add.at(total, found.of_range[on_main], own[on_main])
    return total


def _flops_by_frame(trace: Trace, found: SourceFrames) -> Ints:
    total = np.zeros(found.frames.height + 1, dtype=np.int64)
    counted = charges(trace, trace.manifest).frame.filter(pl.col("flops") > 0)
    frame = found.of_work(
        trace, counted.select("op", "instruction", pl.lit(None, pl.UInt32).alias("call"))
    )
    np.add.at(total, frame, counted["flops"].to_numpy())
    return total


_LONGEST_STACK: Final = 2000
"""Characters of a stack, which has its innermost lines: the stacks of a deep recursion would fill
the memory."""


def _stacks(known: pl.DataFrame, places: pl.Series) -> pl.Series:
    """Return the program's stack of each of ``places``, outermost line first."""
    names = [
        file if line is None else f"{file}:{line}"
        for file, line in known.select("file", "line").iter_rows()
    ]
    stacks: list[str] = []
    # A caller has a smaller number.
    for name, parent in zip(names, known["parent"], strict=True):
        stack = name if parent == NONE else f"{stacks[parent]} > {name}"
        short = len(stack) <= _LONGEST_STACK
        stacks.append(stack if short else f"… {stack[-_LONGEST_STACK:].partition(' > ')[2]}")
    return pl.Series("stack", [stacks[place] for place in places], dtype=pl.String)
