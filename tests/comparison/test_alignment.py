"""Layers are paired as the truth has them, whichever run is named first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.networks import (
    Changed,
    deleted,
    inserted,
    network,
    renamed,
    reordered,
    split,
)
from traceana.comparison import layer_alignment
from traceana.comparison.layer_alignment import Alignment, align
from traceana.comparison.layer_features import Layer, RunLayers
from traceana.vocabulary.layer_types import type_of

SEEDS = range(40)
Change = Callable[[RunLayers, int], Changed]


def untouched(side: RunLayers) -> Changed:
    return Changed(side, {place: place for place in range(len(side.layers))})


CHANGES: dict[str, Change] = {
    "renamed": lambda side, seed: renamed(side, seed),
    "another framework": lambda side, seed: renamed(side, seed, words=True),
    "deleted": lambda side, seed: deleted(renamed(side, seed), seed + 1, 3),
    "inserted": lambda side, seed: inserted(renamed(side, seed), seed + 1, 3),
    "split": lambda side, seed: split(renamed(side, seed), seed + 1),
    "reordered": lambda side, seed: reordered(renamed(side, seed), seed + 1),
    "reordered, names kept": lambda side, seed: reordered(untouched(side), seed + 1),
    "all": lambda side, seed: inserted(
        deleted(renamed(side, seed, words=True), seed + 1, 3), seed + 2, 3
    ),
}


def known(layer: Layer) -> object:
    return layer.layer_type, layer.takes, layer.gives, layer.weight, layer.flops


@cache
def case(change: str, seed: int) -> tuple[RunLayers, Changed, Alignment]:
    """Return a network, its changed version, and the alignment of both."""
    before = network(seed)
    after = CHANGES[change](before, seed)
    return before, after, align(before, after.side)


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("change", CHANGES)
def test_99_of_100_pairs_are_right(change: str) -> None:
    """Two layers that differ in nothing but their names are the same to anyone without them."""
    pairs = right = said = wrong = 0
    for seed in SEEDS:
        _, after, alignment = case(change, seed)
        found = {pair.a: pair.b for pair in alignment.pairs}
        pairs += len(after.truth)
        said += len(found)
        for place, partner in after.truth.items():
            reported = found.get(place)
            right += reported is not None and known(after.side.layers[reported]) == known(
                after.side.layers[partner]
            )
        wrong += sum(
            place not in after.truth
            or known(after.side.layers[reported]) != known(after.side.layers[after.truth[place]])
            for place, reported in found.items()
        )
    assert right >= 0.99 * pairs
    assert wrong <= 0.01 * said


def test_confidences_are_calibrated() -> None:
    reported: list[tuple[float, bool]] = []
    for seed in SEEDS:
        for change in CHANGES:
            _, after, alignment = case(change, seed)
            for pair in alignment.pairs:
                reported.append((pair.confidence, after.truth.get(pair.a) == pair.b))
    sure = [right for confidence, right in reported if confidence > 0.9]
    unsure = [right for confidence, right in reported if confidence <= 0.6]
    assert sum(sure) / len(sure) > 0.999
    assert len(unsure) > 10
    assert sum(unsure) / len(unsure) < 0.75


@pytest.mark.parametrize("change", CHANGES)
def test_both_orders_give_the_same_pairs(change: str) -> None:
    for seed in range(10):
        before, after, there = case(change, seed)
        back = align(after.side, before)
        assert {(p.a, p.b, p.confidence, p.how) for p in there.pairs} == {
            (p.b, p.a, p.confidence, p.how) for p in back.pairs
        }
        assert there.alone_a == back.alone_b
        assert there.alone_b == back.alone_a


def test_a_network_is_itself() -> None:
    for seed in range(10):
        side = network(seed)
        assert [(p.a, p.b) for p in align(side, side).pairs] == [
            (place, place) for place in range(len(side.layers))
        ]


def test_equal_paths_pair_layers_of_another_width_and_batch() -> None:
    """A network twice as wide has no shape, weight or count in common, but the paths."""
    before = network(3)
    wider = RunLayers(
        tuple(
            replace(
                one,
                takes=f"2x{one.takes}",
                gives=f"2x{one.gives}",
                weight=None if one.weight is None else 4 * one.weight + place,
                flops=(one.flops or 0) * (3 + place / 50),
            )
            for place, one in enumerate(before.layers)
        ),
        64,
    )
    assert [(p.a, p.b) for p in align(before, wider).pairs] == [
        (place, place) for place in range(len(before.layers))
    ]


def test_equal_paths_do_not_force_what_is_no_longer_there() -> None:
    """A layer added in front moves every index of a sequential model by one."""
    before = network(5)
    numbered = [replace(one, path=f"features.{i}") for i, one in enumerate(before.layers)]
    new = Layer("new", "Conv2d", type_of("Conv2d"), "features.0", None, "3x7x7", "5x7x7", 99, 5e5)
    moved = [replace(one, path=f"features.{i + 1}") for i, one in enumerate(before.layers)]
    pairs = align(RunLayers(tuple(numbered), 32), RunLayers((new, *moved), 32)).pairs
    right = sum(pair.b == pair.a + 1 for pair in pairs)
    assert right >= 0.9 * len(before.layers)


@pytest.mark.parametrize("place", range(6))
def test_a_layer_that_ran_elsewhere_is_paired_by_its_path(place: int) -> None:
    """A row of a compiled graph has no shapes: path and type are all that is known of it."""
    products = [
        replace(one, path=f"block.{i}") for i, one in enumerate(network(2).layers) if one.weight
    ][:5]
    fused = Layer("fused", "fused", type_of("fused"), "block.norm+relu")
    shaped = replace(fused, takes="8x8x16", weight=16, flops=26624.75, category="normalization")
    before = RunLayers((*products[:3], shaped, *products[3:]), 32)
    after = RunLayers((*products[:place], fused, *products[place:]), 32)
    found = {pair.a: pair for pair in align(before, after).pairs}
    assert (found[3].b, found[3].how) == (place, "order" if place == 3 else "moved")
    assert found[3].confidence > 0.5
    assert len(found) == 6


def test_a_layer_that_stands_in_its_place_does_not_take_its_pair() -> None:
    """Where the row of one run is, the other has the sum of a block, of which nothing agrees."""
    products = [
        replace(one, path=f"block.{i}") for i, one in enumerate(network(2).layers) if one.weight
    ][:5]
    fused = Layer("fused", "fused", type_of("fused"), "block.norm+relu")
    block = Layer("block", "Block", type_of("Block"), "block", takes="8x8x16", gives="8x8x16")
    before = RunLayers((*products[:2], fused, products[2], block, *products[3:]), 32)
    after = RunLayers((*products[:3], fused, *products[3:]), 32)
    assert {pair.a: pair.b for pair in align(before, after).pairs} == {
        0: 0, 1: 1, 2: 3, 3: 2, 5: 4, 6: 5
    }  # fmt: skip


@pytest.mark.parametrize("feature", [{"weight": 3}, {"layer_type": type_of("Linear")}])
def test_an_equal_path_of_another_layer_elsewhere_pairs_nothing(feature: dict[str, Any]) -> None:
    products = [
        replace(one, path=f"block.{i}") for i, one in enumerate(network(2).layers) if one.weight
    ][:5]
    one = Layer("one", "LayerNorm", type_of("LayerNorm"), "block.one", takes="7x64", weight=64)
    other = replace(one, takes="9x32", gives="9x2", flops=576.0, **feature)
    before, after = (one, *products), (*products, other)
    pairs = {(pair.a, pair.b) for pair in align(RunLayers(before), RunLayers(after)).pairs}
    assert pairs == {(i + 1, i) for i in range(5)}


def test_forced_pairs_are_kept_whatever_speaks_against_them() -> None:
    before = network(1)
    after = renamed(before, 2).side
    found = align(before, after, {0: 5})
    assert (found.pairs[0].a, found.pairs[0].b) == (0, 5)
    assert found.pairs[0].how == "map"
    assert found.pairs[0].confidence == 1.0
    assert [(p.a, p.b) for p in found.pairs if p.b == 5] == [(0, 5)]


def test_unknown_features_give_no_confident_pair() -> None:
    blank = RunLayers(tuple(Layer(f"layer{number}") for number in range(4)))
    other = RunLayers(tuple(Layer(f"thing{number}") for number in range(9)))
    confidence = align(blank, other).confidence
    assert confidence is not None
    assert confidence < 0.7
    assert align(RunLayers(()), RunLayers(())).confidence is None


@pytest.mark.parametrize(
    "names",
    [
        ("Conv2d", "conv2d", "Conv2D", "convolution", "aten::conv2d", "_MklNativeConv2DWithBias"),
        ("BatchNorm2d", "batch_norm", "FusedBatchNormV3", "BatchNormalization"),
        ("Linear", "Dense", "aten::linear", "addmm"),
        ("ReLU", "relu_", "Relu"),
    ],
)
def test_frameworks_words_for_one_type_are_one(names: tuple[str, ...]) -> None:
    assert len({type_of(name) for name in names}) == 1


def test_a_word_in_no_vocabulary_stands_for_itself() -> None:
    reported = type_of("TimesformerEmbeddings")
    assert reported is not None
    assert reported.kind is None
    assert type_of(None) is None
    assert type_of("::") is None


@pytest.mark.parametrize("change", ["deleted", "inserted", "reordered"])
def test_layers_with_kept_names_are_paired_alike_in_pieces(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Change] = {
        "deleted": lambda side, seed: deleted(untouched(side), seed + 1, 3),
        "inserted": lambda side, seed: inserted(untouched(side), seed + 1, 3),
        "reordered": lambda side, seed: reordered(untouched(side), seed + 1),
    }
    for seed in SEEDS:
        before = network(seed)
        after = changes[change](before, seed)
        monkeypatch.setattr(layer_alignment, "_MOST_CELLS", 1)
        found = align(before, after.side)
        assert {pair.a: pair.b for pair in found.pairs} == after.truth
        back = align(after.side, before)
        assert {pair.b: pair.a for pair in back.pairs} == after.truth


def test_thousands_of_layers_are_paired_by_their_paths_and_between_them() -> None:
    """Every tenth layer of one run is missing in the other; every tenth has another name there."""
    kinds = [type_of(name) for name in ("Conv2d", "BatchNorm2d", "ReLU", "Linear")]
    every = [
        Layer(f"block.{i}", path=f"block.{i}", layer_type=kinds[i % 4], weight=i)
        for i in range(6000)
    ]
    truth: dict[int, int] = {}
    after: list[Layer] = []
    for i, layer in enumerate(every):
        if i % 10 != 3:
            truth[i] = len(after)
            after.append(replace(layer, path=f"other.{i}") if i % 10 == 7 else layer)
    found = align(RunLayers(tuple(every)), RunLayers(tuple(after)))
    assert {pair.a: pair.b for pair in found.pairs} == truth
    assert {pair.how for pair in found.pairs} == {"order"}
    assert all(found.alone_a[i] > 0.5 for i in range(3, 6000, 10))


def test_thousands_of_layers_without_a_common_path_are_aligned_in_windows() -> None:
    kinds = [type_of(name) for name in ("Conv2d", "BatchNorm2d", "ReLU", "Linear")]
    before, after = (
        RunLayers(
            tuple(
                Layer(f"{run}.{i}", path=f"{run}.{i}", layer_type=kinds[i % 4], weight=i)
                for i in range(2500)
            )
        )
        for run in "ab"
    )
    found = align(before, after)
    assert {pair.a: pair.b for pair in found.pairs} == {i: i for i in range(2500)}
