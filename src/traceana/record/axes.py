"""The axes of a sweep, as ``--sweep`` gives them, and the points that they span."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from typing import Final

from traceana.errors import BadSweepError
from traceana.runs.model import Axis, Point

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.+:@-]+\Z")
_MOST: Final = 10_000
"""Points; more are a slip of the pen."""


def parse_axis(text: str) -> Axis:
    """Read ``batch=1,2,4..512`` or ``algorithms=heuristic,benchmark``.

    Whole numbers before ``..`` say how it goes on: with the ratio of the last two if that is a
    whole number of 2 or more (of three: if they agree), else with their difference; after a single
    one by 1. What comes last must be met. Raises ``BadSweepError``.
    """
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.match(name):
        raise BadSweepError(f"--sweep {text}: write NAME=VALUE,VALUE or NAME=1,2,4..512")
    values: list[str] = []
    for piece in rest.split(","):
        first, dots, last = piece.strip().partition("..")
        if not _VALUE.match(first):
            raise BadSweepError(
                f"--sweep {text}: {piece.strip()!r} is no value: letters, digits and _.+:@- are"
            )
        values.append(first)
        if dots:
            values += _progression(values, last, text)
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise BadSweepError(f"--sweep {text}: {twice} is there twice")
    return Axis(name=name, values=tuple(values))


def _progression(before: list[str], last: str, text: str) -> list[str]:
    known = [int(value) for value in before[-3:] if value.isdecimal()]
    if len(known) != len(before[-3:]) or not last.isdecimal():
        raise BadSweepError(f"--sweep {text}: only whole numbers go on by ..")
    end, here = int(last), known[-1]
    ratio, difference = _ratio(known), known[-1] - known[-2] if len(known) > 1 else 1
    found: list[str] = []
    while here < end and len(found) < _MOST and (ratio or difference > 0):
        here = here * ratio if ratio else here + difference
        found.append(str(here))
    if here != end:
        raise BadSweepError(
            f"--sweep {text}: {', '.join(map(str, known))} does not lead to {end}; the nearest "
            f"before it is {found[-2] if len(found) > 1 else known[-1]}"
        )
    return found


def _ratio(known: Sequence[int]) -> int | None:
    if len(known) < 2 or known[-2] == 0 or known[-1] % known[-2]:
        return None
    ratio = known[-1] // known[-2]
    agrees = len(known) < 3 or known[-3] * ratio == known[-2]
    # 1, 2 double; 1, 2, 3 and 2, 4, 6 do not.
    return ratio if ratio >= 2 and agrees else None


def points(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Return the product of ``axes``, the last varying fastest. Raises ``BadSweepError``."""
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise BadSweepError(f"--sweep names an axis twice: {', '.join(names)}")
    found = []
    for values in product(*(axis.values for axis in axes)):
        chosen = dict(zip(names, values, strict=True))
        folder = ",".join(f"{name}={value}" for name, value in chosen.items())
        found.append(Point(folder=folder, values=chosen))
    if len(found) > _MOST:
        raise BadSweepError(
            f"--sweep spans {len(found)} runs, more than {_MOST}: give fewer values"
        )
    return tuple(found)
