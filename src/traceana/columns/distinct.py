"""Distinct values: equal rows are numbered equally, and each distinct text is searched once."""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.nesting import Flags, Ints

THREAD: Final = ("rank", "process", "thread")
"""Columns that identify a thread."""
_NARROW: Final = 1 << 24
"""Largest span of values that are numbered by a lookup table; others by a search."""
_SPARSE: Final = 512
"""Values to a row above which a search takes less than walking through the table."""
_SHORT: Final = 1 << 16
"""Length of a table up to which it is always walked through."""
_WIDEST: Final = 1 << 62
_BLOCK: Final = 1 << 20
"""Rows per block: temporary arrays of this size stay in the CPU's caches."""


def numbered(*frames: pl.DataFrame) -> tuple[Ints, ...]:
    """Return numbers for the rows of ``frames``, which have the same columns: integers or labels.

    Two rows, of one frame or of two, have the same number if and only if they are equal in all
    columns; null equals null. Numbers count from 0 without a gap, in the order of the
    first column, then of the next (null first, labels by their code).
    """
    columns = [_Digits.of([frame[name] for frame in frames]) for name in frames[0].columns]
    columns = [column for column in columns if column.base > 1]
    limit = math.prod(column.base for column in columns)
    if limit > _WIDEST:
        return by_halves(*frames)
    numbers = tuple(np.zeros(frame.height, dtype=np.int64) for frame in frames)
    for number, numbers_of_frame in enumerate(numbers):
        for begin in range(0, len(numbers_of_frame), _BLOCK):
            block = numbers_of_frame[begin : begin + _BLOCK]
            for column in columns:
                block *= column.base
                block += column.digits(number, begin)
    _close(numbers, limit)
    return numbers


def first_rows(numbers: Ints) -> Ints:
    """Return the first row of each of ``numbers``, as of :func:`numbered`, in their order."""
    first = np.full(int(numbers.max(initial=-1)) + 1, -1, dtype=np.int64)
    for begin in range(0, len(numbers), _BLOCK):
        block = numbers[begin : begin + _BLOCK]
        unseen = np.flatnonzero(first[block] < 0)[::-1]
        # Of several assignments to one index the last one stays.
        first[block[unseen]] = begin + unseen
        if (first >= 0).all():
            break
    return first


