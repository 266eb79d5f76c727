"""What of each gap goes to which cause on the thread that was to launch: the largest decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceana.analyze.idle.causes import COPY, DRIVER, HOST, OPERATOR, SYNCHRONIZATION
from traceana.analyze.idle.threads import Spent
from traceana.analyze.intervals import union, until
from traceana.attribute.nesting import NONE, Ints

_ANYWHERE: Final = DRIVER
"""Up to here a cause counts within the launching call as well."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause of each gap, the time that it explains, and where to look for it.

    ``row`` is that of the first interval of the cause in the gap (of calls or ranges), ``moment``
    the middle of what lies in the gap of it, or of the gap up to the launch.
    """

    cause: npt.NDArray[np.int8]
    explained: Ints
    moment: Ints
    row: Ints


def weigh(
    kinds: Mapping[int, Spent],
    start: Ints,
    end: Ints,
    launch: Ints,
    otherwise: npt.NDArray[np.int8],
) -> Verdict:
    """Judge gaps from ``start`` to ``end``, before which a thread was in ``kinds``.

    Until ``launch``, between them, the thread had not begun to launch. ``otherwise`` is the cause
    where no other has more: ``HOST`` for its time until then that nothing tells of, any other for
    all that overhead leaves of the gap.
    """
    pieces, rest, overhead = _pieces(kinds, start, end, launch)
    _hold(kinds, pieces, rest, start)
    explained = np.where(otherwise == HOST, rest, end - start - overhead)
    cause = otherwise.copy()
    # Of equal parts the more specific cause, which comes first, takes the gap.
    best = np.zeros_like(explained)
    for number, piece in sorted(pieces.items()):
        better = (piece > best) & (piece >= explained)
        best[better] = piece[better]
        cause[better] = number
    explained = np.maximum(best, explained)
    moment = (start + launch) // 2
    row = np.full(len(start), NONE, dtype=np.int64)
    for number in pieces:
        _locate(kinds[number], number, cause, start, launch, end, moment, row)
    return Verdict(cause, explained, moment, row)


def _pieces(
    kinds: Mapping[int, Spent], start: Ints, end: Ints, launch: Ints
) -> tuple[dict[int, Ints], Ints, Ints]:
    """Return the time by cause, none counted twice; what is left until ``launch``; overhead."""
    pieces: dict[int, Ints] = {}
    begins = finishes = np.zeros(0, dtype=np.int64)
    told, overhead = np.zeros_like(start), np.zeros_like(start)
    for number, one in sorted(kinds.items()):
        begins, finishes = np.concatenate((begins, one.start)), np.concatenate((finishes, one.end))
        together = union(begins, finishes)
        from_start = until(together, start)
        if number <= _ANYWHERE:
            whole = until(together, end) - from_start
            pieces[number], overhead = whole - overhead, whole
            told = until(together, launch) - from_start
        else:
            within = until(together, launch) - from_start
            pieces[number], told = within - told, within
    return pieces, launch - start - told, overhead


def _hold(kinds: Mapping[int, Spent], pieces: dict[int, Ints], rest: Ints, start: Ints) -> None:
    """Give a call that held the thread when the device drained what it could have done meanwhile.

    The thread waited in it, and could have been ahead by as long as it had waited: as much of its
    other time before the launch is the call's. ``pieces`` and ``rest`` are changed.
    """
    operators = pieces.get(OPERATOR, np.zeros_like(rest))
    for number in (SYNCHRONIZATION, COPY):
        if number not in kinds:
            continue
        begins, finishes = union(kinds[number].start, kinds[number].end)
        if not len(begins):
            continue
        at = np.searchsorted(begins, start, side="right") - 1
        held = (at != NONE) & (finishes[at] > start)
        owed = np.where(held, np.minimum(start - begins[at], rest + operators), 0)
        from_rest = np.minimum(owed, rest)
        rest -= from_rest
        operators -= owed - from_rest
        pieces[number] += owed


def _locate(
    spent: Spent,
    number: int,
    cause: npt.NDArray[np.int8],
    start: Ints,
    launch: Ints,
    end: Ints,
    moment: Ints,
    row: Ints,
) -> None:
    """Set ``moment`` and ``row`` of the gaps whose cause is ``number``."""
    here = np.flatnonzero(cause == number)
    if number == OPERATOR:
        at = spent.first(moment[here])
        inside = spent.start[np.minimum(at, len(spent.start) - 1)] <= moment[here]
        here = here[~((at < len(spent.start)) & inside)]
    at = spent.first(start[here])
    stop = end[here] if number <= _ANYWHERE else launch[here]
    there = at < len(spent.start)
    here, at, stop = here[there], at[there], stop[there]
    # A call that held the thread before may have ended with the device: then it is not in the gap.
    inside = spent.start[at] < stop
    here, at, stop = here[inside], at[inside], stop[inside]
    moment[here] = (np.maximum(spent.start[at], start[here]) + np.minimum(spent.end[at], stop)) // 2
    row[here] = spent.row[at]
