"""Which layer of one run is which of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from traceana.compare.align.assignment import best_assignment
from traceana.compare.align.evidence import (
    Feature,
    Matrix,
    Truths,
    any_agrees,
    estimated,
    features,
    flops_shift,
    log_odds,
)
from traceana.compare.align.features import Side
from traceana.compare.align.gotoh import Gaps, best_alignment
from traceana.compare.align.posterior import posterior

How = Literal["map", "order", "moved"]

UNIT: Final = 1e-3
"""Nats in one unit of the scores that are aligned."""

GAPS: Final = Gaps(open=3000, extend=500, change=2000)
"""A gap begins behind one layer in twenty (e^-3), and is followed by another in three of five."""

TEMPERED: Final = 0.5
"""Features are not independent, as their sum supposes: shapes, weights and FLOPs go together. The
evidence counts half, so that a confidence is as often right as it says."""

MOVED: Final = 4.0
"""Nats, beside the logarithm of the number of candidates, that a pair out of order has to have."""

ORDER_ALONE: Final = 0.75
"""Confidence is this much of what it would be where only types and order speak for a pair:
frameworks run branches that do not depend on each other in different orders. In recordings of three
networks by three frameworks, 3 of 4 such pairs were right (``docs/diff.md``)."""

_ROUNDS: Final = 2
_MOST_MOVED: Final = 600
_OF_ONE_LAYER: Final = frozenset(("path", "number", "takes", "gives", "weight", "flops"))
"""Features that tell layers of one type apart."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Layer ``a`` of one side is layer ``b`` of the other, both by place.

    ``confidence`` is the probability, given the model of evidence; ``how`` tells whether the pair
    was forced (``map``), is of the alignment (``order``) or of layers out of order (``moved``).
    """

    a: int
    b: int
    confidence: float
    how: How


@dataclass(frozen=True, slots=True)
class Alignment:
    """The pairs by place in a, and for each layer the probability that it has no partner."""

    pairs: tuple[Pair, ...]
    alone_a: tuple[float, ...]
    alone_b: tuple[float, ...]

    @property
    def confidence(self) -> float | None:
        """Mean over the layers of both sides of the probability that what is said is right."""
        paired_a, paired_b = {p.a for p in self.pairs}, {p.b for p in self.pairs}
        told = [2 * pair.confidence for pair in self.pairs]
        told += [p for i, p in enumerate(self.alone_a) if i not in paired_a]
        told += [p for i, p in enumerate(self.alone_b) if i not in paired_b]
        layers = len(self.alone_a) + len(self.alone_b)
        return sum(told) / layers if layers else None


def align(a: Side, b: Side, forced: Mapping[int, int] | None = None) -> Alignment:
    """Return the alignment of the layers of ``a`` and ``b``; ``forced`` maps places of a to b.

    The layers keep their order: the alignment is the best of all that there are, by evidence less
    gaps. How often each feature agrees is then estimated from the pairs, once more aligned, and
    what is left over is assigned regardless of order where the evidence is strong. Aligning ``b``
    with ``a`` gives the same pairs.
    """
    forced = dict(forced or {})
    if _canonical(b) < _canonical(a):
        turned = align(b, a, {j: i for i, j in forced.items()})
        pairs = sorted((Pair(p.b, p.a, p.confidence, p.how) for p in turned.pairs), key=_place)
        return Alignment(tuple(pairs), turned.alone_b, turned.alone_a)
    rows = [i for i in range(len(a.layers)) if i not in forced]
    columns = [j for j in range(len(b.layers)) if j not in set(forced.values())]
    found = [Pair(i, j, 1.0, "map") for i, j in forced.items()]
    alone_a, alone_b = np.zeros(len(a.layers)), np.zeros(len(b.layers))
    alone_a[rows] = 1.0
    alone_b[columns] = 1.0
    if rows and columns:
        odds, told = _evidence(a, b, rows, columns, list(forced.items()))
        likely = posterior(odds * TEMPERED, GAPS, UNIT * TEMPERED)
        alone = (1 - likely.sum(axis=1), 1 - likely.sum(axis=0))
        alone_a[rows], alone_b[columns] = alone
        aligned = best_alignment(_integers(odds), GAPS)[0]
        kept = [(i, j) for i, j in aligned if likely[i, j] >= min(alone[0][i], alone[1][j])]
        sure = likely * np.where(told, 1.0, ORDER_ALONE)
        found += [Pair(rows[i], columns[j], float(sure[i, j]), "order") for i, j in kept]
        for i, j, confidence in _moved(odds, kept):
            found.append(Pair(rows[i], columns[j], confidence, "moved"))
    return Alignment(
        tuple(sorted(found, key=_place)),
        tuple(np.clip(alone_a, 0.0, 1.0).tolist()),
        tuple(np.clip(alone_b, 0.0, 1.0).tolist()),
    )


def _evidence(
    a: Side, b: Side, rows: list[int], columns: list[int], known: list[tuple[int, int]]
) -> tuple[Matrix, Truths]:
    """Return the log odds of ``rows`` by ``columns``, and where more agrees than types.

    What agrees how often is estimated.
    """
    chosen: Sequence[Feature] = features(a, b, flops_shift(a, b))
    agree = [feature.agrees for feature in chosen]
    odds = log_odds(chosen, agree)[np.ix_(rows, columns)]
    for _ in range(_ROUNDS - 1):
        aligned = best_alignment(_integers(odds), GAPS)[0]
        pairs = known + [(rows[i], columns[j]) for i, j in aligned if odds[i, j] > 0]
        agree = estimated(chosen, pairs)
        odds = log_odds(chosen, agree)[np.ix_(rows, columns)]
    return odds, any_agrees(chosen, _OF_ONE_LAYER)[np.ix_(rows, columns)]


def _moved(odds: Matrix, kept: list[tuple[int, int]]) -> list[tuple[int, int, float]]:
    """Return pairs of what the alignment left over: layers that stand elsewhere."""
    left = [i for i in range(odds.shape[0]) if i not in {pair[0] for pair in kept}]
    right = [j for j in range(odds.shape[1]) if j not in {pair[1] for pair in kept}]
    if not left or not right:
        return []
    worth = odds[np.ix_(left, right)] - MOVED - np.log(max(len(left), len(right)))
    some_a, some_b = (worth > 0).any(axis=1).nonzero()[0], (worth > 0).any(axis=0).nonzero()[0]
    if max(len(some_a), len(some_b)) > _MOST_MOVED:
        return []
    small = worth[np.ix_(some_a, some_b)]
    weigh = np.exp(np.minimum(worth * TEMPERED, 500.0))
    moved = []
    for row, column in best_assignment(small):
        i, j = int(some_a[row]), int(some_b[column])
        others = 1 + weigh[i].sum() + weigh[:, j].sum() - weigh[i, j]
        moved.append((left[i], right[j], float(weigh[i, j] / others)))
    return moved


def _integers(odds: Matrix) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.rint(odds / UNIT).astype(np.int64)


def _canonical(side: Side) -> str:
    """Return a text by which two sides are put in one order, whichever is named first."""
    return repr(side)


def _place(pair: Pair) -> tuple[int, int]:
    return pair.a, pair.b
