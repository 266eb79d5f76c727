"""Numbers of a file that stand for something, and where each stands among those known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from traceana.ingest.xplane.buffer import Ints, Numbers

_DENSE: Final = 1 << 20
"""Numbers below this are looked up in a table, others searched for."""


class Known:
    """Some numbers, sorted: metadata ids of events or stats."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers: Ints = np.array(sorted(numbers), dtype=np.int64)
        self._table: Numbers | None = None
        if len(self) and self.numbers[0] >= 0 and self.numbers[-1] < _DENSE:
            self._table = np.full(int(self.numbers[-1]) + 2, len(self), dtype=np.uint32)
            self._table[self.numbers] = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.numbers)

    def places(self, ids: Ints) -> Numbers:
        """Return where each id stands among the numbers; how many they are for one unknown."""
        if not len(self):
            return np.zeros(len(ids), dtype=np.uint32)
        if self._table is not None:
            # A negative id is a huge unsigned one.
            most = np.uint64(len(self._table) - 1)
            return self._table[np.minimum(ids.view(np.uint64), most).view(np.int64)]
        place = np.minimum(np.searchsorted(self.numbers, ids), len(self) - 1)
        return np.where(self.numbers[place] == ids, place, len(self)).astype(np.uint32)
