"""The descriptions of the networks: names, shapes and parameters in closed form, no framework."""

from __future__ import annotations

import numpy as np
import pytest

from workloads.data import initial_weights, synthetic_batch
from workloads.network import Conv, Linear, Network, NetworkError, ReLU
from workloads.networks import NETWORKS
from workloads.shapes import LayerShape, layer_shapes, parameter_count

ONE_TOWER = (
    "conv1 relu1 pool1 conv2 relu2 pool2 conv3 relu3 conv4 relu4 conv5 relu5 pool5 "
    "flatten fc6 relu6 drop6 fc7 relu7 drop7 fc8"
)
TWO_TOWERS = ONE_TOWER.replace("pool1", "norm1 pool1").replace("pool2", "norm2 pool2")


def shapes_by_name(network: Network) -> dict[str, LayerShape]:
    return {shape.layer.name: shape for shape in layer_shapes(network)}


@pytest.mark.parametrize(("name", "layers"), [("alexnet", ONE_TOWER), ("alexnet_2012", TWO_TOWERS)])
def test_layer_names(name: str, layers: str) -> None:
    assert [layer.name for layer in NETWORKS[name]().layers] == layers.split()


def test_one_tower_has_the_parameters_of_its_closed_form() -> None:
    convolutions = (
        (64 * 3 * 11 * 11 + 64)
        + (192 * 64 * 5 * 5 + 192)
        + (384 * 192 * 3 * 3 + 384)
        + (256 * 384 * 3 * 3 + 256)
        + (256 * 256 * 3 * 3 + 256)
    )
    classifier = (256 * 6 * 6 * 4096 + 4096) + (4096 * 4096 + 4096) + (4096 * 1000 + 1000)
    assert parameter_count(NETWORKS["alexnet"]()) == convolutions + classifier == 61_100_840


def test_groups_halve_the_weights_of_the_two_towers() -> None:
    shapes = shapes_by_name(NETWORKS["alexnet_2012"]())
    assert shapes["conv2"].weight == (256, 48, 5, 5)
    assert shapes["conv3"].weight == (384, 256, 3, 3)
    assert parameter_count(NETWORKS["alexnet_2012"]()) == 60_965_224


@pytest.mark.parametrize(
    ("name", "conv1", "pool5"),
    [("alexnet", (64, 55, 55), (256, 6, 6)), ("alexnet_2012", (96, 55, 55), (256, 6, 6))],
)
def test_shapes_are_the_papers(name: str, conv1: tuple[int, ...], pool5: tuple[int, ...]) -> None:
    shapes = shapes_by_name(NETWORKS[name]())
    assert shapes["conv1"].output == conv1
    assert shapes["pool5"].output == pool5
    assert shapes["fc6"].input == (9216,)
    assert shapes["fc8"].output == (1000,)


def test_each_layer_takes_what_the_one_before_gives() -> None:
    shapes = layer_shapes(NETWORKS["alexnet_2012"](image_size=99, width_divisor=16, classes=7))
    assert [shape.input for shape in shapes[1:]] == [shape.output for shape in shapes[:-1]]
    assert shapes[-1].output == (7,)


def test_a_network_that_cannot_be_is_refused() -> None:
    with pytest.raises(NetworkError, match="divisor 7 does not divide 64 channels"):
        NETWORKS["alexnet"](width_divisor=7)
    with pytest.raises(NetworkError, match="pool2: its 3x3 window does not fit into 2x2"):
        layer_shapes(NETWORKS["alexnet"](image_size=30))
    with pytest.raises(NetworkError, match="2 groups do not divide 3 input"):
        layer_shapes(Network("n", 8, (Conv("c", 4, kernel=3, groups=2),)))
    with pytest.raises(NetworkError, match="needs a flattened input"):
        layer_shapes(Network("n", 8, (Linear("fc", 4),)))
    with pytest.raises(NetworkError, match="same name"):
        Network("n", 8, (ReLU("relu"), ReLU("relu")))


def test_images_and_weights_come_from_the_seed_alone() -> None:
    network = NETWORKS["alexnet"](image_size=67, width_divisor=16, classes=10)
    one, same, other = (synthetic_batch(network, 4, seed) for seed in (3, 3, 4))
    assert one.images.shape == (4, 3, 67, 67)
    assert one.images.dtype == np.float32
    np.testing.assert_array_equal(one.images, same.images)
    assert not np.array_equal(one.images, other.images)
    assert set(one.labels.tolist()) <= set(range(10))
    weights = initial_weights(network, 3)
    assert weights["fc6"].shape == (256, 16)
    np.testing.assert_array_equal(weights["conv2"], initial_weights(network, 3)["conv2"])
    # He initialization: variance 2 / fan-in; conv4 has 16 * 24 * 9 = 3456 values.
    assert weights["conv4"].var() == pytest.approx(2 / (24 * 9), rel=0.1)
