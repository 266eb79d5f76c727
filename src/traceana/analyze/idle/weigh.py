"""What of each gap goes to which cause on the thread that was to launch: the largest decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceana.analyze.idle.causes import COPY, DRIVER, HOST, OPERATOR, SYNCHRONIZATION
from traceana.analyze.idle.spent import Spent
from traceana.analyze.intervals import Times, union, until
from traceana.enrich.nesting import NONE, Ints

_ANYWHERE: Final = DRIVER
"""Up to here a cause counts within the launching call as well."""
_NEVER: Final = np.iinfo(np.int64).max


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
    """Judge gaps from ``start``, in order, to ``end``, before which a thread was in ``kinds``.

    Until ``launch``, between them, the thread had not begun to launch. ``otherwise`` is the cause
    where no other has more: ``HOST`` for its time until then that nothing tells of, any other for
    all that overhead leaves of the gap.
    """
    gaps = _Gaps(start, end, launch)
    touched = (_Touched.of(gaps, number, kinds[number]) for number in sorted(kinds))
    found = [one for one in touched if len(one.gaps)]
    pieces, rest, overhead = _pieces(gaps, found)
    _hold(found, pieces, rest, start)
    explained = np.where(otherwise == HOST, rest, end - start - overhead)
    cause = otherwise.copy()
    # Of equal parts the more specific cause, which comes first, takes the gap.
    best = np.zeros_like(explained)
    for one in found:
        piece = pieces[one.number]
        here = one.gaps
        here = here[(piece[here] > best[here]) & (piece[here] >= explained[here])]
        best[here], cause[here] = piece[here], one.number
    explained = np.maximum(best, explained)
    moment = (start + launch) // 2
    row = np.full(len(start), NONE, dtype=np.int64)
    for one in found:
        _locate(one, gaps, cause, moment, row)
    return Verdict(cause, explained, moment, row)


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Gaps by their start, and when the thread began to launch."""

    start: Ints
    end: Ints
    launch: Ints

    def stop(self, number: int) -> Ints:
        """Return until when a cause counts in each gap."""
        return self.end if number <= _ANYWHERE else self.launch

    def only(self, rows: Ints) -> _Gaps:
        return _Gaps(self.start[rows], self.end[rows], self.launch[rows])


@dataclass(frozen=True, slots=True)
class _Touched:
    """The rows of ``gaps`` in which a cause counts at all; ``at`` is its first interval in each."""

    number: int
    spent: Spent
    gaps: Ints
    at: Ints

    @classmethod
    def of(cls, gaps: _Gaps, number: int, spent: Spent) -> _Touched:
        stop = gaps.stop(number)
        at = spent.first(gaps.start)
        begins = np.append(spent.start, _NEVER)[at]
        rows = np.flatnonzero((begins < stop) & (stop > gaps.start))
        return cls(number, spent, rows, at[rows])

    def near(self, gaps: _Gaps) -> tuple[Times, Times]:
        """Return the intervals that touch any of ``gaps``."""
        reach = np.maximum.accumulate(gaps.end)
        at = np.searchsorted(reach, self.spent.start, side="right")
        kept = np.append(gaps.start, _NEVER)[at] < self.spent.end
        return self.spent.start[kept], self.spent.end[kept]


def _pieces(gaps: _Gaps, found: Sequence[_Touched]) -> tuple[dict[int, Ints], Ints, Ints]:
    """Return the time by cause, none counted twice; what is left until launch; overhead.

    Where several causes touch a gap, each has what the more specific ones leave of the gap.
    """
    count = np.zeros(len(gaps.start), dtype=np.int8)
    for one in found:
        count[one.gaps] += 1
    known = _Pieces(
        {one.number: np.zeros_like(gaps.start) for one in found},
        np.zeros_like(gaps.start),
        np.zeros_like(gaps.start),
    )
    for one in found:
        known.divide(gaps, one.gaps[count[one.gaps] == 1], [one])
    known.divide(gaps, np.flatnonzero(count > 1), found)
    return known.by_cause, gaps.launch - gaps.start - known.told, known.overhead


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The time of each gap by cause; what any explains until the launch; what overhead does."""

    by_cause: dict[int, Ints]
    told: Ints
    overhead: Ints

    def divide(self, gaps: _Gaps, rows: Ints, causes: Sequence[_Touched]) -> None:
        """Set the time of ``rows``, which ``causes``, by their number, and no others touch."""
        if not len(rows):
            return
        part = gaps.only(rows)
        begins = finishes = np.zeros(0, dtype=np.int64)
        told, overhead = np.zeros_like(rows), np.zeros_like(rows)
        for one in causes:
            more = one.near(part)
            together = union(
                *(np.concatenate(pair) for pair in zip((begins, finishes), more, strict=True))
            )
            begins, finishes = together
            from_start = until(together, part.start)
            until_launch = until(together, part.launch) - from_start
            if one.number <= _ANYWHERE:
                whole = until(together, part.end) - from_start
                self.by_cause[one.number][rows] = whole - overhead
                overhead = whole
            else:
                self.by_cause[one.number][rows] = until_launch - told
            told = until_launch
        self.told[rows], self.overhead[rows] = told, overhead


def _hold(found: Sequence[_Touched], pieces: dict[int, Ints], rest: Ints, start: Ints) -> None:
    """Give a call that held the thread when the device drained what it could have done meanwhile.

    The thread waited in it, and could have been ahead by as long as it had waited: as much of its
    other time before the launch is the call's. ``pieces`` and ``rest`` are changed.
    """
    operators = pieces.get(OPERATOR, np.zeros_like(rest))
    for one in found:
        if one.number not in (SYNCHRONIZATION, COPY):
            continue
        begins, finishes = union(one.spent.start, one.spent.end)
        if not len(begins):
            continue
        at = np.searchsorted(begins, start[one.gaps], side="right") - 1
        held = (at != NONE) & (finishes[at] > start[one.gaps])
        rows, at = one.gaps[held], at[held]
        owed = np.minimum(start[rows] - begins[at], rest[rows] + operators[rows])
        from_rest = np.minimum(owed, rest[rows])
        rest[rows] -= from_rest
        operators[rows] -= owed - from_rest
        pieces[one.number][rows] += owed


def _locate(
    one: _Touched, gaps: _Gaps, cause: npt.NDArray[np.int8], moment: Ints, row: Ints
) -> None:
    """Set ``moment`` and ``row`` of the gaps that ``one`` touches and whose cause it is."""
    spent = one.spent
    mine = cause[one.gaps] == one.number
    here, at = one.gaps[mine], one.at[mine]
    if one.number == OPERATOR:
        middle = spent.first(moment[here])
        begins = np.append(spent.start, _NEVER)[middle]
        outside = begins > moment[here]
        here, at = here[outside], at[outside]
    stop = gaps.stop(one.number)[here]
    moment[here] = (
        np.maximum(spent.start[at], gaps.start[here]) + np.minimum(spent.end[at], stop)
    ) // 2
    row[here] = spent.row[at]
