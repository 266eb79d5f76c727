"""Three networks in three frameworks: which layer is which, with the layers' names out of sight."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import msgspec
import polars as pl
import pytest
from msgspec.structs import replace

from tests.support.forked import with_torch
from tests.support.frameworks import needs
from tests.support.opened import opened
from traceana.analyze.manifest_layers import paired
from traceana.comparison.layer_alignment import Alignment, align
from traceana.comparison.layer_features import RunLayers, run_layers
from traceana.runs.layer_manifest import Manifest, find, read
from traceana.trace import Trace
from workloads.pytorch.__main__ import main

FIXTURES = Path(__file__).parents[2] / "fixtures"
FRAMEWORKS = ("pytorch", "keras", "jax")
NETWORKS = {"alexnet": 8, "googlenet": 58, "resnet50": 107}
"""How many layers of each have a weight; of ResNet-50 half are normalizations."""


class Run:
    """One side as the aligner sees it, and the shared name of each of its layers.

    Every layer is renamed, in the trace and in its manifest, to a path that means nothing: neither
    the names nor their order help. The order of execution stays.
    """

    def __init__(self, trace: Trace, model: Manifest, *, manifest: bool) -> None:
        named = {row: layer.path for row, layer in paired(trace, model).layer_of.items()}
        paths = trace.tables.layers["path"].to_list()
        # Of its own in each run: no path is in two of them.
        codes = random.Random(f"{trace.meta.source}").sample(range(10**6), len(paths))
        hidden = [f"thing{code:06}" for code in codes]
        # The loss is in no manifest.
        self.name = {
            hidden[row]: named.get(row, path.rpartition(".")[2]) for row, path in enumerate(paths)
        }
        code_of = {named[row]: hidden[row] for row in named}
        renamed = trace.with_tables(
            layers=trace.tables.layers.with_columns(pl.Series("path", hidden))
        )
        layers = tuple(
            msgspec.structs.replace(one, path=code_of.get(one.path, f"absent{number}"))
            for number, one in enumerate(model.layers)
        )
        blind = msgspec.structs.replace(model, layers=layers)
        self.side = run_layers(renamed, blind if manifest else None)
        self.weighted = {one.path for one in model.layers if "weight" in one.parameters}
        self.names = [self.name[layer.label] for layer in self.side.layers]


def file_of(network: str, framework: str) -> Path:
    endings = (
        "ranges.json.gz" if (network, framework) == ("alexnet", "pytorch") else f"{framework}.*"
    )
    (found,) = (
        file
        for file in FIXTURES.rglob(f"{network}-cpu-{endings}")
        if file.name.endswith(("pb", "pb.gz", f"{endings}", "pytorch.json.gz"))
    )
    return found


def run_of(file: Path, *, manifest: bool) -> Run:
    beside = find(file)
    assert beside is not None
    return Run(opened(file), read(beside), manifest=manifest)


@cache
def seen(network: str, framework: str, manifest: bool) -> Run:
    return run_of(file_of(network, framework), manifest=manifest)


@cache
def aligned(a: Run, b: Run) -> Alignment:
    return align(a.side, b.side)


def pairs(a: Run, b: Run, found: Alignment) -> list[tuple[str, str, float]]:
    return [(a.names[p.a], b.names[p.b], p.confidence) for p in found.pairs]


def right(reported: Iterable[tuple[str, str, float]]) -> set[str]:
    return {one for one, other, _ in reported if one == other}


def wrong(reported: Iterable[tuple[str, str, float]]) -> list[tuple[str, str, float]]:
    return [pair for pair in reported if pair[0] != pair[1]]


@pytest.mark.exhaustive(after=8)
@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), list(permutations(FRAMEWORKS, 2)))
@pytest.mark.parametrize("network", NETWORKS)
def test_every_weighted_layer_is_paired_right(network: str, one: str, other: str) -> None:
    a, b = seen(network, one, True), seen(network, other, True)
    found = aligned(a, b)
    reported = pairs(a, b, found)
    assert len(a.weighted) == NETWORKS[network]
    assert a.weighted <= right(reported)
    assert min(sure for name, _, sure in reported if name in a.weighted) > 0.9
    assert found.confidence is not None
    assert found.confidence > 0.95


@pytest.mark.parametrize("network", NETWORKS)
def test_of_layers_without_weights_one_pair_in_a_hundred_is_wrong_and_none_is_sure(
    network: str,
) -> None:
    """XLA merges layers into others: what it leaves of one may be taken for its neighbour."""
    for one, other in combinations(FRAMEWORKS, 2):
        a, b = seen(network, one, True), seen(network, other, True)
        reported = [pair for pair in pairs(a, b, aligned(a, b)) if pair[0] not in a.weighted]
        assert len(reported) >= 0.9 * min(len(a.names), len(b.names)) - NETWORKS[network]
        assert len(wrong(reported)) <= 0.01 * len(reported) + (network == "resnet50")
        assert all(sure < 0.5 for *_, sure in wrong(reported))


@pytest.mark.parametrize("manifests", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("network", NETWORKS)
def test_shapes_of_a_trace_are_as_good_as_a_manifest_s(
    network: str, manifests: tuple[bool, bool]
) -> None:
    """PyTorch's operators and XLA's instructions tell what multiplies; XLA's no normalization."""
    a, b = seen(network, "pytorch", manifests[0]), seen(network, "jax", manifests[1])
    reported = pairs(a, b, aligned(a, b))
    multiply = {name for name in a.weighted if not name.startswith("bn")}
    assert (a.weighted if manifests[1] else multiply) <= right(reported)


