"""Networks for small images: LeNet-5, Caffe's CIFAR-10 "quick", a perceptron."""

from __future__ import annotations

from workloads.network import (
    AvgPool,
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    Network,
    ReLU,
    Tanh,
)
from workloads.networks.sizes import divider, given


def lenet5(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """LeNet-5 in its simplified form, after LeCun, Bottou, Bengio, Haffner 1998.

    Its third layer has all maps of the second as input, its averages have no weights, and its last
    layer is fully connected. 61 706 parameters with grey 32x32 images and 10 classes.
    """
    width = divider(width_divisor)
    layers: tuple[Layer, ...] = (
        Conv("c1", width(6), kernel=5),
        Tanh("tanh1"),
        AvgPool("s2", kernel=2, stride=2),
        Conv("c3", width(16), kernel=5),
        Tanh("tanh3"),
        AvgPool("s4", kernel=2, stride=2),
        Conv("c5", width(120), kernel=5),
        Tanh("tanh5"),
        Flatten("flatten"),
        Linear("f6", width(84)),
        Tanh("tanh6"),
        Linear("output", given(classes, 10)),
    )
    return Network("lenet5", given(image_size, 32), layers, channels=1)


def cifar10_quick(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Caffe's ``cifar10_quick``, its names and its order of pooling and ReLU.

    145 578 parameters with 32x32 images and 10 classes.
    """
    width = divider(width_divisor)
    layers: tuple[Layer, ...] = (
        Conv("conv1", width(32), kernel=5, padding=2),
        MaxPool("pool1", kernel=3, stride=2, partial=True),
        ReLU("relu1"),
        Conv("conv2", width(32), kernel=5, padding=2),
        ReLU("relu2"),
        AvgPool("pool2", kernel=3, stride=2, partial=True),
        Conv("conv3", width(64), kernel=5, padding=2),
        ReLU("relu3"),
        AvgPool("pool3", kernel=3, stride=2, partial=True),
        Flatten("flatten"),
        Linear("ip1", width(64)),
        Linear("ip2", given(classes, 10)),
    )
    return Network("cifar10_quick", given(image_size, 32), layers)


def mlp(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Two hidden layers of 512, without convolutions.

    669 706 parameters with grey 28x28 images and 10 classes.
    """
    width = divider(width_divisor)
    layers: tuple[Layer, ...] = (
        Flatten("flatten"),
        Linear("fc1", width(512)),
        ReLU("relu1"),
        Dropout("drop1", 0.2),
        Linear("fc2", width(512)),
        ReLU("relu2"),
        Dropout("drop2", 0.2),
        Linear("fc3", given(classes, 10)),
    )
    return Network("mlp", given(image_size, 28), layers, channels=1)
