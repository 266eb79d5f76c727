"""The frame of the program's Python that every operator, range and piece of work comes from.

Stacks are recorded as ranges of frames on threads (torch.profiler's ``with_stack``, the lines that
``traceana record`` marks), or as texts of operators (torch 1.8 to 1.10), of HLO instructions, and
of the events and blocks of an allocator.
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
from traceana.runs.source_files import program_folder, source_lines
from traceana.trace import Trace
from traceana.trace.schema import conform
from traceana.trace.tables import Tables

_FRAME: Final = re.compile(r"^([^<].*|<(?:ipython-input-|cell ).*)\((\d{1,9})\)(?:: (.*))?$")
"""A frame as Kineto writes it: ``train.py(41): main``. Calls of built-in functions have none."""

_PACKAGES: Final = (
    *("torch", "torchvision", "torchaudio", "torchmetrics", "functorch", "triton", "torch_xla"),
    *("tensorflow", "keras", "tf_keras", "jax", "jaxlib", "flax", "optax", "haiku", "equinox"),
    *("lightning", "pytorch_lightning", "lightning_fabric", "accelerate", "transformers"),
    *("diffusers", "datasets", "evaluate", "deepspeed", "apex", "xformers", "megatron", "timm"),
    *("numpy", "scipy", "pandas", "PIL", "tqdm", "IPython", "ipykernel", "absl", "traceana"),
)
"""Packages whose folder Kineto leaves out, as it does that of the program."""
_STANDARD: Final = "|".join(sorted(name for name in sys.stdlib_module_names if name[0] != "_"))
PUBLIC_FILE: Final = re.compile(rf"^(?:(?:{'|'.join(_PACKAGES)})/|(?:{_STANDARD})(?:/|\.py))")
"""Files of these packages and of the standard library."""
_OF_LIBRARY: Final = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python\d[^/]*)/"
    rf"|^(?:{'|'.join(_PACKAGES)})/|^(?:{_STANDARD})(?:/|\.py$)|^_\w+\.py$|/traceana/record/inside/"
    # Inductor's generated code: named by the beginning of its SHA-256.
    r"|(?:^|/)torchinductor_[^/]*/|(?:^|/)c[a-z2-7]{51}\.py$"
)
"""Files that are not the program's own: of installed packages and of the standard library."""
_LONGEST: Final = 500
"""Characters of a line's text."""


class FrameStacks(msgspec.Struct, frozen=True):
    """The stacks of Python frames on the threads of a recording.

    ``of_range`` is the row in ``frames`` of each of the nested ranges. ``main`` is, for each
    thread, the one of its process that runs the program.
    """

    nesting: Nesting
    of_range: Ints
    main: Ints
    op_thread: Ints
    call_thread: Ints
    other_thread: Ints
    """The threads of the rows that :meth:`of` is given."""

    @classmethod
    def of(cls, tables: Tables, ranges: pl.DataFrame, others: pl.DataFrame) -> FrameStacks:
        """Return the stacks of the ``ranges`` with their column ``frame``.

        ``others`` are further rows with ``rank``, ``process`` and ``thread``.
        """
        parts = (tables.ops, tables.calls, others, ranges)
        threads = thread_numbers(*parts)
        start, duration = ranges["start"].to_numpy(), ranges["duration"].to_numpy()
        return cls(
            Nesting.of(threads[-1], start, duration),
            from_rows(ranges["frame"]),
            _main_threads(threads, parts, ranges["duration"]),
            *threads[:-1],
        )

    def at(self, thread: Ints, time: Ints) -> Ints:
        """Return the frame at each moment of a thread, :data:`NONE` outside all."""
        if not len(self.of_range):
            return np.full(len(thread), NONE, dtype=np.int64)
        frame = take(self.of_range, self.nesting.innermost(thread, time))
        # A thread without frames, as autograd's, works for the one that runs the program.
        lost = np.flatnonzero((frame == NONE) & (thread != NONE))
        main = self.main[thread[lost]]
        on_main = take(self.of_range, self.nesting.innermost(main, time[lost]))
        frame[lost] = np.where(main == NONE, NONE, on_main)
        return frame


