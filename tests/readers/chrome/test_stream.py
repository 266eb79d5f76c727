"""The same events are read from any layout of the file and any blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.readers.kineto.equal import assert_equal
from traceana.readers.chrome.event_decoder import EventDecoder
from traceana.readers.chrome.stream import Document, read_document
from traceana.readers.kineto import scan
from traceana.readers.kineto.decode import DECODER, Columns, Event
from traceana.readers.kineto.decode import columns_of as events_columns

# Names that look like the seams that the splitter looks for.
NAMES = st.sampled_from(["k", '}, {"', '"}, {"ph": "X"', "a\\", "{[", "]}", '\\"', "é", ""])
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "cat": st.just("kernel"), "name": NAMES, "ts": st.integers(1, 10**15)},
        optional={
            "dur": st.integers(0, 10**6),
            "args": st.fixed_dictionaries(
                {}, optional={"x": st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=3)}
            ),
        },
    ),
    max_size=12,
)


def read_by(
    decoder: EventDecoder[Any, Columns], text: bytes, size: int
) -> tuple[Columns, Document]:
    """Read ``text`` in blocks of ``size`` bytes."""
    blocks = iter([text[i : i + size] for i in range(0, len(text), size)])
    columns = Columns()
    return columns, read_document(blocks, decoder, columns.take)


class Ahead(EventDecoder[Any, Columns]):
    """Decodes in two threads, as the compiled scanner does."""

    threads = 2


AHEAD = Ahead(Event, events_columns)


def columns_of(text: bytes, size: int) -> tuple[Columns, Document]:
    """Read ``text``; decoding while later blocks are read gives the same."""
    columns, document = read_by(DECODER, text, size)
    for decoder in (AHEAD, scan.DECODER):
        others, other = read_by(decoder, text, size)
        assert other == document
        assert_equal(others, columns)
    return columns, document


@pytest.mark.slow
@settings(max_examples=50)
@given(
    EVENTS,
    st.sampled_from([None, 1]),
    st.integers(1, 400),
    st.sampled_from(["first", "last", "bare"]),
)
def test_all_events_come_out(
    events: list[dict[str, Any]], indent: int | None, size: int, place: str
) -> None:
    around = {"deviceProperties": [{"id": 0}, {"name": '"traceEvents": ['}]}
    document: Any = {
        "first": {"traceEvents": events, **around},
        "last": {**around, "traceEvents": events},
        "bare": events,
    }[place]
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    columns, document = columns_of(text, size)
    assert document.whole and not document.cut and not document.problems
    assert columns.events == len(events)
    assert not columns.left_out and not columns.repaired
    device = columns.frame("device")
    assert device["name"].cast(str).to_list() == [event["name"] for event in events]
    assert device["start"].to_list() == [event["ts"] * 1000 for event in events]
    if place != "bare":
        assert document.keys == around


@settings(max_examples=50)
@given(EVENTS.filter(bool), st.integers(1, 300), st.data())
def test_what_is_whole_before_a_cut_is_kept(
    events: list[dict[str, Any]], size: int, data: st.DataObject
) -> None:
    text = json.dumps({"traceEvents": events}).encode()
    begin = text.index(b"[") + 1
    cut = data.draw(st.integers(begin, len(text) - 1))
    columns, document = columns_of(text[:cut], size)
    assert not document.whole
    ends = []
    for event in events:
        begin = text.index(b"{", begin) + len(json.dumps(event))
        ends.append(begin)
    complete = sum(end <= cut for end in ends)
    assert columns.events == complete
    assert columns.frame("device").height == complete


@pytest.mark.slow
@settings(max_examples=40)
@given(EVENTS.filter(bool), st.integers(1, 300), st.data())
def test_damage_is_read_alike_where_stretches_are_decoded_ahead(
    events: list[dict[str, Any]], size: int, data: st.DataObject
) -> None:
    text = bytearray(json.dumps({"traceEvents": events * 3}).encode())
    begin = text.index(b"[") + 1
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(begin, len(text) - 1))
        text[at : at + 1] = data.draw(
            st.sampled_from([b"", b"]", b"}", b'"', b",", b"NaN", b"\x00"])
        )
    # Each stretch that is not as it seemed is read again: the time goes with the blocks' square.
    columns_of(bytes(text), max(size, len(text) // 60))


def test_one_bad_event_does_not_take_its_neighbours_along() -> None:
    good = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 1}'
    bad = '{"ph": "X", "cat": "kernel", "name": "k", "ts": , "dur": 1}'
    mended = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 6, "dur": NaN}'
    text = f'{{"traceEvents": [{good}, {bad}, {mended}, {good}]}}'.encode()
    for size in (1, 50, 10_000):
        columns, document = columns_of(text, size)
        assert document.whole
        assert columns.events == 4
        assert columns.left_out == {("malformed", ""): 1}
        assert columns.repaired == 1
        assert columns.frame("device")["duration"].to_list() == [1000, None, 1000]
