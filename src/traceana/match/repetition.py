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
_AMBIGUOUS: Final = -2
_NO_LAYER: Final = np.iinfo(np.int64).max
_BLOCK: Final = 1 << 17
"""Hashes that are computed at a time: temporary arrays of this size stay in the CPU's caches."""


class Repetitions:
    """The device work of a trace by stream and time, for :meth:`sources`."""

    def __init__(self, activities: pl.DataFrame) -> None:
        """Prepare to search ``activities``."""
        self._activities = activities
        self._sequences: dict[tuple[str, ...], _Sequence] = {}

    def sources(self, layers: Sequence[Ints], wanted: pl.Series) -> list[Ints]:
        """Return, for each of ``layers``, the row of an activity at the same position, or NONE.

        Each of ``layers`` has the known layer of each activity (NONE: unknown, the same activities
        in all of them), ``wanted`` selects the activities to infer. Of those for which an earlier
        one of ``layers`` has a source, the later sources are of no use. A context is a run of 2^n
        activities of one stream (n = 3 … 12) that begins with, ends with or surrounds the activity.
        Activities are compared by name, and by grid and bytes if these are recorded without the
        launch (not on ROCm). The longest context that occurs at activities with a known layer
        decides, if all of these agree. If they differ, the result is NONE, because shorter contexts
        are less certain.

        Contexts are compared by hashes of 64 bits. Of n activities, two different contexts of one
        length have the same hash with a probability below n² / 2^64.
        """
        if not wanted.any():
            return [np.full(self._activities.height, NONE, dtype=np.int64) for _ in layers]
        signature = _signature(self._activities.filter(wanted))
        found = self._sources_by_signature(layers, wanted, signature)
        for later in range(1, len(layers)):
            wanted = wanted & pl.Series(found[later - 1] == NONE)
            if not wanted.any():
                break
            # Fewer activities may have more in common.
            rest_signature = _signature(self._activities.filter(wanted))
            if rest_signature != signature:
                found[later:] = self._sources_by_signature(layers[later:], wanted, rest_signature)
                signature = rest_signature
        return found

    def _sources_by_signature(
        self, layers: Sequence[Ints], wanted: pl.Series, signature: tuple[str, ...]
    ) -> list[Ints]:
        """Return :meth:`sources` by contexts of the columns ``signature``."""
        sequence = self._sequence(signature)
        layers_in_order, is_wanted = (
            [position[sequence.order] for position in layers],
            wanted.to_numpy()[sequence.order],
        )
        queries, known_positions = (
            np.flatnonzero(is_wanted),
            np.flatnonzero(layers_in_order[0] != NONE),
        )
        positions = [np.full(len(queries), NONE, dtype=np.int64) for _ in layers_in_order]
        searches = [
            _ContextSearch(shift, layers_in_order, queries, known_positions) for shift in _SHIFTS
        ]
        hashes = sequence.symbol
        length = 1
        while 2 * length <= LONGEST_CONTEXT and any(len(view.query) for view in searches):
            shorter, hashes, length = (
                hashes,
                _double_length(hashes, length, sequence.left),
                2 * length,
            )
            decides = length >= SHORTEST_CONTEXT
            answers = [view.find(shorter, hashes, length, decides=decides) for view in searches]
            for number, layer in enumerate(layers_in_order):
                decided = _agreed_position([row[number] for row in answers], layer)
                positions[number] = np.where(decided == NONE, positions[number], decided)
        results = []
        for position in positions:
            is_found = position >= 0
            row = np.full(self._activities.height, NONE, dtype=np.int64)
            row[sequence.order[queries[is_found]]] = sequence.order[position[is_found]]
            results.append(row)
        return results

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


