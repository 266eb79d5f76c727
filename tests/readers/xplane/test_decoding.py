"""The decoder in Python against protobuf's own classes."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.messages import rows
from tests.readers.xplane.writing import message, number, varint
from traceana.readers.messages import message_classes
from traceana.readers.xplane.decode import SortedIds
from traceana.readers.xplane.scan import Decoded
from traceana.readers.xplane.wire import Buffer

CLASSES: Final = message_classes(
    "decoding",
    {
        "Stat": {
            "metadata_id": (1, "int64"),
            "double": (2, "fixed64"),
            "unsigned": (3, "uint64"),
            "signed": (4, "int64"),
            "text": (5, "bytes"),
            "raw": (6, "bytes"),
            "reference": (7, "uint64"),
        },
        "Event": {
            "metadata_id": (1, "int64"),
            "offset_ps": (2, "int64"),
            "duration_ps": (3, "int64"),
            "stats": (4, ["Stat"]),
            "occurrences": (5, "int64"),
        },
    },
)
KINDS: Final = ("double", "unsigned", "signed", "text", "raw", "reference")
MOST: Final = (1 << 64) - 1

INT64 = st.one_of(st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
VARINTS = st.one_of(
    INT64.map(varint),
    st.integers(0, 127).map(lambda n: bytes([n | 0x80, 0])),  # longer than it need be
)
STAT_FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 1, 3, 4, 7, 9]), VARINTS).map(
        lambda field: bytes([field[0] << 3]) + field[1]
    ),
    st.binary(min_size=8, max_size=8).map(lambda bits: b"\x11" + bits),
    st.binary(max_size=4).map(lambda text: message(5, text)),
    st.binary(max_size=130).map(lambda text: message(6, text)),
)
STAT = st.lists(STAT_FIELDS, max_size=3).map(lambda parts: message(4, b"".join(parts)))
EVENT_FIELDS = st.one_of(
    st.tuples(st.sampled_from([1, 2, 3, 5, 6]), VARINTS).map(
        lambda field: bytes([field[0] << 3]) + field[1]
    ),
    STAT,
    st.integers(1, 9).map(lambda key: message(4, number(1, key) + number(4, key * 7))),
)
EVENT = st.lists(EVENT_FIELDS, max_size=5).map(b"".join)


def decoded(content: bytes) -> tuple[Buffer, Decoded]:
    """Return the decoder of one run, which wants the stats 0 to 63; 64 to 99 are declared."""
    buffer = Buffer.of([content])
    whole = np.array([0], dtype=np.int64), np.array([len(content)], dtype=np.int64)
    return buffer, Decoded(buffer, *whole, SortedIds(range(64)), SortedIds(range(100)))


def value_of(stat: Any) -> tuple[int, int | bytes]:
    """Return the field of a stat's value that was set last, and the value."""
    set_ = [kind for kind in KINDS if stat.HasField(kind)]
    if not set_:
        return 0, 0
    value = getattr(stat, set_[0])
    return KINDS.index(set_[0]) + 2, value if isinstance(value, bytes) else value & MOST


@settings(deadline=None)
@given(st.lists(EVENT, max_size=20))
def test_events_of_any_order_are_those_of_protobuf(contents: list[bytes]) -> None:
    run = b"".join(message(4, content) for content in contents)
    buffer, found = decoded(run)
    events: list[Any] = rows(found)
    assert found.stop.tolist() == [len(run)]
    assert len(events) == len(contents)
    for content, (_, metadata_id, offset, duration, several, sound, stats) in zip(
        contents, events, strict=True
    ):
        want = CLASSES["Event"].FromString(content)
        assert (metadata_id, offset, duration) == (
            want.metadata_id,
            want.offset_ps,
            want.duration_ps,
        )
        assert (several, sound) == (want.occurrences != 0, True)
        wanted: dict[int, tuple[int, int | bytes]] = {}
        for stat in want.stats:
            # Of several values of a stat protobuf keeps each; which was last is not known.
            if 0 <= stat.metadata_id < 64 and sum(map(stat.HasField, KINDS)) < 2:
                wanted[stat.metadata_id] = value_of(stat)
        own = {
            index: (kind, bytes(buffer.view[value : value + length]) if kind in (5, 6) else value)
            for index, (kind, value, length) in stats.items()
        }
        several_values = {s.metadata_id for s in want.stats if sum(map(s.HasField, KINDS)) > 1}
        for index in own.keys() - several_values:
            assert own[index] == wanted[index]


@settings(deadline=None)
@given(st.lists(EVENT, min_size=1, max_size=20), st.data())
def test_a_run_that_is_cut_stops_before_the_cut_event(
    contents: list[bytes], data: st.DataObject
) -> None:
    encoded = [message(4, content) for content in contents]
    size = data.draw(st.integers(1, sum(map(len, encoded)) - 1))
    _, found = decoded(b"".join(encoded)[:size])
    ends = [0, *accumulate(map(len, encoded))]
    assert len(rows(found)) == sum(end <= size for end in ends) - 1
    assert found.stop.tolist() == [max(end for end in ends if end <= size)]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(content: bytes) -> None:
    _, found = decoded(content)
    rows(found)
    assert found.stop.tolist()[0] <= len(content)


@given(st.sets(st.integers(-3, 2**40)), st.lists(st.integers(-5, 2**41)))
def test_numbers_are_found_among_those_known(numbers: set[int], sought: list[int]) -> None:
    indices = SortedIds(numbers).indices(np.array(sought, dtype=np.int64))
    ordered = sorted(numbers)
    assert indices.tolist() == [
        ordered.index(each) if each in numbers else len(ordered) for each in sought
    ]
