"""Synthetic images and starting weights, the same for every framework.

NumPy generates them from a seed, so that two frameworks start from equal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from workloads.network import BatchNorm, Network
from workloads.shapes import layer_shapes


@dataclass(frozen=True)
class Batch:
    """``images`` is (batch, C, H, W) float32, normal(0, 1); ``labels`` (batch,) int64."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def synthetic_batch(network: Network, batch: int, seed: int) -> Batch:
    """Return random images with random labels for ``network``."""
    random = np.random.default_rng([seed, 0])
    classes = layer_shapes(network)[-1].output[0]
    shape = (batch, network.channels, network.image_size, network.image_size)
    images = random.standard_normal(shape, dtype=np.float32)
    return Batch(images, random.integers(0, classes, batch, dtype=np.int64))


def initial_weights(network: Network, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return weights by layer name, in the shapes of ``LayerShape.weight``; biases are 0.

    Normal with deviation sqrt(2 / fan-in): He et al. 2015, for layers that feed a ReLU. Those of a
    batch normalization are 1.
    """
    random = np.random.default_rng([seed, 1])
    weights: dict[str, NDArray[np.float32]] = {}
    for shape in layer_shapes(network):
        if isinstance(shape.layer, BatchNorm) and shape.weight is not None:
            weights[shape.layer.name] = np.ones(shape.weight, dtype=np.float32)
        elif shape.weight is not None:
            deviation = np.float32(sqrt(2 / prod(shape.weight[1:])))
            weights[shape.layer.name] = deviation * random.standard_normal(
                shape.weight, dtype=np.float32
            )
    return weights