class _ContextSearch:
    """One position of the activity in its context, and the ranges of layers that are possible.

    A longer context is equal only where the shorter one is: what has no counterpart is left out
    from then on, on both sides. So a search in which nothing repeats ends soon.
    """

    def __init__(
        self, shift: Callable[[int], int], layers: Sequence[Ints], queries: Ints, sources: Ints
    ) -> None:
        self._shift, self._facts = shift, layers
        self._all = len(queries)
        self.query = np.arange(len(queries))
        """The queries that may still find a source."""
        self._position, self._sources = queries, sources
        self._possible = [_LayerSpan.none(len(queries)) for _ in layers]

    def find(self, shorter: Hashes, hashes: Hashes, length: int, *, decides: bool) -> list[Ints]:
        """Return, by each of the facts, the first position with the same context of ``length``,
        NONE, or _DISPUTED.

        An activity whose context is truncated by the end of the stream, and equal up to there, may
        be at the same position. It must agree too, also for all longer contexts. Contexts that do
        not decide are looked up only for that.
        """
        context = _context_hashes(hashes, self._position, self._shift(length))
        self._keep(context != 0)
        context = context[context != 0]
        source_context = _context_hashes(hashes, self._sources, self._shift(length))
        is_complete = source_context != 0
        if not is_complete.all():
            self._truncated(shorter, self._sources[~is_complete], length // 2)
            self._sources, source_context = self._sources[is_complete], source_context[is_complete]
        positions = [np.full(self._all, NONE, dtype=np.int64) for _ in self._facts]
        if not decides:
            return positions
        first, spans, occurs = _spans_by_context(
            context, source_context, self._sources, self._facts
        )
        self._sources = self._sources[occurs]
        matched = first != NONE
        for answer, layer_span, possible in zip(positions, spans, self._possible, strict=True):
            span = layer_span.with_also(possible)
            answer[self.query[matched]] = np.where(span.least == span.most, first, _AMBIGUOUS)[
                matched
            ]
        self._keep(matched)
        return positions

    def _keep(self, kept: Flags) -> None:
        if not kept.all():
            self.query, self._position = self.query[kept], self._position[kept]
            self._possible = [span.only(kept) for span in self._possible]

    def _truncated(self, shorter: Hashes, sources: Ints, length: int) -> None:
        """Count the layers of ``sources``, whose contexts are truncated, as possible."""
        context = _context_hashes(shorter, sources, self._shift(length))
        sources, context = sources[context != 0], context[context != 0]
        if not len(sources) or not len(self.query):
            return
        query_context = _context_hashes(shorter, self._position, self._shift(length))
        _, spans, _ = _spans_by_context(query_context, context, sources, self._facts)
        self._possible = [
            span.with_also(possible) for span, possible in zip(spans, self._possible, strict=True)
        ]


def _context_hashes(run: Hashes, position: Ints, shift: int) -> Hashes:
    """Return the hash of the runs that begin ``shift`` before each ``position``, which are in
    order; 0 before the first.

    A run ends within its stream, so a run that reaches an activity is of the same stream.
    """
    hashes = np.zeros(len(position), dtype=np.uint64)
    for begin in range(int(np.searchsorted(position, shift)), len(position), _BLOCK):
        end = begin + _BLOCK
        hashes[begin:end] = run[position[begin:end] - shift]
    return hashes


class _LayerSpan(NamedTuple):
    """The least and the greatest possible layer of each query; :data:`_NO_LAYER` and NONE
    without."""

    least: Ints
    most: Ints

    @classmethod
    def none(cls, queries: int) -> _LayerSpan:
        return cls(np.full(queries, _NO_LAYER), np.full(queries, NONE, dtype=np.int64))

    def only(self, kept: Flags | Ints) -> _LayerSpan:
        return _LayerSpan(self.least[kept], self.most[kept])

    def with_also(self, other: _LayerSpan) -> _LayerSpan:
        return _LayerSpan(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


def _spans_by_context(
    queries: Hashes, sources: Hashes, position: Ints, layers: Sequence[Ints]
) -> tuple[Ints, list[_LayerSpan], Flags]:
    """Return, for each query, the first ``position`` of the sources of the same hash, NONE without
    one, and the span of each of ``layers`` (by position) among them; and which sources have the
    hash of a query."""
    hashes, hash_of_query = np.unique(queries, return_inverse=True)
    place = np.searchsorted(hashes, sources)
    occurs = np.append(hashes, np.uint64(0))[place] == sources
    place, position = place[occurs], position[occurs]
    first = np.full(len(hashes), NONE, dtype=np.int64)
    # Assigned backwards, so that the first of equal ones stays.
    first[place[::-1]] = position[::-1]
    spans = []
    for layer in layers:
        span = _LayerSpan.none(len(hashes))
        np.minimum.at(span.least, place, layer[position])
        np.maximum.at(span.most, place, layer[position])
        spans.append(span.only(hash_of_query))
    return first[hash_of_query], spans, occurs


def _agreed_position(answers: list[Ints], layer: Ints) -> Ints:
    """Return the common answer of all views, _DISPUTED where they differ."""
    position = answers[0]
    for other in answers[1:]:
        conflict = (position != NONE) & (other != NONE) & (layer[position] != layer[other])
        position = np.where(
            (position == _AMBIGUOUS) | (other == _AMBIGUOUS) | conflict,
            _AMBIGUOUS,
            np.where(position == NONE, other, position),
        )
    return position


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
        stream = _stream_numbers(activities)[rows[in_time]]
        by_stream = np.argsort(stream, kind="stable")
        end = np.cumsum(np.bincount(stream))
        order = rows[in_time[by_stream]]
        symbol = np.zeros(len(order), dtype=np.uint64)
        for name in signature:
            values = activities[name].cast(pl.Int64).fill_null(NONE).to_numpy()[order]
            symbol = _hash_of_pairs(symbol, values.view(np.uint64))
        return cls(order, symbol, end[stream[by_stream]] - np.arange(len(order)))


def _stream_numbers(activities: pl.DataFrame) -> Ints:
    """Return the number of each row's stream, in the order of its columns, null first."""
    number = np.zeros(activities.height, dtype=np.int64)
    for name in _STREAM:
        distinct = activities[name].unique().sort()
        if len(distinct) > 1:
            positions = pl.Series(np.arange(len(distinct)))
            position = activities[name].replace_strict(distinct, positions, return_dtype=pl.Int64)
            number = number * len(distinct) + position.to_numpy()
    if number.max(initial=0) > len(number):
        number = np.unique(number, return_inverse=True)[1]
    # Small numbers are sorted in linear time.
    return number.astype(np.int16) if number.max(initial=0) < np.iinfo(np.int16).max else number


def _double_length(hashes: Hashes, length: int, rows_left: Ints) -> Hashes:
    """Return the hash of each run of ``2 * length``, from the hashes of ``length``.

    ``rows_left`` is the number of rows of the stream from each position on.
    """
    doubled = np.zeros(len(hashes), dtype=np.uint64)
    pairs = max(len(hashes) - length, 0)
    doubled[:pairs] = _hash_of_pairs(hashes[:pairs], hashes[length:])
    doubled[rows_left < 2 * length] = 0
    return doubled


def _hash_of_pairs(first: Hashes, second: Hashes) -> Hashes:
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
