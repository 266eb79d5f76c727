"""The frame of the program's Python that every piece of work comes from.

Stacks are recorded as ranges of frames on threads (torch.profiler's ``with_stack``, the lines that
``traceana record`` marks), or as texts of operators (torch 1.8 to 1.10) and of HLO instructions.
Work of the backward pass has the frame of its forward operator.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import thread_numbers
from traceana.columns.nesting import NONE, Ints, Nesting, Tree, from_rows, take, to_rows
from traceana.enrich.layers.source import codes
from traceana.runs.source_files import kept_files, program_folder
from traceana.trace import Trace, per_trace

_FRAME: Final = re.compile(r"^([^<].*)\((\d{1,9})\)(?:: (.*))?$")
"""A frame as Kineto writes it: ``train.py(41): main``. Calls of built-in functions have none."""

_LIBRARIES: Final = (
    *("torch", "torchvision", "torchaudio", "torchmetrics", "functorch", "triton", "torch_xla"),
    *("tensorflow", "keras", "tf_keras", "jax", "jaxlib", "flax", "optax", "haiku", "equinox"),
    *("lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "transformers"),
    *("diffusers", "datasets", "evaluate", "deepspeed", "apex", "xformers", "megatron", "timm"),
    *("numpy", "scipy", "pandas", "PIL", "tqdm", "IPython", "ipykernel", "absl", "traceana"),
)
"""Packages whose folder Kineto leaves out, as it does that of the program."""
_OF_LIBRARY: Final = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[^/]*)/"
    rf"|^(?:{'|'.join(_LIBRARIES)})/"
    rf"|^(?:{'|'.join(sorted(name for name in sys.stdlib_module_names if name[0] != '_'))})"
    r"(?:/|\.py$)|^_\w+\.py$|/traceana/record/inside/"
)
"""Files that are not the program's own: of installed packages and of the standard library."""
_LONGEST: Final = 500
"""Characters of a line's text."""


class SourceFrames(msgspec.Struct, frozen=True):
    """The frames of a trace, and the one that work, operators and moments come from.

    ``frames`` has a row for each: ``file``, ``line``, ``function``, ``own`` (of the program, not of
    a library), ``parent`` (the program's frame that called it, or -1), ``text`` (the line itself,
    null where the recording does not keep the file). The frame of work is the innermost one of the
    program on its stack, else the innermost one.
    """

    frames: pl.DataFrame
    ranges: pl.DataFrame
    nesting: Nesting
    of_range: Ints
    main: Ints
    op_thread: Ints
    call_thread: Ints
    of_op_text: Ints
    of_instruction: Ints

    @property
    def recorded(self) -> bool:
        """Whether the trace has frames at all."""
        return self.frames.height > 0

    def at(self, thread: Ints, time: Ints) -> Ints:
        """Return the frame at each moment of a thread, :data:`NONE` outside all."""
        if not self.ranges.height:
            return np.full(len(thread), NONE, dtype=np.int64)
        found = take(self.of_range, self.nesting.innermost(thread, time))
        # A thread without frames, as autograd's, works for the one that runs the program.
        lost = np.flatnonzero((found == NONE) & (thread != NONE))
        on_main = self.main[thread[lost]]
        found[lost] = np.where(
            on_main == NONE, NONE, take(self.of_range, self.nesting.innermost(on_main, time[lost]))
        )
        return found

    def of_ops(self, trace: Trace, ops: Ints) -> Ints:
        """Return the frame of each operator, of its forward one if known; ``ops`` are rows."""
        table = trace.tables.ops
        forward = take(from_rows(table["forward"]), ops)
        source = np.where(forward == NONE, ops, forward)
        found = take(self.of_op_text, source)
        start = table["start"].to_numpy()
        for rows in (source, ops):
            lacking = np.flatnonzero((found == NONE) & (rows != NONE))
            chosen = rows[lacking]
            found[lacking] = self.at(self.op_thread[chosen], start[chosen])
        return found

    def of_work(self, trace: Trace, rows: pl.DataFrame) -> Ints:
        """Return the frame of each of ``rows`` of the work, with ``op``, ``call``, ``instruction``.

        That of its instruction, else of its operator, else of its launching call.
        """
        found = take(self.of_instruction, from_rows(rows["instruction"]))
        op = from_rows(rows["op"])
        lacking = np.flatnonzero((found == NONE) & (op != NONE))
        found[lacking] = self.of_ops(trace, op[lacking])
        call = from_rows(rows["call"])
        lacking = np.flatnonzero((found == NONE) & (call != NONE))
        calls = trace.tables.calls["start"].to_numpy()
        found[lacking] = self.at(self.call_thread[call[lacking]], calls[call[lacking]])
        return found


