"""Lists of numbers as a user writes them: ``3``, ``3,5`` or ``3-7``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

Numbers: TypeAlias = int | str | Collection[int]
"""One number, several, or a text of them."""

CPU: Final = -1
"""The number of the device ``cpu``."""
_MOST: Final = 1_000_000


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
