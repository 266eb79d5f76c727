"""The match of two runs' layers: evidence for each pair, and the best alignment in order.

Evidence is record linkage after Fellegi and Sunter ("A Theory for Record Linkage", JASA 1969), in
nats. A feature that agrees counts log(m / u), one that differs log((1 - m) / (1 - u)); m is the
probability of agreement for matching layers, u the probability of agreement by chance. Features
that are rare in both runs count most; unknown features do not count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traceana.comparison.layer_features import RunLayers, plain_name
from traceana.match.alignment import Gaps, Matrix, best_alignment, posterior
from traceana.settings import MOVED, ORDER_ALONE, SAME_FLOPS, TEMPERED

if TYPE_CHECKING:
    from traceana.comparison.layer_features import Layer

How = Literal["map", "order", "moved"]

UNIT: Final = 1e-3
"""Nats in one unit of the scores that are aligned."""

GAPS: Final = Gaps(open=3000, extend=500, change=2000)
"""A gap begins after one layer in twenty (e^-3), and continues with probability 0.6."""

_ROUNDS: Final = 2
_MOST_CELLS: Final = 4_000_000
"""Most pairs of layers that are weighed against each other; time and memory grow with them."""
_WINDOW: Final = 256
"""Layers of a piece without a known correspondence of longer runs."""
_MOST_MOVED: Final = 600
_OF_ONE_LAYER: Final = frozenset(("path", "number", "takes", "gives", "weight", "flops"))
"""Features that distinguish layers of one type."""

_OF_ANOTHER_LAYER: Final = frozenset(("kind", "takes", "gives", "weight"))
"""Features that are equal in one layer of two frameworks."""
_ONE_NAME: Final = 3.0
"""Least evidence (nats) for layers of one path where paths are trusted and nothing else differs
that is equal in two frameworks: they may run in another order, and in other passes."""
_NEVER: Final = -50.0
"""Evidence for a layer and the rest of a module, whose other layers are rows of their own."""

Codes = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
UNKNOWN: Final = -1
_MOST_TIES: Final = 1000
_OBSERVATIONS: Final = 10
"""The weight of the prior of m, in layers, when m is estimated from paired layers."""


_AGREEMENT: Final = {
    "kind": 0.998,
    "type": 0.97,
    "number": 0.6,
    "takes": 0.95,
    "gives": 0.95,
    "weight": 0.93,
    "flops": 0.9,
    "category": 0.8,
    "backward": 0.95,
}
"""The prior of m: how often a feature agrees in layers that are the same, for the first round. Then
m is estimated from the pairs, and the prior counts as :data:`_OBSERVATIONS` layers."""
_LEAST_AGREEMENT: Final = 0.02
_MOST_AGREEMENT: Final = 0.998
_MOST_PATHS: Final = 0.98
"""Limits of m, of paths as the prior: no feature alone decides for or against a pair."""


class Pair(msgspec.Struct, frozen=True):
    """A match of layer ``a`` of one run with layer ``b`` of the other, both by index.

    ``confidence`` is the probability under the model of evidence. ``how`` is ``map`` for a forced
    pair, ``order`` for a pair of the alignment, ``moved`` for layers out of order.
    """

    a: int
    b: int
    confidence: float
    how: How


class Alignment(msgspec.Struct, frozen=True):
    """The pairs by index in a, and for each layer the probability that it has no match."""

    pairs: tuple[Pair, ...]
    alone_a: tuple[float, ...]
    alone_b: tuple[float, ...]

    @property
    def confidence(self) -> float | None:
        """The mean probability, over the layers of both runs, that the match is correct."""
        paired_a, paired_b = {p.a for p in self.pairs}, {p.b for p in self.pairs}
        right = [2 * pair.confidence for pair in self.pairs]
        right += [p for i, p in enumerate(self.alone_a) if i not in paired_a]
        right += [p for i, p in enumerate(self.alone_b) if i not in paired_b]
        layers = len(self.alone_a) + len(self.alone_b)
        return sum(right) / layers if layers else None


def align(a: RunLayers, b: RunLayers, forced: Mapping[int, int] | None = None) -> Alignment:
    """Return the alignment of the layers of ``a`` and ``b``; ``forced`` maps indices of a to b.

    The layers keep their order: the alignment is the global optimum of evidence less gap costs.
    Then the agreement rate of each feature is estimated from the pairs, the layers are aligned
    again, and unmatched layers are assigned regardless of order where the evidence is strong.
    Aligning ``b`` with ``a`` gives the same pairs. In runs with thousands of layers each, layers of
    one path are paired first, and the layers between them are aligned piece by piece.
    """
    forced = dict(forced or {})
    if _sort_key(b) < _sort_key(a):
        turned = align(b, a, {j: i for i, j in forced.items()})
        pairs = sorted((Pair(p.b, p.a, p.confidence, p.how) for p in turned.pairs), key=_indices)
        return Alignment(tuple(pairs), turned.alone_b, turned.alone_a)
    rows = [i for i in range(len(a.layers)) if i not in forced]
    columns = [j for j in range(len(b.layers)) if j not in set(forced.values())]
    pairs = [Pair(i, j, 1.0, "map") for i, j in forced.items()]
    alone_a, alone_b = np.zeros(len(a.layers)), np.zeros(len(b.layers))
    alone_a[rows] = 1.0
    alone_b[columns] = 1.0
    if len(rows) * len(columns) > _MOST_CELLS:
        pairs += _in_pieces(a, b, rows, columns, alone_a, alone_b)
    elif rows and columns:
        evidence = _evidence(a, b, rows, columns, list(forced.items()))
        odds = evidence.odds
        likely = posterior(odds * TEMPERED, GAPS, UNIT * TEMPERED)
        alone = (1 - likely.sum(axis=1), 1 - likely.sum(axis=0))
        alone_a[rows], alone_b[columns] = alone
        aligned = best_alignment(_integers(odds), GAPS)[0]
        kept = [(i, j) for i, j in aligned if likely[i, j] >= min(alone[0][i], alone[1][j])]
        kept = _without_weak(evidence, kept)
        sure = likely * np.where(evidence.of_one_layer, 1.0, ORDER_ALONE)
        # The order of execution says less of layers with one name than the other evidence.
        sure = np.where(evidence.same_path, np.maximum(sure, _regardless_of_order(odds)), sure)
        pairs += [Pair(rows[i], columns[j], float(sure[i, j]), "order") for i, j in kept]
        for i, j, confidence in _moved(evidence, kept):
            pairs.append(Pair(rows[i], columns[j], confidence, "moved"))
    return Alignment(
        tuple(sorted(pairs, key=_indices)),
        tuple(np.clip(alone_a, 0.0, 1.0).tolist()),
        tuple(np.clip(alone_b, 0.0, 1.0).tolist()),
    )


def _in_pieces(
    a: RunLayers,
    b: RunLayers,
    rows: list[int],
    columns: list[int],
    alone_a: Matrix,
    alone_b: Matrix,
) -> list[Pair]:
    """Return the pairs of ``rows`` and ``columns``, and enter how probably each has none.

    Layers whose path occurs once in each run are paired; the longest sequence of such pairs that is
    in order divides the others into pieces.
    """
    by_path = _by_path(b, columns)
    same = [(i, by_path[path]) for path, i in _by_path(a, rows).items() if path in by_path]
    same.sort()
    fixed = [same[at] for at in _longest_rising([j for _, j in same])]
    moved = sorted(set(same) - set(fixed))
    pairs = [Pair(i, j, 1.0, "order") for i, j in fixed]
    pairs += [Pair(i, j, 1.0, "moved") for i, j in moved]
    paired_a, paired_b = {i for i, _ in same}, {j for _, j in same}
    alone_a[list(paired_a)] = 0.0
    alone_b[list(paired_b)] = 0.0
    left = [i for i in rows if i not in paired_a]
    right = [j for j in columns if j not in paired_b]
    ends_a = np.searchsorted(left, [i for i, _ in fixed]).tolist()
    ends_b = np.searchsorted(right, [j for _, j in fixed]).tolist()
    from_a = from_b = 0
    for to_a, to_b in zip([*ends_a, len(left)], [*ends_b, len(right)], strict=True):
        for piece in _windows(left[from_a:to_a], right[from_b:to_b]):
            some_a, some_b = piece
            part = align(_part(a, some_a), _part(b, some_b))
            alone_a[some_a], alone_b[some_b] = part.alone_a, part.alone_b
            pairs += [replace(pair, a=some_a[pair.a], b=some_b[pair.b]) for pair in part.pairs]
        from_a, from_b = to_a, to_b
    return pairs


def _by_path(run: RunLayers, chosen: list[int]) -> dict[str, int]:
    """Return by path the layers of ``chosen`` that have their path alone."""
    paths = Counter(run.layers[i].path for i in chosen)
    return {path: i for i in chosen if (path := run.layers[i].path) and paths[path] == 1}


def _longest_rising(values: list[int]) -> list[int]:
    """Return the positions of a longest rising sequence of the distinct ``values``."""
    ends: list[int] = []
    at_end: list[int] = []
    before: list[int] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1] = [value]
        at_end[length : length + 1] = [at]
        before.append(at_end[length - 1] if length else -1)
    positions = []
    at = at_end[-1] if at_end else -1
    while at >= 0:
        positions.append(at)
        at = before[at]
    return positions[::-1]


def _windows(left: list[int], right: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield ``left`` and ``right`` in pieces that are small enough to be aligned, in proportion."""
    if not left or not right:
        return
    if len(left) * len(right) <= _MOST_CELLS:
        yield left, right
        return
    many = -(-max(len(left), len(right)) // _WINDOW)
    for at in range(many):
        some_a, some_b = (
            side[len(side) * at // many : len(side) * (at + 1) // many] for side in (left, right)
        )
        if some_a and some_b:
            yield some_a, some_b


def _part(run: RunLayers, chosen: list[int]) -> RunLayers:
    return replace(run, layers=tuple(run.layers[i] for i in chosen))


class _Evidence(msgspec.Struct, frozen=True):
    """The evidence for each pair, rows by columns."""

    odds: Matrix
    """Log odds, in nats."""
    of_one_layer: Truths
    """Whether features agree that distinguish layers of one type."""
    same_path: Truths
    """Whether the paths are equal; all False if paired layers mostly have different paths."""


def _evidence(
    a: RunLayers, b: RunLayers, rows: list[int], columns: list[int], fixed: list[tuple[int, int]]
) -> _Evidence:
    """Return the evidence for ``rows`` by ``columns``; the agreement rates are estimated."""
    chosen: Sequence[Feature] = features(a, b, flops_shift(a, b))
    agree = [feature.agrees for feature in chosen]
    odds = log_odds(chosen, agree)[np.ix_(rows, columns)]
    for _ in range(_ROUNDS - 1):
        aligned = best_alignment(_integers(odds), GAPS)[0]
        pairs = fixed + [(rows[i], columns[j]) for i, j in aligned if odds[i, j] > 0]
        agree = estimated(chosen, pairs)
        odds = log_odds(chosen, agree)[np.ix_(rows, columns)]
    rate = {feature.name: m for feature, m in zip(chosen, agree, strict=True)}
    trusted = {"path"} if rate["path"] > 0.5 else frozenset[str]()
    of_one_layer, same_path = (
        any_agrees(chosen, names)[np.ix_(rows, columns)] for names in (_OF_ONE_LAYER, trusted)
    )
    one_name = same_path & ~any_differs(chosen, _OF_ANOTHER_LAYER)[np.ix_(rows, columns)]
    odds = np.where(one_name, np.maximum(odds, _ONE_NAME), odds)
    holds = [np.array([layer.holds for layer in run.layers]) for run in (a, b)]
    odds = np.where(holds[0][rows][:, None] == holds[1][columns], odds, _NEVER)
    return _Evidence(odds, of_one_layer, same_path)


def _without_weak(evidence: _Evidence, kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ``kept`` without weak pairs of layers with different paths. In a weak pair one layer
    fits better to a layer of its own path, which is not paired by that path."""
    named = evidence.same_path & (evidence.odds > 0)
    free = np.where(named, evidence.odds, -np.inf)
    rows, columns = ([pair[side] for pair in kept if named[pair]] for side in (0, 1))
    free[rows] = -np.inf
    free[:, columns] = -np.inf
    better_a, better_b = free.max(axis=1), free.max(axis=0)
    return [
        (i, j)
        for i, j in kept
        if named[i, j] or evidence.odds[i, j] > max(better_a[i], better_b[j])
    ]


def _moved(evidence: _Evidence, kept: list[tuple[int, int]]) -> list[tuple[int, int, float]]:
    """Return pairs of unmatched layers: layers at another position.

    For layers with one path any evidence is enough, as when they were in order: a row of a compiled
    graph has no shapes, and begins between others of its block as its kernels take their time.
    """
    odds = evidence.odds
    left = sorted(set(range(odds.shape[0])) - {i for i, _ in kept})
    right = sorted(set(range(odds.shape[1])) - {j for _, j in kept})
    if not left or not right:
        return []
    cost = MOVED + np.log(max(len(left), len(right)))
    among = np.ix_(left, right)
    worth = odds[among] - np.where(evidence.same_path[among], 0.0, cost)
    some_a, some_b = (np.unique(places) for places in np.nonzero(worth > 0))
    if max(len(some_a), len(some_b)) > _MOST_MOVED:
        return []
    small = worth[np.ix_(some_a, some_b)]
    sure = _regardless_of_order(worth)
    moved = []
    for row, column in best_assignment(small):
        i, j = int(some_a[row]), int(some_b[column])
        moved.append((left[i], right[j], float(sure[i, j])))
    return moved


def _regardless_of_order(odds: Matrix) -> Matrix:
    """Return the probability of each pair among all pairs of its two layers, and none."""
    weight = np.exp(np.minimum(odds * TEMPERED, 500.0))
    others = weight.sum(axis=1)[:, None] + weight.sum(axis=0) - weight
    probability: Matrix = weight / (1 + others)
    return probability


def _integers(odds: Matrix) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.rint(odds / UNIT).astype(np.int64)


def _sort_key(run: RunLayers) -> str:
    """Return a text that orders two runs by their content, so that a diff mirrors its reverse."""
    return repr(run)


def _indices(pair: Pair) -> tuple[int, int]:
    return pair.a, pair.b


class Feature(msgspec.Struct, frozen=True):
    """One feature of all layers of both runs: equal codes agree, :data:`UNKNOWN` is unknown."""

    name: str
    agrees: float
    """The prior of m."""
    a: Codes
    b: Codes


def features(a: RunLayers, b: RunLayers, shift: float | None) -> list[Feature]:
    """Return the features of the layers of ``a`` and ``b``.

    ``shift`` is the logarithm of the common ratio of FLOPs, ``b`` over ``a``; without it FLOPs are
    unknown.
    """

    def feature(
        name: str, of: Callable[[Layer], str | int | bool | None], agrees: float | None = None
    ) -> Feature:
        codes = _codes([of(layer) for layer in a.layers], [of(layer) for layer in b.layers])
        return Feature(name, _AGREEMENT[name] if agrees is None else agrees, *codes)

    names = _common_names(a, b)
    paths_a, paths_b = ({name for name in side if name} for side in names)
    fewest = min(len(paths_a), len(paths_b))
    common = len(paths_a & paths_b) / fewest if fewest else 0.0
    return [
        feature("kind", lambda layer: layer.layer_type.kind if layer.layer_type else None),
        _type_feature(a, b),
        Feature("path", min(max(common, _LEAST_AGREEMENT), _MOST_PATHS), *_codes(*names)),
        feature("number", lambda layer: layer.number),
        feature("takes", lambda layer: layer.takes),
        feature("gives", lambda layer: layer.gives),
        feature("weight", lambda layer: layer.weight),
        _flops_feature(a, b, shift),
        feature("category", lambda layer: layer.category),
        feature("backward", lambda layer: layer.backward),
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
        both_known = (feature.a >= 0)[:, None] & (feature.b >= 0)[None, :]
        for_it = np.maximum(by_code, 0.0)[np.maximum(feature.a, 0)][:, None]
        total += np.where(both_known, np.where(same, for_it, min(against, 0.0)), 0.0)
    return total


def any_agrees(features: Sequence[Feature], names: Set[str]) -> Truths:
    """Return for each pair whether any of the features ``names`` is known and agrees."""
    agrees = np.zeros((len(features[0].a), len(features[0].b)), dtype=np.bool_)
    for feature in features:
        if feature.name in names:
            agrees |= (feature.a[:, None] == feature.b[None, :]) & (feature.a >= 0)[:, None]
    return agrees


def any_differs(features: Sequence[Feature], names: Set[str]) -> Truths:
    """Return for each pair whether any of the features ``names`` is known and differs."""
    differs = np.zeros((len(features[0].a), len(features[0].b)), dtype=np.bool_)
    for feature in features:
        if feature.name in names:
            both_known = (feature.a >= 0)[:, None] & (feature.b >= 0)[None, :]
            differs |= both_known & (feature.a[:, None] != feature.b[None, :])
    return differs


def estimated(features: Sequence[Feature], pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return m of each feature, estimated from ``pairs`` of layers (rows of a and b)."""
    rows, columns = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    rates = []
    for feature in features:
        codes_a, codes_b = feature.a[rows], feature.b[columns]
        both_known = (codes_a >= 0) & (codes_b >= 0)
        agreed = int((both_known & (codes_a == codes_b)).sum())
        m = (feature.agrees * _OBSERVATIONS + agreed) / (_OBSERVATIONS + int(both_known.sum()))
        rates.append(min(max(m, _LEAST_AGREEMENT), _MOST_AGREEMENT))
    return rates


def flops_shift(a: RunLayers, b: RunLayers) -> float | None:
    """Return the most frequent log ratio of FLOPs, b over a, of pairs of layers; None without one.

    It is 0 where both runs' FLOPs are of one step and image. Where a batch size or the steps are
    unknown, or one run trains and the other infers, the counts differ by one common factor.
    """
    logs_a, logs_b = (
        np.log([layer.flops for layer in side.layers if layer.flops]) for side in (a, b)
    )
    if not len(logs_a) or not len(logs_b):
        return None
    ratios = np.sort((logs_b[None, :] - logs_a[:, None]).ravel())
    within = np.searchsorted(ratios, ratios + SAME_FLOPS / 2, side="right")
    counts = within - np.arange(len(ratios))
    best = np.flatnonzero(counts == counts.max())
    centres = [float(np.median(ratios[at : within[at]])) for at in best[:_MOST_TIES]]
    return min(centres, key=abs)


def _common_names(a: RunLayers, b: RunLayers) -> tuple[list[str | None], list[str | None]]:
    """Return the paths of the layers, equal where they differ in case or instance numbers alone.

    ``net.bn1`` and ``Net.bn1``, or ``conv_1`` and ``conv``: only where no path is equal, and one
    layer of each run has that name.
    """
    names = tuple([layer.path for layer in run.layers] for run in (a, b))
    for plain in (str.casefold, plain_name):
        alone = [
            _unique({i: plain(path) for i, path in enumerate(paths) if path and path not in other})
            for paths, other in zip(names, map(set, reversed(names)), strict=True)
        ]
        for name in alone[0].keys() & alone[1].keys():
            names[1][alone[1][name]] = names[0][alone[0][name]]
    return names[0], names[1]


def _unique(names: Mapping[int, str]) -> dict[str, int]:
    """Return the layer of each name that one layer has alone."""
    counts = Counter(names.values())
    return {name: i for i, name in names.items() if counts[name] == 1}


def _type_feature(a: RunLayers, b: RunLayers) -> Feature:
    """Return the types; a type outside the vocabulary and in one run only is unknown."""
    types_a, types_b = ([layer.layer_type for layer in side.layers] for side in (a, b))
    common = {type_.word for type_ in types_a if type_} & {type_.word for type_ in types_b if type_}

    def word(type_: Any) -> str | None:
        return type_.word if type_ and (type_.kind or type_.word in common) else None

    return Feature(
        "type", _AGREEMENT["type"], *_codes([word(t) for t in types_a], [word(t) for t in types_b])
    )


def _flops_feature(a: RunLayers, b: RunLayers, shift: float | None) -> Feature:
    if shift is None:
        unknown = (np.full(len(side.layers), UNKNOWN, dtype=np.int64) for side in (a, b))
        return Feature("flops", _AGREEMENT["flops"], *unknown)
    half = shift / 2
    logs = [
        np.log(layer.flops) + moved if layer.flops else np.nan
        for side, moved in ((a, half), (b, -half))
        for layer in side.layers
    ]
    values = np.array(logs, dtype=np.float64)
    order = np.argsort(values, kind="stable")  # NaN last
    apart = np.diff(values[order], prepend=values[order[:1]]) > SAME_FLOPS
    codes = np.full(len(values), UNKNOWN, dtype=np.int64)
    codes[order] = np.cumsum(apart)
    codes[np.isnan(values)] = UNKNOWN
    return Feature("flops", _AGREEMENT["flops"], codes[: len(a.layers)], codes[len(a.layers) :])


def _codes(a: Sequence[Any], b: Sequence[Any]) -> tuple[Codes, Codes]:
    numbers: dict[Any, int] = {}
    codes = [
        UNKNOWN if value is None else numbers.setdefault(value, len(numbers)) for value in (*a, *b)
    ]
    both = np.array(codes, dtype=np.int64)
    return both[: len(a)], both[len(a) :]


def best_assignment(worth: Matrix) -> list[tuple[int, int]]:
    """Return pairs (row, column), each in at most one, with the greatest summed worth.

    Pairs without positive worth are left out.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(np.maximum(worth, 0.0), maximize=True)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(row, column) for row, column in pairs if worth[row, column] > 0]
