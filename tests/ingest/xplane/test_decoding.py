"""Integers, chains of lengths and messages, against a walk of one at a time."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.xplane.writing import message, number, varint
from traceana.ingest.xplane import runs as runs_module
from traceana.ingest.xplane.buffer import Buffer
from traceana.ingest.xplane.decode import events
from traceana.ingest.xplane.runs import Records, Runs

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


def encoded_event(metadata: int, offset: int, duration: int, stats: list[tuple[int, int]]) -> bytes:
    content = number(1, metadata) + number(2, offset) + number(3, duration)
    content += b"".join(message(4, number(1, key) + number(4, value)) for key, value in stats)
    return message(4, content)


@settings(max_examples=300, deadline=None)
@given(EVENTS, st.binary(max_size=5), st.sampled_from([16, 40, 100, 8192]))
def test_events_come_out_as_they_went_in(
    wanted: list[tuple[int, int, int, list[tuple[int, int]]]], before: bytes, stretch: int
) -> None:
    encoded = [encoded_event(*event) for event in wanted]
    content = before + b"".join(encoded)
    buffer = Buffer.of([content])
    with pytest.MonkeyPatch.context() as patch:
        # Stretches shorter than an event: guesses go wrong, records jump over stretches.
        patch.setattr(runs_module, "_STRETCH", stretch)
        patch.setattr(runs_module, "_AT_ONCE", 7)
        found = Runs(buffer, np.array([len(before)]), np.array([len(content)]))
        records = list(found)
    starts = np.concatenate([part.start for part in records])
    ends = np.concatenate([part.end for part in records])
    assert ends.tolist() == [len(before) + end for end in accumulate(map(len, encoded))]
    assert found.stop.tolist() == [len(content)]
    every = np.arange(201)
    whole = Records(starts, ends, np.zeros(len(starts), dtype=np.int64))
    decoded = list(events(buffer, whole, every))
    assert [
        (*fields, True)
        for part in decoded
        for fields in zip(part.metadata_id, part.offset_ps, part.duration_ps, strict=True)
        if part.sound.all()
    ] == [(metadata, offset, duration, True) for metadata, offset, duration, _ in wanted]
    stats = sorted(
        (int(owner), int(key), int(value))
        for part in decoded
        for owner, key, value in zip(
            part.stats.owner, part.stats.metadata_id, part.stats.value.view(np.int64), strict=True
        )
    )
    assert stats == sorted(
        (i, key, value) for i, event in enumerate(wanted) for key, value in event[3]
    )


@settings(deadline=None)
@given(EVENTS.filter(bool), st.data())
def test_a_run_that_is_cut_stops_before_the_cut_event(
    wanted: list[tuple[int, int, int, list[tuple[int, int]]]], data: st.DataObject
) -> None:
    encoded = [encoded_event(*event) for event in wanted]
    content = b"".join(encoded)
    size = data.draw(st.integers(1, len(content) - 1))
    found = Runs(Buffer.of([content[:size]]), np.array([0]), np.array([size]))
    count = sum(len(part.start) for part in found)
    ends = [0, *accumulate(map(len, encoded))]
    assert count == sum(end <= size for end in ends) - 1
    assert found.stop.tolist() == [max(end for end in ends if end <= size)]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(content: bytes) -> None:
    buffer = Buffer.of([content])
    found = Runs(buffer, np.array([0]), np.array([len(content)]))
    for records in found:
        assert (records.end <= len(content)).all()
        for part in events(buffer, records, np.arange(10)):
            assert len(part.metadata_id) == len(part.run)
