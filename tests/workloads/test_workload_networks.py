"""The descriptions of the networks: names, shapes and parameters in closed form, no framework."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.manifests import manifest_of
from workloads.data import initial_weights, synthetic_batch
from workloads.network import (
    IMAGES,
    Add,
    AvgPool,
    Concatenate,
    Conv,
    Layer,
    Linear,
    MaxPool,
    Network,
    NetworkError,
    ReLU,
)
from workloads.networks import NETWORKS
from workloads.options import RunOptions
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


def _conv(out: int, given: int, kernel: int, *, bias: bool = True) -> int:
    return out * given * kernel * kernel + (out if bias else 0)


def _vgg16() -> int:
    channels = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    convolutions = sum(
        _conv(out, given, 3) for out, given in zip(channels, (3, *channels), strict=False)
    )
    return convolutions + (512 * 49 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000


def _inception(given: int, a: int, b: int, c: int, d: int, e: int, f: int) -> int:
    branches = (_conv(a, given, 1), _conv(b, given, 1), _conv(c, b, 3), _conv(d, given, 1))
    return sum(branches) + _conv(e, d, 5) + _conv(f, given, 1)


def _googlenet() -> int:
    stem = _conv(64, 3, 7) + _conv(64, 64, 1) + _conv(192, 64, 3)
    modules = (
        _inception(192, 64, 96, 128, 16, 32, 32),
        _inception(256, 128, 128, 192, 32, 96, 64),
        _inception(480, 192, 96, 208, 16, 48, 64),
        _inception(512, 160, 112, 224, 24, 64, 64),
        _inception(512, 128, 128, 256, 24, 64, 64),
        _inception(512, 112, 144, 288, 32, 64, 64),
        _inception(528, 256, 160, 320, 32, 128, 128),
        _inception(832, 256, 160, 320, 32, 128, 128),
        _inception(832, 384, 192, 384, 48, 128, 128),
    )
    return stem + sum(modules) + (1024 + 1) * 1000


def _normalized(out: int, given: int, kernel: int) -> int:
    return _conv(out, given, kernel, bias=False) + 2 * out


def _resnet18() -> int:
    total, given = _normalized(64, 3, 7), 64
    for out in (64, 128, 256, 512):
        total += _normalized(out, given, 3) + 3 * _normalized(out, out, 3)
        total += _normalized(out, given, 1) if out != given else 0
        given = out
    return total + (512 + 1) * 1000


def _resnet50() -> int:
    total, given = _normalized(64, 3, 7), 64
    for inner, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        out = 4 * inner
        total += _normalized(out, given, 1)
        for _ in range(blocks):
            way = ((inner, given, 1), (inner, inner, 3), (out, inner, 1))
            total += sum(_normalized(*each) for each in way)
            given = out
    return total + (2048 + 1) * 1000


CLOSED = {
    "vgg16": (_vgg16(), 138_357_544),
    "googlenet": (_googlenet(), 6_998_552),
    "resnet18": (_resnet18(), 11_689_512),
    "resnet50": (_resnet50(), 25_557_032),
    "lenet5": (6 * 26 + 16 * 151 + 120 * 401 + 84 * 121 + 10 * 85, 61_706),
    "cifar10_quick": (32 * 76 + 32 * 801 + 64 * 801 + 64 * 1025 + 10 * 65, 145_578),
    "mlp": (512 * 785 + 512 * 513 + 10 * 513, 669_706),
}


@pytest.mark.parametrize("name", CLOSED)
def test_parameters_are_those_of_the_closed_form_and_the_published_number(name: str) -> None:
    closed, published = CLOSED[name]
    assert parameter_count(NETWORKS[name]()) == closed == published


def test_every_network_has_its_count() -> None:
    assert set(NETWORKS) == set(CLOSED) | {"alexnet", "alexnet_2012"}


@pytest.mark.parametrize(
    ("name", "layer", "output"),
    [
        ("vgg16", "pool5", (512, 7, 7)),
        ("googlenet", "pool1_3x3_s2", (64, 56, 56)),
        ("googlenet", "inception_3a_output", (256, 28, 28)),
        ("googlenet", "inception_4e_output", (832, 14, 14)),
        ("googlenet", "inception_5b_output", (1024, 7, 7)),
        ("resnet18", "res5b", (512, 7, 7)),
        ("resnet50", "pool1", (64, 56, 56)),
        ("resnet50", "res3a", (512, 28, 28)),
        ("resnet50", "res5c", (2048, 7, 7)),
        ("lenet5", "c5", (120, 1, 1)),
        ("cifar10_quick", "pool3", (64, 4, 4)),
    ],
)
def test_shapes_of_the_tables(name: str, layer: str, output: tuple[int, ...]) -> None:
    assert shapes_by_name(NETWORKS[name]())[layer].output == output


@pytest.mark.parametrize(
    ("name", "products"),
    # Multiply-accumulates an image of convolutions and products: PyTorch's model zoo gives 15.47,
    # 1.81 and 4.09 G.
    [("vgg16", 15_470_264_320), ("resnet18", 1_814_073_344), ("resnet50", 4_089_184_256)],
)
def test_operations_are_the_published_ones(name: str, products: int) -> None:
    manifest = manifest_of(RunOptions(network=name, batch=1))
    weighted = [each for each in manifest.layers if each.type in ("Conv2d", "Linear")]
    assert sum(each.flops or 0 for each in weighted) == 2 * products
    assert all(each.flops is not None for each in manifest.layers)


def test_a_manifest_has_all_inputs_of_a_layer() -> None:
    layers = {each.path: each for each in manifest_of(RunOptions(network="resnet18")).layers}
    assert layers["res2a"].type == "Add"
    assert layers["res2a"].inputs == ((8, 64, 56, 56), (8, 64, 56, 56))
    assert layers["res2a"].flops == 8 * 64 * 56 * 56
    assert layers["bn_conv1"].type == "BatchNorm2d"
    assert layers["bn_conv1"].parameters == {"weight": (64,), "bias": (64,)}
    assert layers["conv1"].parameters == {"weight": (64, 3, 7, 7)}


def _network(*layers: Layer) -> Network:
    return Network("n", 8, layers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((ReLU("a", inputs=("b",)), ReLU("b")), "a: its input 'b' is not an earlier layer"),
        ((ReLU("a"), Add("s", inputs=("a",))), "s: sums and concatenations need two inputs"),
        ((ReLU("a"), ReLU("b", inputs=("a", IMAGES))), "b: sums and concatenations"),
        ((ReLU("a"), ReLU("b", inputs=(IMAGES,))), "unused output of a"),
        ((ReLU(IMAGES),), "same name"),
    ],
)
def test_branches_that_lead_nowhere_are_refused(layers: tuple[Layer, ...], message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        _network(*layers)


def test_branches_that_do_not_fit_are_refused() -> None:
    wide, small = Conv("wide", 4, 1), MaxPool("small", 2, 2, inputs=(IMAGES,))
    with pytest.raises(NetworkError, match="sum: its inputs differ: 4x8x8 and 3x4x4"):
        layer_shapes(_network(wide, small, Add("sum", inputs=("wide", "small"))))
    with pytest.raises(NetworkError, match="both: its inputs differ in size: 4x8x8 and 3x4x4"):
        layer_shapes(_network(wide, small, Concatenate("both", inputs=("wide", "small"))))


def test_concatenation_adds_the_channels_up() -> None:
    branches = (Conv("a", 4, 1), Conv("b", 5, 1, inputs=(IMAGES,)))
    shapes = layer_shapes(_network(*branches, Concatenate("c", inputs=("a", "b"))))
    assert shapes[-1].inputs == ((4, 8, 8), (5, 8, 8))
    assert shapes[-1].output == (9, 8, 8)


@pytest.mark.parametrize(
    ("side", "pool", "output", "pads"),
    [
        (32, MaxPool("p", 3, 2, partial=True), 16, (0, 1)),
        (55, MaxPool("p", 3, 2, partial=True), 27, (0, 0)),
        (7, AvgPool("p", 2, 2, partial=True), 4, (0, 1)),
        (7, AvgPool("p", 2, 2), 3, (0, 0)),
        (56, MaxPool("p", 3, 2, padding=1), 28, (1, 1)),
        # A third window would begin behind the image.
        (3, MaxPool("p", 2, 2, padding=1, partial=True), 2, (1, 1)),
    ],
)
def test_partial_windows(
    side: int, pool: MaxPool | AvgPool, output: int, pads: tuple[int, int]
) -> None:
    (shape,) = layer_shapes(Network("n", side, (pool,)))
    assert (shape.output[1], shape.pads) == (output, pads)


def test_layers_before_any_weight_need_no_gradient_of_their_input() -> None:
    assert NETWORKS["resnet50"]().fed_by_images == {"conv1"}
    assert NETWORKS["mlp"]().fed_by_images == {"flatten", "fc1"}
    branches = (Conv("a", 4, 1), Conv("b", 4, 1, inputs=(IMAGES,)))
    assert _network(*branches, Add("c", inputs=("a", "b"))).fed_by_images == {"a", "b"}