@pytest.mark.parametrize("manifest", [True, False])
@pytest.mark.parametrize("network", ["alexnet", "resnet50"])
def test_types_and_order_suffice_where_one_layer_follows_another(
    network: str, manifest: bool
) -> None:
    """Keras' trace of the CPU has neither shapes nor counts."""
    a, b = seen(network, "pytorch", manifest), seen(network, "keras", False)
    reported = pairs(a, b, aligned(a, b))
    assert a.weighted <= right(reported)
    assert not wrong(reported)


def test_no_pair_is_surer_than_it_may_be() -> None:
    """Of branches that ran in another order, and of which nothing else is known, many are wrong."""
    reported: list[tuple[str, str, float]] = []
    for network in NETWORKS:
        for one, other in combinations(FRAMEWORKS, 2):
            for with_a, with_b in ((True, True), (True, False), (False, True), (False, False)):
                a, b = seen(network, one, with_a), seen(network, other, with_b)
                reported += pairs(a, b, aligned(a, b))
    sure = [pair for pair in reported if pair[2] > 0.8]
    assert len(sure) > 1500
    assert not wrong(sure)
    middle = [pair for pair in reported if 0.6 < pair[2] <= 0.8]
    assert len(wrong(middle)) < 0.1 * len(middle)


def executed_otherwise(run: Run, seed: int) -> tuple[RunLayers, list[str]]:
    """Return the side with the branches of each inception module in another order."""
    chance = random.Random(seed)
    modules: dict[str, dict[str, list[int]]] = {}
    for place, name in enumerate(run.names):
        number, _, branch = name.removeprefix("inception_").partition("_")
        if name.startswith("inception_") and branch != "output":
            # "3x3_reduce_relu" and "3x3" are of one branch, and so are the pool and what follows.
            modules.setdefault(number, {}).setdefault(branch.partition("_")[0], []).append(place)
    order = list(range(len(run.names)))
    for branches in modules.values():
        places = sorted(place for branch in branches.values() for place in branch)
        left = list(branches.values())
        mixed: list[int] = []
        while left := [branch for branch in left if branch]:
            mixed.append(chance.choice(left).pop(0))
        for place, taken in zip(places, mixed, strict=True):
            order[place] = taken
    layers = tuple(run.side.layers[place] for place in order)
    return replace(run.side, layers=layers), [run.names[place] for place in order]


@pytest.mark.parametrize(("one", "other"), [("pytorch", "keras"), ("keras", "jax")])
def test_branches_that_run_in_another_order_are_not_swapped(one: str, other: str) -> None:
    a, b = seen("googlenet", one, True), seen("googlenet", other, True)
    for seed in range(5):
        there, names = executed_otherwise(b, seed)
        found = align(a.side, there)
        reported = [(a.names[p.a], names[p.b], p.confidence) for p in found.pairs]
        # Two parallel layers of one shape are indistinguishable without names.
        assert all(alike(a, name, told_as) for name, told_as, _ in wrong(reported))
        assert sum(p.how == "moved" for p in found.pairs) > 10
        paired_weights = {name for name, *_ in reported} & a.weighted
        assert len(paired_weights) >= 0.95 * len(a.weighted)


def alike(run: Run, one: str, other: str) -> bool:
    a, b = (run.side.layers[run.names.index(name)] for name in (one, other))
    return (a.layer_type, a.takes, a.gives, a.weight) == (b.layer_type, b.takes, b.gives, b.weight)


@pytest.fixture(scope="session")
def other_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GoogLeNet as in the fixtures, but 3 images in place of 2."""
    needs("torch")
    file = tmp_path_factory.mktemp("batch") / "googlenet.json.gz"
    words = (
        "--network", "googlenet", "--batch", "3", "--image-size", "64", "--width-divisor", "8",
        "--classes", "10", "--steps", "1", "--warm-up", "1", "--ranges", "record-function",
        "--forward-only", "--fused-optimizer", "--trace", str(file),
        "--manifest", str(file.with_name("googlenet.layers.json")),
    )  # fmt: skip
    with_torch(file.with_name("log"), main, words)
    return file


@pytest.mark.parametrize("manifest", [True, False])
def test_another_batch_is_the_same_network(other_batch: Path, manifest: bool) -> None:
    """AlexNet's recordings are of other batches too: 8 images in PyTorch, 4 in Keras and JAX."""
    a = run_of(other_batch, manifest=manifest)
    assert a.side.batch == 3
    for framework in FRAMEWORKS:
        b = seen("googlenet", framework, True)
        assert b.side.batch == 2
        reported = pairs(a, b, aligned(a, b))
        assert a.weighted <= right(reported)
        assert not wrong(reported)
