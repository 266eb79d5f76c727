"""Layers of device work whose launch is not in the trace, inferred from repetitions of it.

Training repeats a sequence of kernels. If the recording started after a kernel's launch, the
kernel at the same position of another repetition has the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.nesting import NONE, Flags, Ints
from traceana.settings import LONGEST_CONTEXT, SHORTEST_CONTEXT

Hashes = npt.NDArray[np.uint64]
"""Hashes of contexts; 0 where there is none, because the stream ends before it does."""

_STREAM: Final = ("rank", "device", "context", "stream")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "bytes")
_KINDS: Final = ("kernel", "memcpy", "memset")
_DISPUTED: Final = -2
_ABOVE: Final = np.iinfo(np.int64).max
_BLOCK: Final = 1 << 17
"""Hashes that are computed at a time: temporary arrays of this size stay in the CPU's caches."""


class Repetitions:
    """The device work of a trace by stream and time, for :meth:`sources`."""

    def __init__(self, activities: pl.DataFrame) -> None:
        """Prepare to search ``activities``."""
        self._activities = activities
        self._sequences: dict[tuple[str, ...], _Sequence] = {}

    def sources(self, known: Sequence[Ints], wanted: pl.Series) -> list[Ints]:
        """Return, for each of ``known``, the row of an activity at the same position, or NONE.

        Each of ``known`` has the known layer of each activity (NONE: unknown, the same activities
        in all of them), ``wanted`` selects the activities to infer. Of those for which an earlier
        one of ``known`` has a source, the later sources are of no use. A context is a run of 2^n
        activities of one stream (n = 3 … 12) that begins with, ends with or surrounds the activity.
        Activities are compared by name, and by grid and bytes if these are recorded without the
        launch (not on ROCm). The longest context that occurs at activities with a known layer
        decides, if all of these agree. If they differ, the result is NONE, because shorter contexts
        are less certain.

        Contexts are compared by hashes of 64 bits. Of n activities, two different contexts of one
        length have the same hash with a probability below n² / 2^64.
        """
        if not wanted.any():
            return [np.full(self._activities.height, NONE, dtype=np.int64) for _ in known]
        signature = _signature(self._activities.filter(wanted))
        found = self._found(known, wanted, signature)
        for later in range(1, len(known)):
            wanted = wanted & pl.Series(found[later - 1] == NONE)
            if not wanted.any():
                break
            # Fewer activities may have more in common.
            of_rest = _signature(self._activities.filter(wanted))
            if of_rest != signature:
                found[later:] = self._found(known[later:], wanted, of_rest)
                signature = of_rest
        return found

    def _found(
        self, known: Sequence[Ints], wanted: pl.Series, signature: tuple[str, ...]
    ) -> list[Ints]:
        """Return :meth:`sources` by contexts of the columns ``signature``."""
        sequence = self._sequence(signature)
        facts, asked = [one[sequence.order] for one in known], wanted.to_numpy()[sequence.order]
        queries, sources = np.flatnonzero(asked), np.flatnonzero(facts[0] != NONE)
        found = [np.full(len(queries), NONE, dtype=np.int64) for _ in facts]
        views = [_View(shift, facts, queries, sources) for shift in _SHIFTS]
        run = sequence.symbol
        length = 1
        while 2 * length <= LONGEST_CONTEXT and any(len(view.query) for view in views):
            shorter, run, length = run, _doubled(run, length, sequence.left), 2 * length
            decides = length >= SHORTEST_CONTEXT
            answers = [view.find(shorter, run, length, decides=decides) for view in views]
            for at, fact in enumerate(facts):
                decided = _agreed([answer[at] for answer in answers], fact)
                found[at] = np.where(decided == NONE, found[at], decided)
        rows = []
        for one in found:
            placed = one >= 0
            answer = np.full(self._activities.height, NONE, dtype=np.int64)
            answer[sequence.order[queries[placed]]] = sequence.order[one[placed]]
            rows.append(answer)
        return rows

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
    """One position of the activity in its context, and the ranges of layers that are possible.

    A longer context is equal only where the shorter one is: what has no counterpart is left out
    from then on, on both sides. So a search in which nothing repeats ends soon.
    """

    def __init__(
        self, shift: Callable[[int], int], facts: Sequence[Ints], queries: Ints, sources: Ints
    ) -> None:
        self._shift, self._facts = shift, facts
        self._all = len(queries)
        self.query = np.arange(len(queries))
        """The queries that may still find a source."""
        self._position, self._sources = queries, sources
        self._possible = [_Span.none(len(queries)) for _ in facts]

    def find(self, shorter: Hashes, run: Hashes, length: int, *, decides: bool) -> list[Ints]:
        """Return, by each of the facts, the first position with the same context of ``length``,
        NONE, or _DISPUTED.

        An activity whose context is truncated by the end of the stream, and equal up to there, may
        be at the same position. It must agree too, also for all longer contexts. Contexts that do
        not decide are looked up only for that.
        """
        now = _at(run, self._position, self._shift(length))
        self._keep(now != 0)
        now = now[now != 0]
        of_sources = _at(run, self._sources, self._shift(length))
        whole = of_sources != 0
        if not whole.all():
            self._truncated(shorter, self._sources[~whole], length // 2)
            self._sources, of_sources = self._sources[whole], of_sources[whole]
        answers = [np.full(self._all, NONE, dtype=np.int64) for _ in self._facts]
        if not decides:
            return answers
        asked = pl.Series(of_sources).is_in(pl.Series(now).unique().implode()).to_numpy()
        self._sources, of_sources = self._sources[asked], of_sources[asked]
        facts = [fact[self._sources] for fact in self._facts]
        first, spans = _spans(now, of_sources, self._sources, facts)
        met = first != NONE
        for answer, one, possible in zip(answers, spans, self._possible, strict=True):
            span = one.with_also(possible)
            answer[self.query[met]] = np.where(span.least == span.most, first, _DISPUTED)[met]
        self._keep(met)
        return answers

    def _keep(self, kept: Flags) -> None:
        if not kept.all():
            self.query, self._position = self.query[kept], self._position[kept]
            self._possible = [span.only(kept) for span in self._possible]

    def _truncated(self, shorter: Hashes, sources: Ints, length: int) -> None:
        """Count the layers of ``sources``, whose contexts are truncated, as possible."""
        context = _at(shorter, sources, self._shift(length))
        sources, context = sources[context != 0], context[context != 0]
        if not len(sources) or not len(self.query):
            return
        facts = [fact[sources] for fact in self._facts]
        own = _at(shorter, self._position, self._shift(length))
        _, spans = _spans(own, context, sources, facts)
        self._possible = [
            span.with_also(possible) for span, possible in zip(spans, self._possible, strict=True)
        ]


def _at(run: Hashes, position: Ints, shift: int) -> Hashes:
    """Return the hash of the runs that begin ``shift`` before each ``position``, which are in
    order; 0 before the first.

    A run ends within its stream, so a run that reaches an activity is of the same stream.
    """
    found = np.zeros(len(position), dtype=np.uint64)
    for begin in range(int(np.searchsorted(position, shift)), len(position), _BLOCK):
        end = begin + _BLOCK
        found[begin:end] = run[position[begin:end] - shift]
    return found


class _Span(NamedTuple):
    """The least and the greatest possible layer of each query; :data:`_ABOVE` and NONE without."""

    least: Ints
    most: Ints

    @classmethod
    def none(cls, queries: int) -> _Span:
        return cls(np.full(queries, _ABOVE), np.full(queries, NONE, dtype=np.int64))

    def only(self, kept: Flags) -> _Span:
        return _Span(self.least[kept], self.most[kept])

    def with_also(self, other: _Span) -> _Span:
        return _Span(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


def _spans(
    queries: Hashes, sources: Hashes, position: Ints, facts: Sequence[Ints]
) -> tuple[Ints, list[_Span]]:
    """Return, for each query, the first ``position`` of the sources of the same hash, NONE without
    one, and the span of each of ``facts`` among them."""
    columns = {f"fact{at}": fact for at, fact in enumerate(facts)}
    found = pl.DataFrame({"hash": queries}).join(
        pl.DataFrame({"hash": sources, "first": position, **columns})
        .group_by("hash")
        .agg(
            pl.col("first").min(),
            *(pl.col(name).min().alias(f"{name}_least") for name in columns),
            *(pl.col(name).max().alias(f"{name}_most") for name in columns),
        ),
        on="hash",
        how="left",
        maintain_order="left",
    )
    spans = [
        _Span(
            found[f"{name}_least"].fill_null(_ABOVE).to_numpy(),
            found[f"{name}_most"].fill_null(NONE).to_numpy(),
        )
        for name in columns
    ]
    return found["first"].fill_null(NONE).to_numpy(), spans


def _agreed(answers: list[Ints], fact: Ints) -> Ints:
    """Return the common answer of all views, _DISPUTED where they differ."""
    found = answers[0]
    for other in answers[1:]:
        conflict = (found != NONE) & (other != NONE) & (fact[found] != fact[other])
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
    number of rows of its stream from it on."""

    order: Ints
    symbol: Hashes
    left: Ints

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
        return cls(order, symbol, end[stream[by_stream]] - np.arange(len(order)))


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


def _doubled(run: Hashes, length: int, left: Ints) -> Hashes:
    """Return the hash of each run of ``2 * length``, from those of ``length``.

    ``left`` is the number of rows of the stream from each position on.
    """
    doubled = np.zeros(len(run), dtype=np.uint64)
    many = max(len(run) - length, 0)
    doubled[:many] = _mixed(run[:many], run[length:])
    doubled[left < 2 * length] = 0
    return doubled


def _mixed(first: Hashes, second: Hashes) -> Hashes:
    """Return hashes of pairs, never 0: the finalizer of MurmurHash3 between two multiplications."""
    mixed = np.empty_like(first)
    for begin in range(0, len(first), _BLOCK):
        block = mixed[begin : begin + _BLOCK]
        np.multiply(first[begin : begin + _BLOCK], np.uint64(0x9E3779B97F4A7C15), out=block)
        block ^= block >> np.uint64(32)
        block += second[begin : begin + _BLOCK]
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            block ^= block >> np.uint64(33)
            block *= np.uint64(factor)
        block ^= block >> np.uint64(33)
        block[block == 0] = 1
    return mixed
