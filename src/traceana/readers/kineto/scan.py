"""Scans Kineto's JSON events into column chunks, with the compiled scanner.

The frames are those of :mod:`traceana.readers.kineto.decode`, whose decoder reads what the scanner
refuses.
"""

from __future__ import annotations

from typing import Final

from traceana.readers.chrome.scanner import Rule, Scanner
from traceana.readers.compiled import COMPILED
from traceana.readers.kineto import decode
from traceana.readers.kineto.decode import (
    COLUMNS,
    COMPLETE,
    COUNTER,
    DEPENDENCY,
    FIRST_DEPENDENCY,
    LAUNCH_FLOWS,
    UNREAD,
    Columns,
    Event,
    KinetoDecoder,
    columns_from,
)

_RULES: Final = [
    *(Rule("X", category, frame) for category, frame in COMPLETE.items()),
    Rule("X", None, UNREAD),
    *(
        Rule(phase, category, DEPENDENCY, FIRST_DEPENDENCY)
        if category
        else Rule(phase, None, "flow")
        for phase in "sf"
        for category in (None, *LAUNCH_FLOWS)
    ),
    *(Rule(phase, None, "instant") for phase in "iI"),
    Rule(COUNTER, None, "counter"),
]


class ScanningDecoder(KinetoDecoder):
    """Decodes with the scanner, and text that it refuses with :class:`KinetoDecoder`."""

    threads = 2
    # No objects are made of the events, and columns cost by their number.
    block = 16 << 20

    def __init__(self) -> None:
        super().__init__()
        self._scanner = Scanner(Event, COLUMNS, _RULES)

    def decode(self, text: bytes, stop: int | None = None) -> Columns:
        """Return the columns of ``text[:stop]``, whole events separated by commas.

        Raises ``UndecodableError``.
        """
        columns = self.scanned(text, len(text) if stop is None else stop)
        return super().decode(text, stop) if columns is None else columns

    def accepts(self, text: bytes) -> bool:
        """Return whether the scanner accepts ``text``."""
        return self._scanner.accepts(text)

    def scanned(self, text: bytes, stop: int) -> Columns | None:
        """Return the columns of ``text[:stop]``; None where the decoder in Python has to."""
        scanned = self._scanner.scan(text, stop)
        return None if scanned is None else columns_from(scanned)


DECODER: Final = ScanningDecoder() if COMPILED else decode.DECODER
