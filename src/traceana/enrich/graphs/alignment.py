"""Alignment of the launches of a capture with the activities of a replay, both in order."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceana.enrich.nesting import NONE, Ints
from traceana.settings import CAPTURE_DISAGREEMENT

Bits = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.int32]

_SAME_KIND: Final = 4
_FITS: Final = 2
_CONFLICT: Final = -12
_GAP: Final = -1
"""Scores of a pair and of a launch or activity alone. A conflict costs more than both alone."""
_SPARE: Final = 16
"""Width of the band beside the difference in length: gaps on both sides may follow each other."""
_NEVER: Final = -(1 << 28)


class Launches(msgspec.Struct, frozen=True):
    """The launches of a capture: kind, recognized operators as bits, and the layer's number."""

    kinds: Ints
    operators: Bits
    layers: Ints


def align(launches: Launches, kinds: Ints, kernels: Bits, *, in_order: bool) -> Ints:
    """Return the launch of each activity of a replay, NONE where there is none or several differ.

    ``kinds`` are those of the activities; ``kernels`` are bits: a kernel with a bit is launched by
    operators with it, a kernel without a bit by any. In the best alignments, a pair of one kind
    counts, and a launch or an activity alone costs. An activity has a launch if all alignments of
    the highest score give it the same layer. Activities ``in_order`` are those of one stream, or
    sorted by node: if they are as many as the launches, and of the same kinds, each has its own.

    Global alignment (Needleman and Wunsch, 1970) in a band around the diagonal: n · (|n - m| + 33)
    steps for n activities and m launches.
    """
    n, m = len(kinds), len(launches.kinds)
    if n == m and (kinds == launches.kinds).all():
        conflicts = float(((kernels != 0) & ((kernels & launches.operators) == 0)).mean())
        if conflicts <= (CAPTURE_DISAGREEMENT if in_order else 0):
            return np.arange(n)
    width = abs(n - m) + 2 * _SPARE + 1
    first = min(m - n, 0) - _SPARE
    forward = _table(launches, kinds, kernels, first, width)
    reverse = Launches(*(getattr(launches, key)[::-1] for key in launches.__struct_fields__))
    # Column c of row i stands for launch i + first + c, from either end.
    backward = _table(reverse, kinds[::-1], kernels[::-1], first, width)
    best = forward[n, m - n - first]
    source = np.full(n, NONE, dtype=np.int64)
    for i in range(n):
        j = i + first + np.arange(width)
        valid = (j >= 0) & (j < m)
        j = j[valid]
        before = forward[i, valid]
        after = _after(backward[n - 1 - i], m - 1 - j - (n - 1 - i) - first)
        through = before + _pairs(launches, kinds[i], kernels[i], j) + after
        on_best = j[through == best]
        if len(on_best) and (launches.layers[on_best] == launches.layers[on_best[0]]).all():
            source[i] = on_best[0]
    return source


def _after(row: Scores, columns: Ints) -> Scores:
    inside = (columns >= 0) & (columns < len(row))
    return np.where(inside, row[np.clip(columns, 0, len(row) - 1)], _NEVER)


def _pairs(launches: Launches, kind: int, kernel: int, j: Ints) -> Scores:
    """Return the score of an activity with each of the launches ``j``."""
    fits = (launches.operators[j] & kernel) != 0
    score = np.where(kernel == 0, _SAME_KIND, np.where(fits, _SAME_KIND + _FITS, _CONFLICT))
    return np.where(launches.kinds[j] == kind, score, _NEVER).astype(np.int32)


def _table(launches: Launches, kinds: Ints, kernels: Bits, first: int, width: int) -> Scores:
    """Return the best score of the first i activities and the first i + first + c launches, at
    row i and column c."""
    n, m = len(kinds), len(launches.kinds)
    table = np.full((n + 1, width), _NEVER, dtype=np.int32)
    steps = np.arange(width)
    for i in range(n + 1):
        j = i + first + steps
        row = np.full(width, _NEVER, dtype=np.int32)
        if i == 0:
            row[(j >= 0) & (j <= m)] = _GAP * j[(j >= 0) & (j <= m)]
            table[0] = row
            continue
        paired = np.flatnonzero((j >= 1) & (j <= m))
        score = _pairs(launches, kinds[i - 1], kernels[i - 1], j[paired] - 1)
        row[paired] = np.maximum(table[i - 1][paired] + score, _NEVER)
        # The activity alone: from row i - 1, one column to the right.
        alone = np.flatnonzero((j[:-1] >= 0) & (j[:-1] <= m))
        row[alone] = np.maximum(row[alone], table[i - 1][alone + 1] + _GAP)
        # Launches alone, from the left: a running maximum of scores less their gaps.
        running = np.maximum.accumulate(row - _GAP * steps) + _GAP * steps
        table[i] = np.where((j >= 0) & (j <= m), np.maximum(row, running), _NEVER)
    return table