def _main_threads(
    threads: tuple[Ints, ...], tables: tuple[pl.DataFrame, ...], durations: pl.Series
) -> Ints:
    """Return for each thread the one of its process with the longest frame, else :data:`NONE`."""
    count = max(int(part.max(initial=NONE)) for part in threads) + 1
    main = np.full(count, NONE, dtype=np.int64)
    if not len(durations):
        return main
    of_process = ["rank", "process"]
    distinct = []
    for table, numbers in zip(tables, threads, strict=True):
        known, first = np.unique(numbers, return_index=True)
        distinct.append(table[first].select(*of_process, pl.Series("thread", known)))
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, threads[-1], durations.to_numpy())
    by_process = (
        distinct[-1]
        .with_columns(pl.Series("duration", longest[distinct[-1]["thread"].to_numpy()]))
        .sort("duration", "thread")
        .unique(of_process, keep="last")
        .select(*of_process, pl.col("thread").alias("main"))
    )
    threads_of = pl.concat(distinct).unique("thread")
    joined = threads_of.join(by_process, on=of_process, nulls_equal=True)
    main[joined["thread"].to_numpy()] = joined["main"].to_numpy()
    return main


class _Frames:
    """The distinct frames with their place on the program's stack, numbered as they are found."""

    def __init__(self, folder: str) -> None:
        """Set the program's folder: HLO has whole paths, the lines of ``record`` are relative."""
        self._folder = folder
        self.rows: list[tuple[str, int, str | None, bool, int | None]] = []
        self._known: dict[tuple[str, int, str | None, int], int] = {}
        self._own: dict[str, bool] = {}

    def number(self, text: str, above: int) -> int:
        """Return the frame of a call of ``text`` from the frame ``above``.

        A library that the program calls has the program's frame.
        """
        match = _FRAME.match(text)
        assert match is not None
        file, line, function = match[1].removeprefix(self._folder), int(match[2]), match[3]
        if file not in self._own:
            self._own[file] = _OF_LIBRARY.search(file.replace("\\", "/")) is None
        own, above_is_own = self._own[file], above != NONE and self.rows[above][3]
        if above_is_own and not own:
            return above
        key = file, line, function, above if above_is_own else NONE
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append((file, line, function, own, above if above_is_own else None))
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

    def of_ranges(self, column: pl.Series, nesting: Nesting) -> Ints:
        """Return the frame of each of the nested ranges, whose texts are ``column``."""
        result = np.full(len(column), NONE, dtype=np.int64)
        if not len(column):
            return result
        code, texts = codes(column)
        for rows in nesting.levels:
            above = nesting.parent[rows]
            around = np.where(above == NONE, NONE, result[above])
            # Pairs of frame and text, as one number: counted from 1, because NONE is -1.
            pairs, inverse = np.unique((around + 1) * len(texts) + code[rows], return_inverse=True)
            frame, text = np.divmod(pairs, len(texts))
            numbers = [
                self.number(texts[number], above)
                for number, above in zip(text.tolist(), (frame - 1).tolist(), strict=True)
            ]
            result[rows] = np.array(numbers, dtype=np.int64)[inverse]
        return result

    def table(self, folder: Path) -> pl.DataFrame:
        """Return the table of the frames, with the lines of the files that the run keeps."""
        files = {file for file, *_ in self.rows}
        lines = source_lines(folder, files)
        texts = [
            lines[file][line - 1].strip()[:_LONGEST]
            if file in lines and 0 < line <= len(lines[file])
            else None
            for file, line, *_ in self.rows
        ]
        schema = ["file", "line", "function", "own", "parent"]
        frame = pl.DataFrame(self.rows, schema=schema, orient="row", infer_schema_length=None)
        return conform("frames", frame.with_columns(pl.Series("text", texts, dtype=pl.String)))