def distinct(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct rows of ``frame``, in the order of :func:`numbered`."""
    (numbers,) = numbered(frame)
    return frame[first_rows(numbers)]


def rows_of(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each of ``numbers``, as of :func:`numbered`, with the rows that have it, in order."""
    if not len(numbers):
        return
    counts = np.bincount(numbers)
    ends = np.cumsum(counts)
    if (numbers[1:] >= numbers[:-1]).all():
        order = np.arange(len(numbers))
    else:
        # 16 bits and fewer are sorted in linear time.
        narrow = numbers.astype(np.uint16) if len(counts) <= 1 << 16 else numbers
        order = np.argsort(narrow, kind="stable")
    for number in np.flatnonzero(counts):
        yield int(number), order[ends[number] - counts[number] : ends[number]]


def thread_numbers(*frames: pl.DataFrame) -> tuple[Ints, ...]:
    """Return the :func:`numbered` threads of ``frames``: by the columns of :data:`THREAD`."""
    known = [name for name in THREAD if all(name in frame.columns for frame in frames)]
    return numbered(*(frame.select(known) for frame in frames))


class Threads(msgspec.Struct, frozen=True):
    """The number of the thread of each operator, call, range and window.

    Rows without a thread count as one thread of their process. ``known`` has ``rank``, ``process``
    and ``thread`` of each number.
    """

    ops: Ints
    calls: Ints
    ranges: Ints
    windows: Ints
    known: pl.DataFrame

    @classmethod
    def of(
        cls,
        ops: pl.DataFrame,
        calls: pl.DataFrame,
        ranges: pl.DataFrame,
        windows: pl.DataFrame | None = None,
    ) -> Threads:
        """Return the threads of tables with the columns of :data:`THREAD`."""
        tables = ops, calls, ranges, ops.clear() if windows is None else windows
        frames = [table.select(THREAD) for table in tables]
        op_numbers, call_numbers, range_numbers, window_numbers = numbers = thread_numbers(*frames)
        known = pl.concat(frames, how="vertical_relaxed")[first_rows(np.concatenate(numbers))]
        return cls(op_numbers, call_numbers, range_numbers, window_numbers, known)

    def among(self, numbers: Ints) -> Flags:
        """Return for each thread whether it is one of ``numbers``; -1 does not count."""
        is_among = np.zeros(self.known.height, dtype=np.bool_)
        is_among[numbers[numbers >= 0]] = True
        return is_among


class _Digits(msgspec.Struct, frozen=True):
    """A column of several frames as digits: 0 for null, values from 1, all below ``base``.

    ``known`` are its distinct values where they are far apart; else digits count from ``low``.
    """

    parts: Sequence[pl.Series]
    low: int
    base: int
    known: Ints | None = None

    @classmethod
    def of(cls, parts: Sequence[pl.Series]) -> _Digits:
        """Return the digits of a column whose ``parts`` are in several frames."""
        whole = [part if part.dtype.is_integer() else part.to_physical() for part in parts]
        least, most = ([getattr(part, end)() for part in whole] for end in ("min", "max"))
        low = min((int(value) for value in least if value is not None), default=0)
        high = max((int(value) for value in most if value is not None), default=low - 1)
        nulls = any(part.null_count() for part in parts)
        if high - low < _NARROW:
            return cls(whole, low, 1 if low == high and not nulls else high - low + 2)
        distinct = pl.concat([part.cast(pl.Int64).unique() for part in whole]).drop_nulls()
        known = distinct.unique().sort().to_numpy()
        return cls(whole, low, len(known) + 1, known)

    def digits(self, at: int, begin: int) -> Ints:
        """Return the digits of a block of one of the parts."""
        block = self.parts[at].slice(begin, _BLOCK)
        nulls = block.null_count() > 0
        values = (block.fill_null(self.low) if nulls else block).to_numpy()
        if self.known is None:
            digit: Ints = np.subtract(values, self.low - 1, dtype=np.int64)
        else:
            digit = np.searchsorted(self.known, values) + 1
        if nulls:
            digit[block.is_null().to_numpy()] = 0
        return digit


def by_halves(*frames: pl.DataFrame) -> tuple[Ints, ...]:
    """Return the numbers, computed from the numbers of each half of the columns."""
    names = frames[0].columns
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    numbers_of_halves = [numbered(*(frame.select(half) for frame in frames)) for half in halves]
    return numbered(
        *(
            pl.DataFrame({"one": left, "other": right})
            for left, right in zip(*numbers_of_halves, strict=True)
        )
    )


def _close(numbers: Sequence[Ints], limit: int) -> None:
    """Renumber ``numbers``, all below ``limit``, in-place: without gaps, in the same order."""
    rows = sum(map(len, numbers))
    if limit > min(_NARROW, max(_SPARSE * rows, _SHORT)):
        distinct_numbers = [np.unique(frame_numbers) for frame_numbers in numbers]
        distinct_number = (
            distinct_numbers[0]
            if len(distinct_numbers) == 1
            else np.unique(np.concatenate(distinct_numbers))
        )
        for frame_numbers in numbers:
            frame_numbers[:] = np.searchsorted(distinct_number, frame_numbers)
        return
    occurs = np.zeros(limit, dtype=np.bool_)
    for frame_numbers in numbers:
        occurs[frame_numbers] = True
    if occurs.all():
        return
    # Most of a sparse table is never written: its pages cost nothing.
    distinct_number = np.flatnonzero(occurs)
    place = np.empty(limit, dtype=np.int32)
    place[distinct_number] = np.arange(len(distinct_number))
    for frame_numbers in numbers:
        for begin in range(0, len(frame_numbers), _BLOCK):
            block = frame_numbers[begin : begin + _BLOCK]
            block[:] = place[block]


def groups(frame: pl.DataFrame, *keys: str) -> Ints:
    """Return a number for the rows of ``frame`` with equal ``keys``: the first of these rows.

    Null equals null. The window functions of polars that return a value a row evaluate their
    expression for each group: a microsecond each, which is most of the time where a trace has a
    million steps. These three take all groups at once.
    """
    numbered = frame.with_row_index("_row")
    return numbered.select(pl.col("_row").first().over(keys).cast(pl.Int64)).to_series().to_numpy()


def nth(group: Ints) -> Ints:
    """Return the number of each row within its ``group``, in order, from 0."""
    return running_sum(group, np.ones(len(group), np.int64)) - 1


def running_sum(group: Ints, values: Ints) -> Ints:
    """Return the sum of ``values`` of each row and of those before it in its ``group``."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    sums = np.cumsum(values[order])
    begins = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    before = sums[begins] - values[order[begins]]
    sums_of_rows = np.empty_like(sums)
    sums_of_rows[order] = sums - np.repeat(before, np.diff(begins, append=len(ordered)))
    return sums_of_rows


class Texts(msgspec.Struct, frozen=True):
    """The distinct texts of a categorical column, and their codes.

    ``code_of_row`` has the code of each row, and ``null`` for null, which is above all codes.
    """

    distinct: pl.Series
    codes: npt.NDArray[np.uint32]
    null: int
    code_of_row: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, column: pl.Series) -> Texts:
        """Return the texts of a categorical ``column``."""
        physical = column.to_physical()
        null = int(physical.max() or 0) + 1  # type: ignore[arg-type]
        nulls = column.null_count() > 0
        code_of_row = (physical.fill_null(null) if nulls else physical).to_numpy()
        occurs = np.zeros(null + 1, dtype=np.bool_)
        occurs[code_of_row] = True
        codes = np.flatnonzero(occurs[:null]).astype(np.uint32)
        distinct = pl.Series(codes, dtype=physical.dtype).cat.to(column.dtype).cast(pl.String)
        return cls(distinct, codes, null, code_of_row)

    def matching(self, pattern: str) -> Flags:
        """Return which rows match ``pattern``, of :func:`ascii_classes`; false for null."""
        return self.where(pl.col("text").str.contains(ascii_classes(pattern)))

    def where(self, condition: pl.Expr) -> Flags:
        """Return for which rows ``condition``, of ``text``, holds; false for null."""
        holds = self.distinct.alias("text").to_frame().select(condition.fill_null(False))
        wanted = np.zeros(self.null + 1, dtype=np.bool_)
        wanted[self.codes] = holds.to_series().to_numpy()
        return np.asarray(wanted[self.code_of_row])

    def replaced(self, pattern: str, text: str) -> pl.Series:
        """Return the text of each row with the first match of ``pattern`` as ``text``."""
        place = np.full(self.null + 1, len(self.distinct), dtype=np.uint32)
        place[self.codes] = np.arange(len(self.codes), dtype=np.uint32)
        changed = self.distinct.str.replace(pattern, text).extend_constant(None, 1)
        return changed[place[self.code_of_row]]


_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_CLASS: Final = re.compile(r"\\.", re.DOTALL)
_OUTSIDE: Final = {r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}
_INSIDE: Final = {r"\w": "0-9A-Za-z_", r"\d": "0-9"}


@functools.cache
def ascii_classes(pattern: str) -> str:
    """Return ``pattern`` with ``\\w``, ``\\d`` and ``\\b`` limited to ASCII.

    Unicode's ``\\w`` is a table of seven hundred ranges, and building it for every pattern takes
    longer than searching. Names of kernels and operators are ASCII identifiers, so the matches are
    the same.
    """
    return _TOKEN.sub(_rewritten, pattern)


def _rewritten(token: re.Match[str]) -> str:
    text = token.group()
    if text.startswith("["):
        return _CLASS.sub(lambda escape: _INSIDE.get(escape.group(), escape.group()), text)
    return _OUTSIDE.get(text, text)


def in_turn(rows: Sequence[Hashable], columns: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of equal elements, the n-th with the n-th.

    Elements that are not equally often in both have none: which one is missing is not known.
    """
    positions: dict[Hashable, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, elements in enumerate((rows, columns)):
        for position, element in enumerate(elements):
            positions[element][side].append(position)
    return [
        pair
        for row_positions, column_positions in positions.values()
        if len(row_positions) == len(column_positions)
        for pair in zip(row_positions, column_positions, strict=True)
    ]
