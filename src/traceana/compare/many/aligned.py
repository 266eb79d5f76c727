"""The layers of several runs, aligned with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceana.compare.align import align
from traceana.compare.many.run import Run
from traceana.compare.pairs_file import forced_pairs


@dataclass(frozen=True, slots=True)
class Member:
    """A layer of a run: its place there, and how probable it is that it belongs to its row.

    ``confidence`` is None in the run that the others are aligned with.
    """

    place: int
    confidence: float | None


Row = dict[int, Member]
"""The layers that are one, by the number of their run."""


def aligned(runs: Sequence[Run]) -> list[Row]:
    """Return the layers of ``runs``, each in one row.

    The run with the most layers, or the first where pairs are forced, is the centre of a star: each
    other run is aligned with it. Layers that the centre does not have are paired by the alignments
    of the runs that have them. The rows are in the order of the centre; another layer stands behind
    the one it follows in its run. Raises :class:`~traceana.errors.BadPairsError`.
    """
    sides = [run.side for run in runs]
    forced = any(run.pairs is not None for run in runs)
    centre = max(range(len(runs)), key=lambda at: (len(sides[at].layers), -at))
    centre = 0 if forced else centre
    of_centre: list[Row] = [{centre: Member(at, None)} for at in range(len(sides[centre].layers))]
    rows = [*of_centre]
    left: dict[int, dict[int, Row]] = {}
    for at in (at for at in range(len(runs)) if at != centre):
        names = runs[centre].label, runs[at].label
        pairs = forced_pairs(runs[at].pairs, sides[centre], sides[at], names)
        found = align(sides[centre], sides[at], pairs)
        of_place = {pair.b: of_centre[pair.a] for pair in found.pairs}
        for pair in found.pairs:
            of_centre[pair.a][at] = Member(pair.b, pair.confidence)
        alone = [place for place in range(len(sides[at].layers)) if place not in of_place]
        left[at] = _others(runs, at, alone, left)
        for place in alone:
            if place in left[at]:
                of_place[place] = left[at][place]
                continue
            row = {at: Member(place, found.alone_b[place])}
            behind = rows.index(of_place[place - 1]) + 1 if place else 0
            rows.insert(behind, row)
            of_place[place] = left[at][place] = row
    return rows


def _others(
    runs: Sequence[Run], at: int, alone: list[int], left: dict[int, dict[int, Row]]
) -> dict[int, Row]:
    """Put layers of run ``at`` that the centre lacks in rows that earlier runs have for theirs.

    ``left`` has those by run and place; the rows are returned by place.
    """
    found: dict[int, Row] = {}
    for other, rows in left.items():
        if not rows or len(found) == len(alone):
            continue
        for pair in align(runs[other].side, runs[at].side).pairs:
            row = rows.get(pair.a)
            if row is not None and at not in row and pair.b in alone and pair.b not in found:
                row[at] = Member(pair.b, pair.confidence)
                found[pair.b] = row
    return found
