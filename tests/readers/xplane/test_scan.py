"""The compiled scanner: the same events as Python's decoder, and the same tables of real files."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from polars.testing import assert_frame_equal

from tests.fuzz.messages import DECLARED, WANTED, ChangedRuns, Tally, rows, same
from tests.readers.xplane.writing import message, number
from tests.support.manifest import FIXTURES, Expected, each
from traceana.readers.compiled import COMPILED
from traceana.readers.source import silent
from traceana.readers.xplane import reader, scan
from traceana.readers.xplane.decode import SortedIds
from traceana.readers.xplane.scan import Scanned
from traceana.readers.xplane.wire import Buffer
from traceana.trace.schema import TABLES

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the scanner is not compiled: python -m tools.build_scanner"
)

IDS = SortedIds(WANTED), SortedIds(DECLARED)


def event(offset: int, *stats: bytes) -> bytes:
    content = number(1, 5) + number(2, offset) + number(3, 7)
    return message(4, content + b"".join(message(4, stat) for stat in stats))


def scanned(content: bytes) -> Scanned:
    whole = np.array([0], dtype=np.int64), np.array([len(content)], dtype=np.int64)
    return Scanned(Buffer.of([content]), *whole, *IDS)


def test_events_and_their_wanted_stats() -> None:
    stats = (
        number(1, 3) + number(4, 9),
        number(1, 50) + number(4, 1),
        number(1, 4) + b"\x2a\x02ab",
    )
    content = event(1000, *stats) + event(2000)
    of_text = content.index(b"ab")
    assert rows(scanned(content)) == [
        (0, 5, 1000, 7, False, True, {2: (4, 9, 0), 3: (5, of_text, 2)}),
        (0, 5, 2000, 7, False, True, {}),
    ]


@pytest.mark.parametrize("events_", [1, 2, 3, 50])
def test_blocks_of_any_size_hold_the_same_events(
    events_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run for run, _ in zip(ChangedRuns(3), range(40), strict=False)]
    monkeypatch.setattr(scan, "_EVENTS", events_)
    same(runs, Tally())


def test_as_many_stats_as_a_block_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_STATS", 4_096)
    stat = number(1, 3) + number(4, 9)
    same([event(1, *[stat] * 4_000), event(2, *[stat] * 4_096), event(3, *[stat] * 90)], Tally())


def test_an_integer_that_goes_on_beyond_the_file_reads_nothing_behind_it() -> None:
    for cut in range(1, 12):
        same([event(1), b"\x22\x20\x08" + b"\xff" * cut], Tally())


def test_arrays_that_do_not_fit_are_refused() -> None:
    found = scanned(event(1))
    found._end = np.array([10**9], dtype=np.int64)
    with pytest.raises(ValueError, match="do not fit"):
        list(found)


def assert_read_alike(file: Path) -> None:
    """Assert that the scanner and Python make the same tables of ``file``."""
    found = reader.read(file, silent)
    with mock.patch.object(scan, "COMPILED", new=False):
        want = reader.read(file, silent)
    for table in TABLES:
        assert_frame_equal(found.tables[table], want.tables[table])
    assert found.meta == want.meta


@pytest.mark.parametrize("file", sorted(FIXTURES.glob("xplane/*.pb")), ids=lambda path: path.name)
def test_our_own_recordings(file: Path) -> None:
    assert_read_alike(file)


@pytest.mark.slow
@each("xplane")
def test_recordings_of_others(want: Expected) -> None:
    assert_read_alike(want.path)
