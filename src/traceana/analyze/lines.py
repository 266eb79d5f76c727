"""``lines``: the work, waits and host time of each line of the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.charges import charges
from traceana.columns.intervals import union, until
from traceana.columns.nesting import NONE, Ints, from_rows, take
from traceana.result import Result, share_of, sums
from traceana.runs.source_files import changed_files
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
from traceana.timeline.source_frames import frame_stacks, frames_of_gaps
from traceana.timeline.steps import step_windows
from traceana.timeline.work import processor, why_no_work, work, work_ns
from traceana.trace import per_small_trace, per_trace
from traceana.trace.work import frame_labels
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
        Column(
            "total_ns",
            TIME,
            "that of the line and of all that it calls, each once",
            title="with calls",
            additive=True,
        ),
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
    "line": ("file", "line"),
    "function": ("file", "function"),
    "file": ("file",),
    "stack": ("file", "line", "function", "stack"),
}
"""The columns that identify a row."""
SUMMED: Final = tuple(
    column.name for column in COLUMNS if column.additive and column.name != "total_ns"
)
"""The columns whose rows add up: what a line calls is in rows of its own, too."""


def lines(trace: Trace, by: LinesBy = "line") -> Result:
    """Return the work of ``trace`` by line of the program, function, file or stack of lines.

    The columns are :data:`COLUMNS`. The rows add up to all work; work without a line has rows of
    its own, with the reason in ``file``. Lines with most time and idle time together come first.
    """
    frames = trace.tables.frames
    # A comprehension is a function of its own on its line: the one around it comes first.
    first = {
        "line": [pl.col("function", "text").first()],
        "stack": [pl.col("text").first()],
        "function": [pl.col("line").min()],
        "file": [],
    }[by]
    keys = KEYS[by]
    known = SUMMED
    if not has_stacks(trace):
        # Stacks of operators and instructions do not tell where the host was at other times.
        known = tuple(name for name in SUMMED if name not in ("idle_ns", "host_ns"))
    table = by_frame(trace).group_by(keys).agg(pl.col(known).sum(), *first)
    # A frame of the program whose work, waits and time are nothing did run nothing.
    table = table.filter(pl.any_horizontal(pl.col(known) != 0))
    unknown = (pl.lit(None, pl.Int64).alias(name) for name in SUMMED if name not in known)
    table = table.join(with_calls(trace, keys), on=keys, how="left", nulls_equal=True)
    table = table.with_columns(share_of(work_ns(trace)), *unknown)
    of_step = pl.col("time_ns") + pl.col("idle_ns").fill_null(0)
    order = [of_step, "time_ns", "host_ns", *keys]
    table = table.sort(order, descending=[True, True, True, *[False] * len(keys)], nulls_last=True)
    table = conformed(table, COLUMNS)
    rows = work(trace, "frame", "duration")
    notes = [] if rows.height else [why_no_work(trace)]
    if not frames.height:
        notes.append(NO_LINES)
    elif rows.height:
        own = frames["own"].gather(rows["frame"]).fill_null(value=False)
        share = int(rows["duration"].filter(own).sum()) / max(work_ns(trace), 1)
        notes.append(f"lines of the program: {100 * share:.1f} % of the {processor(trace)} time")
    changed = _changed_files(trace.whole)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        notes.append(
            f"text not shown, changed or gone since the recording: {', '.join(changed[:3])}{more}"
        )
    return Result(table, sums(table, *known), tuple(notes), COLUMNS)


@per_trace
def _changed_files(trace: Trace) -> list[str]:
    """Return the changed files of ``trace``, which is whole: all files are read for it."""
    return changed_files(Path(trace.meta.source).parent, trace.tables.frames["file"])


def with_calls(trace: Trace, keys: Sequence[str]) -> pl.DataFrame:
    """Return ``total_ns`` by ``keys``: the time of a row and of all frames that it calls.

    Of a recursion the outermost frame counts.
    """
    named = by_frame(trace)
    frames = trace.tables.frames
    total = np.zeros(frames.height + 2, dtype=np.int64)
    total[named["place"].to_numpy()] = named["time_ns"].to_numpy()
    parent = from_rows(frames["parent"])
    # A caller has a smaller number.
    for frame in range(frames.height - 1, 0, -1):
        if parent[frame] != NONE:
            total[parent[frame]] += total[frame]
    stacked = frames.with_columns(frame_labels(trace.tables)["stack"].cast(pl.String))
    key = stacked.select(pl.struct(keys).rank("dense")).to_series().to_numpy()
    outermost = np.ones(frames.height, dtype=np.bool_)
    above = parent.copy()
    while (above != NONE).any():
        outermost &= (above == NONE) | (key[above] != key)
        above = take(parent, above)
    without = named.filter(pl.col("place") >= frames.height)
    return (
        pl.concat(
            [
                stacked.select(keys)
                .with_columns(pl.Series("total_ns", total[:-2]))
                .filter(pl.Series(outermost)),
                without.select(*keys, pl.col("time_ns").alias("total_ns")),
            ],
            how="vertical_relaxed",
        )
        .group_by(keys)
        .agg(pl.col("total_ns").sum())
    )


def has_stacks(trace: Trace) -> bool:
    """Return whether frames are recorded on threads: with times, not of operators alone."""
    of_ranges = trace.tables.ranges["frame"]
    return of_ranges.null_count() < len(of_ranges)


@per_small_trace
def by_frame(trace: Trace) -> pl.DataFrame:
    """Return the sums of each row of ``frames``, and of work without one in rows behind them.

    Columns: ``place`` (the row), those of ``frames``, ``stack``, and the sums of :data:`COLUMNS`.
    The reasons of work without a frame are in ``file`` and ``stack``. Frames without any are left
    out.
    """
    frames = trace.tables.frames
    rows = work(trace, "op", "call", "frame", "direction", "kind", "duration")
    frame = from_rows(rows["frame"])
    launched = (from_rows(rows["op"]) != NONE) | (from_rows(rows["call"]) != NONE)
    place = np.where(frame != NONE, frame, np.where(launched, frames.height, frames.height + 1))
    direction = pl.col("direction").cast(pl.String).fill_null("other")
    time = pl.col("duration")
    part = pl.when(pl.col("kind") == "memcpy").then(pl.lit("copy")).otherwise(direction)
    summed = (
        rows.select(pl.Series("place", place), part.alias("part"), time)
        .group_by("place")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            *(
                time.filter(pl.col("part") == name).sum().alias(f"{name}_ns")
                for name in (*_PASSES, "other", "copy")
            ),
            time.sum().alias("time_ns"),
        )
    )
    none = pl.DataFrame(schema={"place": pl.Int64, **dict.fromkeys(SUMMED, pl.Int64)})
    sources = [none, summed, _placed(_flops_by_frame(trace), "flops")]
    if has_stacks(trace):
        sources += [
            _placed(_idle_by_frame(trace), "idle_ns"),
            _placed(_host_by_frame(trace), "host_ns"),
        ]
    reason = NO_FRAME if frames.height else UNRECORDED
    without = pl.DataFrame({"file": [reason, NO_LAUNCH], "stack": [reason, NO_LAUNCH]})
    known = frames.with_columns(frame_labels(trace.tables)["stack"].cast(pl.String))
    known = pl.concat([known, without], how="diagonal").with_row_index("place")
    return (
        pl.concat(sources, how="diagonal")
        .group_by(pl.col("place").cast(pl.UInt32))
        .agg(pl.all().sum())
        .join(known, on="place")
        .sort("place")
    )


def _placed(values: Ints, name: str) -> pl.DataFrame:
    """Return the rows with a value; the last of ``values`` is of no frame."""
    rows = np.flatnonzero(values)
    return pl.DataFrame({"place": rows, name: values[rows]})


def _idle_by_frame(trace: Trace) -> Ints:
    """Return the idle time (ns) of each frame, the last entry that without a frame."""
    total = np.zeros(trace.tables.frames.height + 1, dtype=np.int64)
    of_gaps = idle_time(trace)
    gaps = analyzed_gaps(trace, of_gaps, of_gaps.gaps)
    np.add.at(total, frames_of_gaps(trace.whole, gaps), gaps["part"].to_numpy())
    return total


def _host_by_frame(trace: Trace) -> Ints:
    """Return the time (ns) of each frame on its thread, without the frames that it calls.

    In the windows of the selected steps, else in the whole recording.
    """
    total = np.zeros(trace.tables.frames.height + 1, dtype=np.int64)
    stacks = frame_stacks(trace.whole)
    nesting = stacks.nesting
    time = nesting.end - nesting.start
    windows = step_windows(trace)
    if windows.height:
        # Windows of several processes overlap.
        steps = union(windows["start"].to_numpy(), windows["end"].to_numpy())
        time = until(steps, nesting.end) - until(steps, nesting.start)
    inner = nesting.parent != NONE
    own = time.copy()
    np.subtract.at(own, nesting.parent[inner], time[inner])
    on_main = np.isin(nesting.key, stacks.main)
    np.add.at(total, stacks.of_range[on_main], own[on_main])
    return total


def _flops_by_frame(trace: Trace) -> Ints:
    """Return the FLOPs of each frame, the last entry those without a frame.

    Those of a layer's pass, which are of no operator, are of its longest work.
    """
    total = np.zeros(trace.tables.frames.height + 1, dtype=np.int64)
    costs = charges(trace, trace.manifest)
    longest = (
        work(trace, "frame", "duration")
        .with_columns(costs.coverage["unit"])
        .filter(pl.col("frame").is_not_null())
        .sort("duration", maintain_order=True)
        .unique("unit", keep="last")
        .select("unit", "frame")
    )
    counted = costs.frame.filter(pl.col("flops") > 0)
    counted = counted.join(longest, on="unit", how="left", maintain_order="left")
    frame = take(from_rows(trace.tables.instructions["frame"]), from_rows(counted["instruction"]))
    of_op = take(from_rows(trace.tables.ops["frame"]), from_rows(counted["op"]))
    for source in (of_op, from_rows(counted["frame"])):
        frame = np.where(frame == NONE, source, frame)
    np.add.at(total, frame, counted["flops"].to_numpy())
    return total
