"""Layers of device work whose launch is not in the trace, inferred from repetitions of it.

Training repeats a sequence of kernels. If the recording started after a kernel's launch, the
kernel at the same position of another repetition has the layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.nesting import NONE, Flags, Ints
from traceana.settings import LONGEST_CONTEXT, SHORTEST_CONTEXT

Hashes = npt.NDArray[np.uint64]
"""Hashes of contexts; 0 where there is none, because the stream ends before it does."""

_STREAM: Final = ("rank", "device", "context", "stream")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "bytes")
_KINDS: Final = ("kernel", "memcpy", "memset")
_DISPUTED: Final = -2
_TABLE: Final = 1 << 22
"""Entries of the table by which most sources without a query are found."""


class Repetitions:
    """The device work of a trace by stream and time, for :meth:`sources`."""

    def __init__(self, activities: pl.DataFrame) -> None:
        """Prepare to search ``activities``."""
        self._activities = activities
        self._sequences: dict[tuple[str, ...], _Sequence] = {}

    def sources(self, known: Ints, wanted: pl.Series) -> Ints:
        """Return the row of an activity at the same position of the sequence for each, or NONE.

        ``known`` is the known layer of each activity (NONE: unknown), ``wanted`` selects the
        activities to infer. A context is a run of 2^n activities of one stream (n = 3 … 12) that
        begins with, ends with or surrounds the activity. Activities are compared by name, and by
        grid and bytes if these are recorded without the launch (not on ROCm). The longest context
        that occurs at activities with a known layer decides, if all of these agree. If they differ,
        the result is NONE, because shorter contexts are less certain.

        Contexts are compared by hashes of 64 bits. Of n activities, two different contexts of one
        length have the same hash with a probability below n² / 2^64.
        """
        answer = np.full(self._activities.height, NONE, dtype=np.int64)
        if not wanted.any():
            return answer
        sequence = self._sequence(_signature(self._activities.filter(wanted)))
        fact, asked = known[sequence.order], wanted.to_numpy()[sequence.order]
        queries, sources = np.flatnonzero(asked), np.flatnonzero(fact != NONE)
        found = np.full(len(queries), NONE, dtype=np.int64)
        views = [_View(shift, fact, queries, sources) for shift in _SHIFTS]
        run = sequence.symbol
        length = 1
        while 2 * length <= LONGEST_CONTEXT and any(len(view.query) for view in views):
            shorter, run, length = run, _doubled(run, length, sequence.stream_end), 2 * length
            decides = length >= SHORTEST_CONTEXT
            answers = [view.find(shorter, run, length, decides=decides) for view in views]
            decided = _agreed(answers, fact)
            found = np.where(decided == NONE, found, decided)
        placed = found >= 0
        answer[sequence.order[queries[placed]]] = sequence.order[found[placed]]
        return answer

    def _sequence(self, signature: tuple[str, ...]) -> _Sequence:
        if signature not in self._sequences:
            self._sequences[signature] = _Sequence.of(self._activities, signature)
        return self._sequences[signature]


_SHIFTS: Final[tuple[Callable[[int], int], ...]] = (
    lambda _: 0,
    lambda length: length - 1,
    lambda length: length // 2,
)
"""Offset of the activity from the start of its context: first, last, in the middle."""


class _View:
    """One position of the activity in its context, and the range of layers that are possible.

    A longer context is equal only where the shorter one is: what has no counterpart is left out
    from then on, on both sides. So a search in which nothing repeats ends soon.
    """

    def __init__(
        self, shift: Callable[[int], int], fact: Ints, queries: Ints, sources: Ints
    ) -> None:
        self._shift, self._fact = shift, fact
        self._all = len(queries)
        self.query = np.arange(len(queries))
        """The queries that may still find a source."""
        self._position, self._sources = queries, sources
        self._least = np.full(len(queries), np.int64(fact.max(initial=0)) + 1)
        self._most = np.full(len(queries), NONE, dtype=np.int64)

    def find(self, shorter: Hashes, run: Hashes, length: int, *, decides: bool) -> Ints:
        """Return the first position with the same context of ``length``, NONE, or _DISPUTED.

        An activity whose context is truncated by the end of the stream, and equal up to there, may
        be at the same position. It must agree too, also for all longer contexts. Contexts that do
        not decide are looked up only for that.
        """
        now = _at(run, self._position - self._shift(length))
        self._keep(now != 0)
        now = now[now != 0]
        of_sources = _at(run, self._sources - self._shift(length))
        self._truncated(shorter, self._sources[of_sources == 0], length // 2)
        self._sources, of_sources = self._sources[of_sources != 0], of_sources[of_sources != 0]
        answer = np.full(self._all, NONE, dtype=np.int64)
        if not decides:
            return answer
        among = _possible(of_sources, now)
        self._sources, of_sources = self._sources[among], of_sources[among]
        whole = _facts(now, of_sources, self._sources, self._fact)
        least, most = np.minimum(whole.least, self._least), np.maximum(whole.most, self._most)
        found = np.where(least == most, whole.position, _DISPUTED)
        met = whole.position != NONE
        answer[self.query[met]] = found[met]
        self._keep(met)
        return answer

    def _keep(self, kept: Flags) -> None:
        self.query, self._position = self.query[kept], self._position[kept]
        self._least, self._most = self._least[kept], self._most[kept]

    def _truncated(self, shorter: Hashes, sources: Ints, length: int) -> None:
        """Count the layers of ``sources``, whose contexts are truncated, as possible."""
        context = _at(shorter, sources - self._shift(length))
        sources, context = sources[context != 0], context[context != 0]
        if not len(sources) or not len(self.query):
            return
        own = _at(shorter, self._position - self._shift(length))
        cut = _facts(own, context, sources, self._fact)
        met = cut.position != NONE
        self._least = np.where(met, np.minimum(self._least, cut.least), self._least)
        self._most = np.where(met, np.maximum(self._most, cut.most), self._most)


def _at(run: Hashes, position: Ints) -> Hashes:
    """Return the hash of the runs that begin at ``position``, 0 before the first.

    A run ends within its stream, so a run that reaches an activity is of the same stream.
    """
    return np.where(position < 0, np.uint64(0), run[np.maximum(position, 0)])


def _possible(sources: Hashes, queries: Hashes) -> Flags:
    """Return which of ``sources`` may be equal to one of ``queries``: all that are, few others."""
    mask = np.uint64(_TABLE - 1)
    table = np.zeros(_TABLE, dtype=np.bool_)
    table[queries & mask] = True
    possible: Flags = table[sources & mask]
    return possible


class _Facts(NamedTuple):
    """For each query: the first source, and least and greatest layer; NONE without a source."""

    position: Ints
    least: Ints
    most: Ints


def _facts(queries: Hashes, sources: Hashes, positions: Ints, fact: Ints) -> _Facts:
    """Return the facts of the ``sources`` with the hash of each of ``queries``."""
    asked = pl.DataFrame({"context": queries})
    answers = (
        pl.DataFrame({"context": sources, "fact": fact[positions], "position": positions})
        .group_by("context")
        .agg(
            pl.col("position").min(),
            pl.col("fact").min().alias("least"),
            pl.col("fact").max().alias("most"),
        )
    )
    joined = asked.join(answers, on="context", how="left", maintain_order="left")
    columns = joined.select(pl.col("position", "least", "most").fill_null(NONE))
    return _Facts(*(column.to_numpy() for column in columns))


def _agreed(answers: list[Ints], fact: Ints) -> Ints:
    """Return the common answer of all views, _DISPUTED where they differ."""
    found = answers[0]
    for other in answers[1:]:
        conflict = (found >= 0) & (other >= 0) & (fact[found] != fact[other])
        found = np.where(
            (found == _DISPUTED) | (other == _DISPUTED) | conflict,
            _DISPUTED,
            np.where(found == NONE, other, found),
        )
    return found


def _signature(wanted: pl.DataFrame) -> tuple[str, ...]:
    """Return the columns that distinguish activities and that the wanted ones have."""
    kernels = wanted.filter(pl.col("kind") == "kernel")
    return ("name_id",) if kernels["grid_x"].null_count() else ("name_id", *_SIZES)


class _Sequence(msgspec.Struct, frozen=True):
    """The rows of device work by stream and time, the hash of each row's signature, and the
    position after the last row of its stream."""

    order: Ints
    symbol: Hashes
    stream_end: Ints

    @classmethod
    def of(cls, activities: pl.DataFrame, signature: tuple[str, ...]) -> _Sequence:
        rows = np.flatnonzero(activities["kind"].is_in(_KINDS).to_numpy())
        start = activities["start"].to_numpy()[rows]
        # Rows are nearly in order of time, and streams are few: stable sorts of both are fast.
        in_time = np.argsort(start, kind="stable")
        stream = _streams(activities)[rows[in_time]]
        by_stream = np.argsort(stream, kind="stable")
        end = np.cumsum(np.bincount(stream))
        order = rows[in_time[by_stream]]
        symbol = np.zeros(len(order), dtype=np.uint64)
        for name in signature:
            values = activities[name].cast(pl.Int64).fill_null(NONE).to_numpy()[order]
            symbol = _mixed(symbol, values.view(np.uint64))
        return cls(order, symbol, end[stream[by_stream]])


def _streams(activities: pl.DataFrame) -> Ints:
    """Return the number of each row's stream, in the order of its columns, null first."""
    number = np.zeros(activities.height, dtype=np.int64)
    for name in _STREAM:
        distinct = activities[name].unique().sort()
        if len(distinct) > 1:
            places = pl.Series(np.arange(len(distinct)))
            place = activities[name].replace_strict(distinct, places, return_dtype=pl.Int64)
            number = number * len(distinct) + place.to_numpy()
    if number.max(initial=0) > len(number):
        number = np.unique(number, return_inverse=True)[1]
    # Small numbers are sorted in linear time.
    return number.astype(np.int16) if number.max(initial=0) < np.iinfo(np.int16).max else number


def _doubled(run: Hashes, length: int, stream_end: Ints) -> Hashes:
    """Return the hash of each run of ``2 * length``, from those of ``length``."""
    doubled = np.zeros(len(run), dtype=np.uint64)
    many = max(len(run) - length, 0)
    doubled[:many] = _mixed(run[:many], run[length:])
    doubled[np.arange(len(run)) + 2 * length > stream_end] = 0
    return doubled


def _mixed(first: Hashes, second: Hashes) -> Hashes:
    """Return hashes of pairs, never 0: the finalizer of MurmurHash3 between two multiplications."""
    mixed = first * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed += second
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(33)
    mixed[mixed == 0] = 1
    return mixed
