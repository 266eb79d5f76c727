"""Generated networks and their changed versions, with the true matches of layers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from msgspec.structs import replace

from traceana.comparison.layer_features import Layer, RunLayers
from traceana.vocabulary.layer_types import type_of

Pairs = dict[int, int]
"""Place in the first network -> place in the second."""

_OTHER_WORDS = {
    "Conv2d": "Conv2D",
    "BatchNorm2d": "BatchNormalization",
    "ReLU": "relu",
    "MaxPool2d": "MaxPooling2D",
    "AvgPool2d": "AveragePooling2D",
    "Linear": "Dense",
    "Dropout": "Dropout",
}


@dataclass(frozen=True)
class Changed:
    """A network, and which of its layers the first one's are."""

    side: RunLayers
    truth: Pairs


def network(seed: int, blocks: int = 12) -> RunLayers:
    """Return a network of convolutional blocks with repeats, as residual networks have them."""
    rng = random.Random(seed)
    layers: list[Layer] = []
    channels, size = 3, rng.choice([96, 128, 192, 224])

    def add(kind: str, takes: str, gives: str, weight: int | None, flops: float) -> None:
        category = {"Conv2d": "conv", "Linear": "gemm", "BatchNorm2d": "normalization"}.get(kind)
        path = f"stage{len(layers) // 9}.{kind.lower()}{len(layers)}"
        layers.append(
            Layer(path, kind, type_of(kind), path, None, takes, gives, weight, flops, category)
        )

    for _ in range(blocks):
        wide = channels if channels > 3 and rng.random() < 0.5 else rng.choice([16, 32, 64, 96])
        kernel = rng.choice([1, 3, 3, 5])
        here, there = f"{channels}x{size}x{size}", f"{wide}x{size}x{size}"
        weight = wide * channels * kernel**2
        add("Conv2d", here, there, weight, 6.0 * weight * size**2)
        if rng.random() < 0.8:
            add("BatchNorm2d", there, there, wide, 10.0 * wide * size**2)
        add("ReLU", there, there, None, 2.0 * wide * size**2)
        channels = wide
        if rng.random() < 0.3 and size > 8:
            half = size // 2
            kind = rng.choice(["MaxPool2d", "AvgPool2d"])
            add(kind, there, f"{wide}x{half}x{half}", None, 9.0 * wide * half**2)
            size = half
    features = channels * size**2
    for wide in (256, 256, 10):
        add("Linear", str(features), str(wide), wide * features, 6.0 * wide * features)
        features = wide
    return RunLayers(tuple(layers), 32)


def renamed(side: RunLayers, seed: int, *, words: bool = False) -> Changed:
    """Give every layer a name of its own; with ``words`` the types another framework's words."""
    rng = random.Random(seed)
    layers = [
        replace(
            one,
            label=f"n{rng.random():.12f}",
            path=f"n{rng.random():.12f}",
            type=_OTHER_WORDS[one.type or ""] if words else one.type,
        )
        for one in side.layers
    ]
    layers = [replace(one, layer_type=type_of(one.type)) for one in layers]
    return Changed(RunLayers(tuple(layers), side.batch), {i: i for i in range(len(layers))})


def deleted(before: Changed, seed: int, count: int) -> Changed:
    """Leave out ``count`` layers."""
    rng = random.Random(seed)
    gone = set(rng.sample(range(len(before.side.layers)), count))
    kept = [j for j in range(len(before.side.layers)) if j not in gone]
    place = {j: at for at, j in enumerate(kept)}
    layers = tuple(before.side.layers[j] for j in kept)
    truth = {i: place[j] for i, j in before.truth.items() if j in place}
    return Changed(RunLayers(layers, before.side.batch), truth)


def inserted(before: Changed, seed: int, count: int) -> Changed:
    """Add ``count`` layers that the network did not have."""
    rng = random.Random(seed)
    layers = list(before.side.layers)
    truth = dict(before.truth)
    for number in range(count):
        at = rng.randrange(len(layers) + 1)
        kind = rng.choice(["Conv2d", "Dropout", "Linear"])
        width = rng.randrange(1000, 9000)
        name = f"new{number}"
        new = Layer(name, kind, type_of(kind), name, None, str(width), str(width), width * 7, 1e6)
        layers.insert(at, new)
        truth = {i: j + (j >= at) for i, j in truth.items()}
    return Changed(RunLayers(tuple(layers), before.side.batch), truth)


def split(before: Changed, seed: int) -> Changed:
    """Cut a convolution into two of half its width, the first of which is its match."""
    rng = random.Random(seed)
    layers = list(before.side.layers)
    at = rng.choice([j for j, one in enumerate(layers) if one.type in ("Conv2d", "Conv2D")])
    one = layers[at]
    half = replace(one, weight=(one.weight or 0) // 2, flops=(one.flops or 0) / 2)
    layers[at : at + 1] = [replace(half, label=f"{one.label}.0"), replace(half, label="half")]
    truth = {i: j + (j > at) for i, j in before.truth.items()}
    return Changed(RunLayers(tuple(layers), before.side.batch), truth)


def reordered(before: Changed, seed: int) -> Changed:
    """Let a layer with a weight run at another place, some layers away."""
    rng = random.Random(seed)
    layers = list(before.side.layers)
    weighted = [j for j, one in enumerate(layers) if one.weight and one.type != "BatchNorm2d"]
    old = rng.choice(weighted)
    new = max(0, min(len(layers) - 1, old + rng.choice([-4, -3, 3, 4])))
    order = list(range(len(layers)))
    order.insert(new, order.pop(old))
    place = {j: at for at, j in enumerate(order)}
    truth = {i: place[j] for i, j in before.truth.items()}
    return Changed(RunLayers(tuple(layers[j] for j in order), before.side.batch), truth)