class _Frames:
    """The distinct frames with their place on the program's stack, numbered as they are found."""

    def __init__(self, folder: str) -> None:
        """Set the program's folder: HLO has whole paths, the lines of ``record`` are relative."""
        self._folder = folder
        self.rows: list[tuple[str, int, str | None, bool, int]] = []
        self._known: dict[tuple[str, int, str | None, int], int] = {}
        self._own: dict[str, bool] = {}

    def number(self, text: str, above: int) -> int:
        """Return the frame of a call of ``text`` from the frame ``above``.

        A library that the program calls has the program's frame.
        """
        file, line, function = parsed(text)
        file = file.removeprefix(self._folder)
        if file not in self._own:
            self._own[file] = _OF_LIBRARY.search(file.replace("\\", "/")) is None
        own, above_is_own = self._own[file], above != NONE and self.rows[above][3]
        if above_is_own and not own:
            return above
        key = file, line, function, above if above_is_own else NONE
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append((file, line, function, own, key[-1]))
        return self._known[key]

    def of_texts(self, column: pl.Series) -> Ints:
        """Return the frame of each stack that is written as text, innermost frame first."""
        texts = column.drop_nulls().unique(maintain_order=True)
        numbers = []
        for text in texts.cast(pl.String):
            frame = NONE
            for part in reversed(text.split(";")):
                if _FRAME.match(part):
                    frame = self.number(part, frame)
            numbers.append(frame)
        if not numbers:
            return np.full(len(column), NONE, dtype=np.int64)
        return column.replace_strict(
            texts, pl.Series(numbers), default=NONE, return_dtype=pl.Int64
        ).to_numpy()

    def of_ranges(self, ranges: pl.DataFrame, nesting: Nesting) -> Ints:
        """Return the frame of each of the nested ``ranges``."""
        result = np.full(ranges.height, NONE, dtype=np.int64)
        if not ranges.height:
            return result
        code, texts = codes(ranges["text"])
        for rows in nesting.levels:
            above = nesting.parent[rows]
            around = np.where(above == NONE, NONE, result[above])
            pairs, inverse = np.unique(
                np.column_stack((around, code[rows])), axis=0, return_inverse=True
            )
            found = [self.number(texts[text], over) for over, text in pairs.tolist()]
            result[rows] = np.array(found, dtype=np.int64)[inverse.reshape(-1)]
        return result


@per_trace
def source_frames(trace: Trace) -> SourceFrames:
    """Return the frames of ``trace``, which is whole: :attr:`~traceana.trace.Trace.whole`."""
    tables, folder = trace.tables, Path(trace.meta.source).parent
    ranges = tables.ranges.filter(pl.col("kind") == "python")
    ranges = ranges.filter(pl.col("text").cast(pl.String).str.contains(_FRAME.pattern))
    threads = thread_numbers(tables.ops, tables.calls, ranges)
    op_thread, call_thread, range_thread = threads
    nesting = Nesting.of(range_thread, ranges["start"].to_numpy(), ranges["duration"].to_numpy())
    found = _Frames(program_folder(folder))
    of_range = found.of_ranges(ranges, nesting)
    of_op_text = Tree.of_table(tables.ops).inherit(found.of_texts(tables.ops["frames"]))
    of_instruction = found.of_texts(tables.instructions["frames"])
    schema = {"file": pl.String, "line": pl.Int64, "function": pl.String, "own": pl.Boolean}
    frames = pl.DataFrame(found.rows, schema={**schema, "parent": pl.Int64}, orient="row")
    content = kept_files(folder, frames["file"].unique().to_list())
    texts = [
        lines[line - 1].strip()[:_LONGEST] if 0 < line <= len(lines) else None
        for file, line in frames.select("file", "line").iter_rows()
        for lines in (content.get(file, ()),)
    ]
    frames = frames.with_columns(pl.Series("text", texts, dtype=pl.String))
    main = _main_threads(threads, (tables.ops, tables.calls, ranges), ranges["duration"])
    return SourceFrames(
        *(frames, ranges, nesting, of_range, main),
        *(op_thread, call_thread, of_op_text, of_instruction),
    )