def with_frames(trace: Trace) -> Trace:
    """Return an attributed ``trace`` with its frames: of each activity, operator and range.

    The frame of an operator of the backward pass is that of its forward operator, if that has one,
    unless Python runs within it. The frame of work is that of its instruction, else of its
    operator, else of its launching call, and of a CUDA graph's node that at its capture.
    """
    tables = trace.tables
    ops, instructions, activities = tables.ops, tables.instructions, tables.activities
    is_frame = (tables.ranges["kind"] == "python").to_numpy()
    texts = tables.ranges["text"].cast(pl.String).str.contains(_FRAME.pattern)
    rows_of_ranges = np.flatnonzero(is_frame & texts.fill_null(value=False).to_numpy())
    ranges = tables.ranges[rows_of_ranges]
    captured = activities["capture_time"].is_not_null()
    nodes = activities.filter(captured).select("rank", "process", thread="capture_thread")
    stacks = FrameStacks.of(tables, ranges, nodes)

    folder = Path(trace.meta.source).parent
    frames = _Frames(program_folder(folder))
    of_range = frames.of_ranges(ranges["text"], stacks.nesting)
    stacks = msgspec.structs.replace(stacks, of_range=of_range)
    of_instruction = frames.of_texts(instructions["frames"])
    of_memory = frames.of_texts(tables.memory["frames"])
    of_blocks = frames.of_texts(tables.memory_blocks["frames"])

    tree = Tree.of_table(ops)
    of_text = tree.inherit(frames.of_texts(ops["frames"]))
    rows = np.arange(ops.height)
    forward = from_rows(ops["forward"])
    source = np.where(forward == NONE, rows, forward)
    of_op = of_text[source]
    start = ops["start"].to_numpy()
    if len(of_range):
        # Python that runs within a node of the backward pass: recomputation, or its own function.
        gradients = np.flatnonzero(forward != NONE)
        inner = stacks.nesting.innermost(stacks.op_thread[gradients], start[gradients])
        outermost = tree.inherit(np.where(tree.parent == NONE, rows, NONE))[gradients]
        within = (inner != NONE) & (take(stacks.nesting.start, inner) >= start[outermost])
        of_op[gradients[within]] = of_range[inner[within]]
    for around in (source, rows):
        lacking = np.flatnonzero(of_op == NONE)
        chosen = around[lacking]
        of_op[lacking] = stacks.at(stacks.op_thread[chosen], start[chosen])

    of_work = take(of_instruction, from_rows(activities["instruction"]))
    of_work = np.where(of_work == NONE, take(of_op, from_rows(activities["op"])), of_work)
    call = from_rows(activities["call"])
    thread, time = take(stacks.call_thread, call), take(tables.calls["start"].to_numpy(), call)
    node = np.flatnonzero(captured.to_numpy())
    thread[node] = stacks.other_thread
    time[node] = activities["capture_time"].to_numpy()[node]
    lacking = np.flatnonzero((of_work == NONE) & (thread != NONE))
    of_work[lacking] = stacks.at(thread[lacking], time[lacking])

    of_all_ranges = np.full(tables.ranges.height, NONE, dtype=np.int64)
    of_all_ranges[rows_of_ranges] = of_range
    return trace.with_tables(
        frames=frames.table(folder),
        activities=activities.with_columns(to_rows(of_work).alias("frame")),
        ops=ops.with_columns(to_rows(of_op).alias("frame")),
        instructions=instructions.with_columns(to_rows(of_instruction).alias("frame")),
        ranges=tables.ranges.with_columns(to_rows(of_all_ranges).alias("frame")),
        memory=tables.memory.with_columns(to_rows(of_memory).alias("frame")),
        memory_blocks=tables.memory_blocks.with_columns(to_rows(of_blocks).alias("frame")),
    )
