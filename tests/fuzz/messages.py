"""Changed runs of XPlane events: the compiled scanner beside Python (``tests.fuzz.scanner``)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.fuzz.space import encoded, parsed, varint, walked

if TYPE_CHECKING:
    from traceana.readers.xplane.scan import Blocks

WANTED: Final = range(1, 40)
DECLARED: Final = range(1, 80)
_TOGETHER: Final = 2_000
"""Runs that are decoded at once, as the lines of a plane are."""
_SIZES: Final = (0, 1, 2, 5, 127, 128, 300, 1 << 14, 1 << 32, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
_PIECES: Final = (
    *(b"\x08", b"\x10", b"\x18", b"\x22", b"\x28", b"\x22\x00", b"\x22\x80\x00", b"\x00", b"\x80"),
    *(b"\xff" * 9, b"\xff" * 10, b"\xff" * 11, b"\x80" * 10 + b"\x01", b"\x80" * 9 + b"\x02"),
    *(b"\x0b\x01", b"\x03\x01", b"\x11" + bytes(8), b"\x15" + bytes(4), b"\x1a\x02ab", b"\xa2\x01"),
    *(b"\x28\x03", b"\x32\x01\x00", b"\x08\x05\x08\x06", b"\x22\x02\x08\x01"),
    b"\x22\x04\x08\x01\x18\x07",
)  # fmt: skip


class ChangedRuns:
    """Runs of events as profilers write them, with changes, by a number alone."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"messages:{seed}")
        self._events = _events()

    def __iter__(self) -> Iterator[bytes]:
        rng = self._rng
        while True:
            run = bytearray()
            for event in rng.choices(self._events, k=rng.choice((1, 2, 5, 9))):
                run += self._event(event) if rng.random() < 0.5 else event
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                self._change(run)
            yield bytes(run)

    def _event(self, event: bytes) -> bytes:
        """Return the event with another value, field or order of fields, its lengths right."""
        fields = parsed(event, "line")
        holder, chosen = self._rng.choice(list(walked(fields)))
        match self._rng.randrange(5):
            case 0:
                holder.remove(chosen)
            case 1:
                holder.insert(self._rng.randrange(len(holder) + 1), chosen)
            case 2:
                self._rng.shuffle(holder)
            case 3:
                chosen.number = self._rng.randrange(1, 20)
            case _ if isinstance(chosen.value, int):
                chosen.value = self._rng.choice((*_SIZES, self._rng.randrange(90)))
        return encoded(fields)

    def _change(self, run: bytearray) -> None:
        rng = self._rng
        at = rng.randrange(len(run) + 1)
        match rng.randrange(4):
            case 0:
                del run[at : at + rng.choice((1, 1, 2, 7))]
            case 1:
                run[at:at] = rng.choice(_PIECES)
            case 2:
                run[at:at] = varint(rng.choice(_SIZES))
            case _:
                run[at : at + 1] = bytes([rng.randrange(256)])


def _events() -> list[bytes]:
    """Return events of the seeds, each with the tag and the length that it has in a line."""
    from tests.fuzz import xplane_seeds

    found: dict[bytes, None] = {}
    for content in (xplane_seeds.training(), xplane_seeds.gpu_with_program()):
        for _, one in walked(parsed(content)):
            if one.kind == "event":
                found[encoded([one])] = None
    return [*found]


@dataclass
class Tally:
    """What became of the runs."""

    runs: int = 0
    events: int = 0
    stopped: int = 0
    """Runs that end before their last byte."""
    damaged: int = 0


def compared(runs: Iterator[bytes]) -> Tally:
    """Decode ``runs`` both ways; raises ``AssertionError`` where they differ."""
    tally = Tally()
    while some := list(islice(runs, _TOGETHER)):
        tally.runs += len(some)
        same(some, tally)
    return tally


def same(runs: list[bytes], tally: Tally) -> None:
    """Compare what both decoders make of ``runs``, and count it."""
    from traceana.readers.xplane.decode import SortedIds
    from traceana.readers.xplane.scan import Decoded, Scanned
    from traceana.readers.xplane.wire import Buffer

    buffer = Buffer.of(runs)
    end = np.cumsum([len(run) for run in runs], dtype=np.int64)
    begin = end - np.array([len(run) for run in runs], dtype=np.int64)
    ids = SortedIds(WANTED), SortedIds(DECLARED)
    found, want = Scanned(buffer, begin, end, *ids), Decoded(buffer, begin, end, *ids)
    events, expected = rows(found), rows(want)
    if events != expected or found.stop.tolist() != want.stop.tolist():
        half = len(runs) // 2
        if not half:
            raise AssertionError(f"the decoders differ: {runs[0]!r}")
        same(runs[:half], Tally())
        same(runs[half:], Tally())
        raise AssertionError(f"the decoders differ on runs together: {runs!r}")
    tally.events += len(events)
    tally.stopped += int((want.stop < end).sum())
    tally.damaged += sum(one[1] is False for one in expected)


def rows(blocks: Blocks) -> list[tuple[object, ...]]:
    """Return each event as a tuple; the last value is its stats by index, empty if damaged."""
    found: list[tuple[object, ...]] = []
    for _, some in blocks:
        for events, stats in some:
            own: list[dict[int, tuple[int, ...]]] = [{} for _ in range(len(events))]
            columns = (stats.owner, stats.index, stats.kind, stats.value, stats.length)
            for owner, index, *value in zip(*(one.tolist() for one in columns), strict=True):
                own[owner][index] = tuple(value)
            numbers = (events.run, events.metadata_id, events.offset_ps, events.duration_ps)
            flags = (events.aggregate, events.sound)
            each = zip(*(one.tolist() for one in (*numbers, *flags)), own, strict=True)
            # Of a damaged event nothing is used.
            found += [one if one[-2] else (one[0], False, None) for one in each]
    return found