def parsed(text: str) -> tuple[str, int, str | None]:
    """Return file, line and function of a frame, None for a function that is not recorded."""
    match = _FRAME.match(text)
    assert match is not None
    return match[1], int(match[2]), match[3]


def _main_threads(
    threads: tuple[Ints, ...], tables: tuple[pl.DataFrame, ...], durations: pl.Series
) -> Ints:
    """Return for each thread the one of its process with the longest frame, else :data:`NONE`."""
    count = max(int(part.max(initial=NONE)) for part in threads) + 1
    main = np.full(count, NONE, dtype=np.int64)
    if not len(durations):
        return main
    of_process = ["rank", "process"]
    parts = [
        table.select(*of_process, pl.Series("thread", numbers))
        for table, numbers in zip(tables, threads, strict=True)
    ]
    longest = (
        parts[-1]
        .with_columns(durations.alias("duration"))
        .sort("duration", "thread")
        .unique(of_process, keep="last")
        .select(*of_process, pl.col("thread").alias("main"))
    )
    threads_of = pl.concat(parts).unique("thread")
    joined = threads_of.join(longest, on=of_process, nulls_equal=True)
    main[joined["thread"].to_numpy()] = joined["main"].to_numpy()
    return main


def frames_of_gaps(trace: Trace, gaps: pl.DataFrame) -> Ints:
    """Return the frame (:func:`source_frames`) in which each of the ``gaps`` began.

    Of a GPU it is that of the thread that launches the next work, when the gap began:
    ``loss.item()`` ends as soon as the GPU has nothing more to do. Of a CPU it is the one on the
    program's thread in the middle of the gap, in which no operator ran. ``gaps`` have ``start``,
    ``end``, ``before`` and ``after``, rows of activities of ``trace``, which is whole.
    """
    found = source_frames(trace)
    if not found.ranges.height:
        return np.full(gaps.height, NONE, dtype=np.int64)
    activities = trace.tables.activities
    thread, time = np.full(gaps.height, NONE, dtype=np.int64), gaps["start"].to_numpy()
    for side in ("before", "after"):
        for column, threads in (("op", found.op_thread), ("call", found.call_thread)):
            row = from_rows(activities[column].gather(gaps[side]))
            thread = np.where(row == NONE, thread, take(threads, row))
    if trace.on_cpu:
        time = (time + gaps["end"].to_numpy()) // 2
        # Work of other threads, as of autograd's, waits for the program's.
        main = take(found.main, thread)
        thread = np.where(main == NONE, thread, main)
    return found.at(thread, time)


def line_name(said: str = "text") -> pl.Expr:
    """Return the name of a line: ``train.py:41 loss.item()``, with the column ``said`` behind it.

    The number and the column are left out where they are null.
    """
    place = pl.concat_str("file", pl.lit(":"), "line")
    return pl.concat_str(pl.coalesce(place, "file"), pl.concat_str(pl.lit(" "), said).fill_null(""))


def lines_of_gaps(trace: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return the :func:`line_name` of the frame of each of the ``gaps``, null without one."""
    names = source_frames(trace).frames.select(line_name().alias("line"))["line"]
    return names.gather(to_rows(frames_of_gaps(trace, gaps)))
