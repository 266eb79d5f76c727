"""AlexNet, as two towers (2012) and as one (2014).

Layer names are those of Caffe's reference models, also used by the framework studies.
"""

from __future__ import annotations

from workloads.network import (
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
)
from workloads.networks.sizes import divider, given


def alexnet(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """One tower, no normalization: Krizhevsky 2014, "One weird trick", footnote 1.

    61 100 840 parameters with 224x224 images and 1000 classes.
    """

    width = divider(width_divisor)

    layers: tuple[Layer, ...] = (
        Conv("conv1", width(64), kernel=11, stride=4, padding=2),
        ReLU("relu1"),
        MaxPool("pool1", kernel=3, stride=2),
        Conv("conv2", width(192), kernel=5, padding=2),
        ReLU("relu2"),
        MaxPool("pool2", kernel=3, stride=2),
        Conv("conv3", width(384), kernel=3, padding=1),
        ReLU("relu3"),
        Conv("conv4", width(256), kernel=3, padding=1),
        ReLU("relu4"),
        Conv("conv5", width(256), kernel=3, padding=1),
        ReLU("relu5"),
        MaxPool("pool5", kernel=3, stride=2),
        *_classifier(width(4096), given(classes, 1000)),
    )
    return Network("alexnet", given(image_size, 224), layers)


def alexnet_2012(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Two towers as grouped convolutions, with LRN: Krizhevsky, Sutskever, Hinton 2012.

    The images are 227x227, as in Caffe: the paper prints 224, but its 55x55 output needs 227.
    60 965 224 parameters with 1000 classes.
    """

    width = divider(width_divisor)

    layers: tuple[Layer, ...] = (
        Conv("conv1", width(96), kernel=11, stride=4),
        ReLU("relu1"),
        LocalResponseNorm("norm1"),
        MaxPool("pool1", kernel=3, stride=2),
        Conv("conv2", width(256), kernel=5, padding=2, groups=2),
        ReLU("relu2"),
        LocalResponseNorm("norm2"),
        MaxPool("pool2", kernel=3, stride=2),
        Conv("conv3", width(384), kernel=3, padding=1),
        ReLU("relu3"),
        Conv("conv4", width(384), kernel=3, padding=1, groups=2),
        ReLU("relu4"),
        Conv("conv5", width(256), kernel=3, padding=1, groups=2),
        ReLU("relu5"),
        MaxPool("pool5", kernel=3, stride=2),
        *_classifier(width(4096), given(classes, 1000)),
    )
    return Network("alexnet_2012", given(image_size, 227), layers)


def _classifier(hidden: int, classes: int) -> tuple[Layer, ...]:
    return (
        Flatten("flatten"),
        Linear("fc6", hidden),
        ReLU("relu6"),
        Dropout("drop6"),
        Linear("fc7", hidden),
        ReLU("relu7"),
        Dropout("drop7"),
        Linear("fc8", classes),
    )
