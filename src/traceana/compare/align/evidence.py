"""How much the features of two layers speak for their being the same: log odds, in nats.

Record linkage after Fellegi and Sunter ("A Theory for Record Linkage", JASA 1969): a feature that
agrees counts log(m / u), one that does not log((1 - m) / (1 - u)), where m is how often it agrees
in two layers that are the same, and u how often by chance. What is rare on both sides tells most,
what is unknown on either side tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from traceana.compare.align.features import Layer, Side

Codes = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

UNKNOWN: Final = -1
SAME_FLOPS: Final = 0.05
"""Counts whose logarithms differ by no more are of one amount: a bias is counted or is not."""

_MOST_TIES: Final = 1000

_OBSERVATIONS: Final = 10
"""How many layers the prior of m stands for when m is estimated anew from layers paired."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of all layers of both sides: equal codes agree, :data:`UNKNOWN` is unknown."""

    name: str
    agrees: float
    """m before anything is known of the runs."""
    a: Codes
    b: Codes


def features(a: Side, b: Side, shift: float | None) -> list[Feature]:
    """Return the features of the layers of ``a`` and ``b``.

    ``shift`` is the logarithm of by how much all FLOPs of ``b`` are larger; without it they say
    nothing.
    """

    def told(name: str, agrees: float, of: Callable[[Layer], str | int | bool | None]) -> Feature:
        codes = _codes([of(one) for one in a.layers], [of(one) for one in b.layers])
        return Feature(name, agrees, *codes)

    paths_a, paths_b = ({one.path for one in side.layers if one.path} for side in (a, b))
    fewest = min(len(paths_a), len(paths_b))
    common = len(paths_a & paths_b) / fewest if fewest else 0.0
    return [
        told("kind", 0.998, lambda one: one.known.kind if one.known else None),
        _words(a, b),
        told("path", min(max(common, 0.02), 0.98), lambda one: one.path),
        told("number", 0.6, lambda one: one.number),
        told("takes", 0.95, lambda one: one.takes),
        told("gives", 0.95, lambda one: one.gives),
        told("weight", 0.93, lambda one: one.weight),
        _flops(a, b, shift),
        told("category", 0.8, lambda one: one.category),
        told("backward", 0.95, lambda one: one.backward),
    ]


def log_odds(features: Sequence[Feature], agree: Sequence[float]) -> Matrix:
    """Return the summed evidence for each pair, layers of a by layers of b.

    ``agree`` is m of each feature.
    """
    total = np.zeros((len(features[0].a), len(features[0].b)))
    for feature, m in zip(features, agree, strict=True):
        known_a, known_b = feature.a[feature.a >= 0], feature.b[feature.b >= 0]
        if not len(known_a) or not len(known_b):
            continue
        counts = np.bincount(np.concatenate([known_a, known_b]))
        chance = counts / counts.sum()
        by_code = np.log(m / np.maximum(chance, 1 / counts.sum()))
        against = np.log((1 - m) / max(1 - float((chance**2).sum()), 1e-3))
        same = feature.a[:, None] == feature.b[None, :]
        known = (feature.a >= 0)[:, None] & (feature.b >= 0)[None, :]
        for_it = np.maximum(by_code, 0.0)[np.maximum(feature.a, 0)][:, None]
        total += np.where(known, np.where(same, for_it, min(against, 0.0)), 0.0)
    return total


def any_agrees(features: Sequence[Feature], names: Set[str]) -> Truths:
    """Tell for each pair whether any of the features called ``names`` is known and agrees."""
    found = np.zeros((len(features[0].a), len(features[0].b)), dtype=np.bool_)
    for feature in features:
        if feature.name in names:
            found |= (feature.a[:, None] == feature.b[None, :]) & (feature.a >= 0)[:, None]
    return found


def estimated(features: Sequence[Feature], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return m of each feature, as ``pairs`` of layers (rows of a and b) show it."""
    rows, columns = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    found = []
    for feature in features:
        codes_a, codes_b = feature.a[rows], feature.b[columns]
        known = (codes_a >= 0) & (codes_b >= 0)
        agreed = int((known & (codes_a == codes_b)).sum())
        m = (feature.agrees * _OBSERVATIONS + agreed) / (_OBSERVATIONS + int(known.sum()))
        found.append(min(max(m, 0.02), 0.998))
    return found


def flops_shift(a: Side, b: Side) -> float | None:
    """Return the log ratio of FLOPs, b over a, that most pairs of layers have; null without any.

    It is 0 where both sides' FLOPs are of one step and image. Where a batch or the steps are not
    known, or one run trains and the other infers, the counts of all layers are off by one factor.
    """
    logs_a, logs_b = (np.log([one.flops for one in side.layers if one.flops]) for side in (a, b))
    if not len(logs_a) or not len(logs_b):
        return None
    ratios = np.sort((logs_b[None, :] - logs_a[:, None]).ravel())
    within = np.searchsorted(ratios, ratios + SAME_FLOPS / 2, side="right")
    counts = within - np.arange(len(ratios))
    best = np.flatnonzero(counts == counts.max())
    centres = [float(np.median(ratios[at : within[at]])) for at in best[:_MOST_TIES]]
    return min(centres, key=abs)


def _words(a: Side, b: Side) -> Feature:
    """Return the types; one in no vocabulary and on one side alone says nothing."""
    words_a, words_b = ([one.known for one in side.layers] for side in (a, b))
    common = {one.word for one in words_a if one} & {one.word for one in words_b if one}

    def told(one: Any) -> str | None:
        return one.word if one and (one.kind or one.word in common) else None

    return Feature("type", 0.97, *_codes([told(w) for w in words_a], [told(w) for w in words_b]))


def _flops(a: Side, b: Side, shift: float | None) -> Feature:
    if shift is None:
        unknown = (np.full(len(side.layers), UNKNOWN, dtype=np.int64) for side in (a, b))
        return Feature("flops", 0.9, *unknown)
    half = shift / 2
    logs = [
        np.log(one.flops) + moved if one.flops else np.nan
        for side, moved in ((a, half), (b, -half))
        for one in side.layers
    ]
    values = np.array(logs, dtype=np.float64)
    order = np.argsort(values, kind="stable")  # NaN last
    apart = np.diff(values[order], prepend=values[order[:1]]) > SAME_FLOPS
    codes = np.full(len(values), UNKNOWN, dtype=np.int64)
    codes[order] = np.cumsum(apart)
    codes[np.isnan(values)] = UNKNOWN
    return Feature("flops", 0.9, codes[: len(a.layers)], codes[len(a.layers) :])


def _codes(a: Sequence[Any], b: Sequence[Any]) -> tuple[Codes, Codes]:
    numbers: dict[Any, int] = {}
    codes = [
        UNKNOWN if value is None else numbers.setdefault(value, len(numbers)) for value in (*a, *b)
    ]
    found = np.array(codes, dtype=np.int64)
    return found[: len(a)], found[len(a) :]
