"""Integers, chains of lengths and messages, against a walk of one at a time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.xplane.writing import message, number, varint
from traceana.ingest.xplane import wire as runs_module
from traceana.ingest.xplane.decode import (
    DURATION_PS,
    METADATA_ID,
    OCCURRENCES,
    OFFSET_PS,
    Known,
    any_events,
    any_stats,
    events,
)
from traceana.ingest.xplane.wire import Buffer, Records, Runs

pytestmark = pytest.mark.slow

MOST = (1 << 64) - 1
NUMBERS = (METADATA_ID, OFFSET_PS, DURATION_PS, OCCURRENCES)
Decoded = tuple[int, int, int, bool, dict[int, object]] | None

INT64 = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_varints_of_every_length(values: list[int]) -> None:
    encoded = [varint(value) for value in values]
    starts = [0, *accumulate(map(len, encoded))][:-1]
    found, lengths = Buffer.of([b"".join(encoded)]).varints(np.array(starts))
    assert found.tolist() == values
    assert lengths.tolist() == [len(each) for each in encoded]


def test_a_varint_that_does_not_end_is_too_long() -> None:
    _, lengths = Buffer.of([b"\xff" * 12]).varints(np.array([0]))
    assert lengths.tolist() == [11]


STATS = st.lists(st.tuples(st.integers(1, 200), INT64), max_size=4)
EVENTS = st.lists(st.tuples(st.integers(1, 400), INT64, INT64, STATS), max_size=60)

Message = tuple[int, int, int, list[tuple[int, int]]]


def encoded_event(metadata: int, offset: int, duration: int, stats: list[tuple[int, int]]) -> bytes:
    content = number(1, metadata) + number(2, offset) + number(3, duration)
    content += b"".join(message(4, number(1, key) + number(4, value)) for key, value in stats)
    return message(4, content)


def decoded(
    buffer: Buffer, records: Iterable[Records], wanted: Known, declared: Known
) -> list[Decoded]:
    """Return (id, offset, duration, stands for several, stats by id) of each event, None if bad."""
    found: list[Decoded] = []
    for part in records:
        for block, stats in events(buffer, part, wanted, declared):
            keyed: list[dict[int, object]] = [{} for _ in block.run]
            for owner, index, kind, value, length in zip(
                stats.owner, stats.index, stats.kind, stats.value, stats.length, strict=True
            ):
                key = int(wanted.numbers[index])
                keyed[owner][key] = (int(kind), int(value), int(length))
            found += [
                (int(metadata), int(offset), int(duration), bool(several), own) if sound else None
                for metadata, offset, duration, several, sound, own in zip(
                    block.metadata_id,
                    block.offset_ps,
                    block.duration_ps,
                    block.aggregate,
                    block.sound,
                    keyed,
                    strict=True,
                )
            ]
    return found


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.binary(max_size=5), st.sampled_from([16, 40, 100, 8192]))
def test_events_come_out_as_they_went_in(
    wanted: list[Message], before: bytes, stretch: int
) -> None:
    encoded = [encoded_event(*event) for event in wanted]
    content = before + b"".join(encoded)
    buffer = Buffer.of([content])
    with pytest.MonkeyPatch.context() as patch:
        # Stretches shorter than an event: guesses go wrong, records jump over stretches.
        patch.setattr(runs_module, "_STRETCH", stretch)
        patch.setattr(runs_module, "_AT_ONCE", 7)
        runs = Runs(buffer, np.array([len(before)]), np.array([len(content)]))
        records = list(runs)
    starts = [len(before) + end for end in accumulate(map(len, encoded), initial=0)]
    assert [at for part in records for at in part.at.tolist()] == starts[:-1]
    assert runs.stop.tolist() == [len(content)]
    every = Known(range(201))
    assert decoded(buffer, records, every, every) == [
        (metadata, offset, duration, False, {k: (4, v & MOST, 0) for k, v in stats})
        for metadata, offset, duration, stats in wanted
    ]


VARINTS = st.one_of(
    INT64.map(varint),
    st.integers(0, 127).map(lambda n: bytes([n | 0x80, 0])),  # longer than it need be
)
STAT_FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 1, 3, 4, 7, 9]), VARINTS).map(
        lambda f: bytes([f[0] << 3]) + f[1]
    ),
    st.binary(min_size=8, max_size=8).map(lambda bits: b"\x11" + bits),
    st.binary(max_size=4).map(lambda text: message(5, text)),
    st.binary(max_size=130).map(lambda text: message(6, text)),
    st.binary(max_size=3),
)
STAT = st.lists(STAT_FIELDS, max_size=3).map(lambda parts: message(4, b"".join(parts)))
EVENT_FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3, 5, 6]), VARINTS).map(lambda f: bytes([f[0] << 3]) + f[1]),
    STAT,
    st.integers(1, 9).map(lambda key: message(4, number(1, key) + number(4, key * 7))),
    st.binary(max_size=2),
)
ANY_EVENT = st.one_of(
    st.lists(EVENT_FIELDS, max_size=5).map(b"".join),
    st.tuples(INT64, INT64, st.lists(STAT, max_size=3)).map(
        lambda f: number(1, 5) + number(2, f[0]) + number(3, f[1]) + b"".join(f[2])
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ANY_EVENT, max_size=30))
def test_messages_of_any_shape_equal_the_general_decoder(contents: list[bytes]) -> None:
    encoded = [message(4, content) for content in contents]
    content = b"".join(encoded)
    buffer = Buffer.of([content])
    wanted, declared = Known(range(64)), Known(range(100))
    ends = np.array(list(accumulate(map(len, encoded))), dtype=np.int64)
    starts = ends - np.array([len(each) for each in contents], dtype=np.int64)
    at = ends - np.array([len(each) for each in encoded], dtype=np.int64)
    whole = Records(at, np.zeros(len(at), dtype=np.int64), len(content))
    found = any_events(buffer, starts, ends)
    stats = any_stats(buffer, found.start, found.end)
    # A stat begins with its id; stats that are declared and not wanted are not decoded.
    leading = buffer.varints(found.start + 1)[0].view(np.int64)
    passed = (declared.indices(leading) < len(declared)) & (wanted.indices(leading) == len(wanted))
    judged = ~passed | (buffer.data[found.start] != METADATA_ID) | (found.start == found.end)
    sound = found.sound.copy()
    sound[found.owner[judged & ~stats.sound]] = False
    expected: list[Decoded] = []
    for i in range(len(contents)):
        own: dict[int, object] = {
            int(stats.metadata_id[j]): (
                int(stats.kind[j]),
                int(stats.value[j]),
                int(stats.length[j]),
            )
            for j in np.flatnonzero(judged & (found.owner == i))
            if 0 <= stats.metadata_id[j] < 64
        }
        metadata, offset, duration, several = (found.numbers[tag][i] for tag in NUMBERS)
        expected.append(
            (int(metadata), int(offset), int(duration), bool(several), own) if sound[i] else None
        )
    assert decoded(buffer, [whole], wanted, declared) == expected


@settings(deadline=None)
@given(EVENTS.filter(bool), st.data())
def test_a_run_that_is_cut_stops_before_the_cut_event(
    wanted: list[Message], data: st.DataObject
) -> None:
    encoded = [encoded_event(*event) for event in wanted]
    content = b"".join(encoded)
    size = data.draw(st.integers(1, len(content) - 1))
    found = Runs(Buffer.of([content[:size]]), np.array([0]), np.array([size]))
    count = sum(len(part.at) for part in found)
    ends = [0, *accumulate(map(len, encoded))]
    assert count == sum(end <= size for end in ends) - 1
    assert found.stop.tolist() == [max(end for end in ends if end <= size)]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(content: bytes) -> None:
    buffer = Buffer.of([content])
    for records in Runs(buffer, np.array([0]), np.array([len(content)])):
        assert records.till <= len(content)
        known = Known(range(10))
        assert len(decoded(buffer, [records], known, known)) == len(records.at)


@given(st.sets(st.integers(-3, 2**40)), st.lists(st.integers(-5, 2**41)))
def test_numbers_are_found_among_those_known(numbers: set[int], sought: list[int]) -> None:
    indices = Known(numbers).indices(np.array(sought, dtype=np.int64))
    ordered = sorted(numbers)
    assert indices.tolist() == [
        ordered.index(each) if each in numbers else len(ordered) for each in sought
    ]
