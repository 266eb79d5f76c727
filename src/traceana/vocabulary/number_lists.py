"""Lists of numbers as a user writes them, and as screens show them: ``3``, ``3,5`` or ``3-7``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

Numbers: TypeAlias = int | str | Collection[int]
"""One number, several, or a text of them."""

CPU: Final = -1
"""The number of the device ``cpu``."""
_MOST: Final = 1_000_000
MOST_SPANS: Final = 8
"""Spans that a screen lists."""


def number_list(wanted: Numbers) -> list[int]:
    """Return the numbers that are ``wanted``; ``cpu`` in a text is the CPU.

    Raises ``ValueError`` on another text.
    """
    if isinstance(wanted, int):
        return [wanted]
    if not isinstance(wanted, str):
        return list(wanted)
    selected: list[int] = []
    for piece in wanted.split(","):
        first, dash, last = piece.strip().partition("-")
        if first == "cpu" and not dash:
            selected.append(CPU)
        elif first.isdecimal() and (not dash or (last.isdecimal() and int(first) <= int(last))):
            numbers = range(int(first), int(last if dash else first) + 1)
            if len(selected) + numbers.stop - numbers.start > _MOST:
                raise ValueError(f"{wanted!r} is more than {_MOST:,} numbers")
            selected.extend(numbers)
        else:
            raise ValueError(f"{wanted!r} is not a list of numbers: use 3 or 3,5 or 3-7")
    return selected


def number_spans(ordered: Sequence[int]) -> list[str]:
    """Return the texts of the consecutive numbers among ``ordered``: ``["1", "4-7"]``.

    The numbers are a file's: nothing is sized by their distance.
    """
    breaks = [at for at in range(1, len(ordered)) if ordered[at] != ordered[at - 1] + 1]
    spans = [ordered[begin:end] for begin, end in pairwise([0, *breaks, len(ordered)])]
    return [f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans if span]
