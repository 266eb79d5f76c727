"""Work without a launch is placed by the same work elsewhere, or not at all."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.support.traces import TraceBuilder
from traceana.columns.nesting import NONE
from traceana.match.repetition import Repetitions


def stream(names: str, stream: int = 7, builder: TraceBuilder | None = None) -> TraceBuilder:
    """Add a kernel a letter, in order, to one stream."""
    b = builder or TraceBuilder()
    for i, letter in enumerate(names):
        b.kernel(letter, 100 * i, 10, stream=stream, grid_x=1, grid_y=1, grid_z=1)
    return b


def place(b: TraceBuilder, known: list[int]) -> list[int]:
    """Return the source of every activity with an unknown layer."""
    facts = np.array(known, dtype=np.int64)
    (found,) = Repetitions(b.build().tables.activities).sources([facts], pl.Series(facts == NONE))
    return [int(one) for one in found]


def by_looking(streams: list[str], known: list[int]) -> list[int]:
    """Return the source of every activity with an unknown layer, by comparing all contexts."""
    everywhere = [(which, at) for which, names in enumerate(streams) for at in range(len(names))]
    fact = dict(zip(everywhere, known, strict=True))

    def context(of: tuple[int, int], shift: int, length: int) -> str | None:
        begin, names = of[1] - shift, streams[of[0]]
        return names[begin : begin + length] if 0 <= begin <= len(names) - length else None

    def source(of: tuple[int, int]) -> int:
        result: int | None = None
        possible: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
        for length in (2**n for n in range(1, 13)):
            answers: list[tuple[int, set[int]]] = []
            half = length // 2
            for view, (shift, before) in enumerate(
                ((0, 0), (length - 1, half - 1), (half, half // 2))
            ):
                own, shorter = context(of, shift, length), context(of, before, half)
                sources = [one for one in everywhere if fact[one] != NONE]
                if shorter is not None:
                    possible[view] |= {
                        fact[one]
                        for one in sources
                        if context(one, shift, length) is None
                        and context(one, before, half) == shorter
                    }
                same = [one for one in sources if own and context(one, shift, length) == own]
                if same:
                    first = min(everywhere.index(one) for one in same)
                    answers.append((first, {fact[one] for one in same} | possible[view]))
            if length >= 8 and answers:
                layers = set().union(*(of_view for _, of_view in answers))
                result = answers[0][0] if len(layers) == 1 else None
        return NONE if result is None else result

    return [source(one) if fact[one] == NONE else NONE for one in everywhere]


@given(
    st.lists(st.text("ab", max_size=9), min_size=1, max_size=5),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.data(),
)
def test_the_sources_are_those_found_by_looking(
    blocks: list[str], order: list[int], data: st.DataObject
) -> None:
    streams = ["".join(blocks) * 3, "".join(blocks[which % len(blocks)] * 3 for which in order)]
    b = stream(streams[0], stream=7)
    stream(streams[1], stream=8, builder=b)
    length = sum(map(len, streams))
    known = data.draw(st.lists(st.integers(-1, 2), min_size=length, max_size=length))
    assert place(b, known) == by_looking(streams, known)


def test_the_same_position_of_another_step_is_the_source() -> None:
    known = [NONE] * 10 + [*range(10)] * 2
    assert place(stream("abcabadeff" * 3), known) == [*range(10, 20)] + [NONE] * 20


def test_conflicting_repetitions_give_no_layer() -> None:
    # Equal blocks follow each other: the number of the first one is ambiguous.
    assert place(stream("abcd" * 9), [NONE] * 4 + list(range(32)))[:4] == [NONE] * 4


def test_a_short_repetition_gives_no_layer() -> None:
    assert place(stream("abcxyz" + "uvabwr"), [NONE] * 6 + list(range(6)))[:6] == [NONE] * 6


def test_another_stream_is_another_sequence() -> None:
    # Contexts are compared across streams, but never run from one into the next.
    b = stream("abcdefghij" * 2, stream=7)
    stream("abcdefghij" * 2, stream=8, builder=b)
    known = [NONE] * 20 + [*range(10)] * 2
    assert [known[source] for source in place(b, known)[:20]] == [*range(10)] * 2
    b = stream("abcd", stream=7)
    for number, names in enumerate(["efgh", "abcd", "efgh"]):
        stream(names, stream=8 + number, builder=b)
    assert place(b, [NONE] * 8 + list(range(8)))[:8] == [NONE] * 8


def test_sizes_count_where_they_are_on_record() -> None:
    b = TraceBuilder()
    for i, size in enumerate([*range(8), 0, 1, 2, 3, 4, 5, 6, 9]):
        b.kernel("k", 100 * i, 10, stream=7, grid_x=size, grid_y=1, grid_z=1)
    assert place(b, [NONE] * 8 + list(range(8)))[:8] == [NONE] * 8


@given(
    st.lists(st.sampled_from(["abc", "ab", "d", "ee"]), min_size=2, max_size=12),
    st.integers(1, 4),
    st.data(),
)
def test_inferred_layers_are_correct_in_a_periodic_run(
    blocks: list[str], steps: int, data: st.DataObject
) -> None:
    """However much of the beginning is missing: with a whole step known, no answer is wrong."""
    step = "".join(blocks)
    missing = data.draw(st.integers(1, len(step) * steps))
    truth = list(range(len(step))) * (steps + 1)
    known = [NONE] * missing + truth[missing:]
    for position, source in enumerate(place(stream(step * (steps + 1)), known)[:missing]):
        assert source == NONE or known[source] == truth[position]
