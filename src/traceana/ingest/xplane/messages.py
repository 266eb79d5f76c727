"""What events and their stats are made of: fields, and the columns that hold many of them.

Field numbers are those of ``xplane.proto`` in openxla/xla: XEvent {metadata_id 1, offset_ps 2,
duration_ps 3, stats 4, num_occurrences 5}; XStat {metadata_id 1, double 2, uint64 3, int64 4,
str 5, bytes 6, ref 7}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceana.ingest.xplane.buffer import Bytes, Ints, Mask, Numbers, Words

# Tags: the number of a field and its wire type.
METADATA_ID: Final = 0x08
OFFSET_PS: Final = 0x10
DURATION_PS: Final = 0x18
STAT: Final = 0x22
OCCURRENCES: Final = 0x28

# Kinds of values of a stat: the numbers of their fields.
DOUBLE: Final = 2
UNSIGNED: Final = 3
SIGNED: Final = 4
STRING: Final = 5
BYTES: Final = 6
REFERENCE: Final = 7


@dataclass(frozen=True, slots=True)
class Events:
    """Events of some runs.

    ``sound`` is false for those that are damaged, ``aggregate`` true for those that stand for
    several.
    """

    run: Ints
    metadata_id: Ints
    offset_ps: Ints
    duration_ps: Ints
    aggregate: Mask
    sound: Mask


@dataclass(frozen=True, slots=True)
class Stats:
    """Stats of events: whose, which, and what is in them.

    ``owner`` is the event's row, ``place`` that of the stat among the ids that are wanted. ``kind``
    is the number of the field that holds the value. ``value`` has its bits; of a string it is the
    first byte's place, and ``length`` how many there are.
    """

    owner: Numbers
    place: Numbers
    kind: Bytes
    value: Words
    length: Numbers

    def take(self, rows: Ints) -> Stats:
        """Return some of the stats."""
        return Stats(
            self.owner[rows],
            self.place[rows],
            self.kind[rows],
            self.value[rows],
            self.length[rows],
        )
