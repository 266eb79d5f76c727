"""GoogLeNet (Inception v1): Szegedy et al. 2014, table 1, without the two auxiliary heads.

Layer names are those of Caffe's ``bvlc_googlenet``, with ``_`` for ``/`` and ``NAME_relu`` for the
activations. The constants of the normalization, which the paper does not print, are also Caffe's.
"""

from __future__ import annotations

from collections.abc import Callable

from workloads.network import (
    Concatenate,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
)
from workloads.networks.sizes import divider, given

# #1x1, #3x3 reduce, #3x3, #5x5 reduce, #5x5, pool proj of each module; None is a pooling layer
_MODULES: tuple[tuple[str, tuple[int, int, int, int, int, int] | None], ...] = (
    ("inception_3a", (64, 96, 128, 16, 32, 32)),
    ("inception_3b", (128, 128, 192, 32, 96, 64)),
    ("pool3_3x3_s2", None),
    ("inception_4a", (192, 96, 208, 16, 48, 64)),
    ("inception_4b", (160, 112, 224, 24, 64, 64)),
    ("inception_4c", (128, 128, 256, 24, 64, 64)),
    ("inception_4d", (112, 144, 288, 32, 64, 64)),
    ("inception_4e", (256, 160, 320, 32, 128, 128)),
    ("pool4_3x3_s2", None),
    ("inception_5a", (256, 160, 320, 32, 128, 128)),
    ("inception_5b", (384, 192, 384, 48, 128, 128)),
)


def googlenet(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Nine inception modules; widths can be divided by 2, 4 and 8.

    6 998 552 parameters with 1000 classes, for images of any size.
    """
    width = divider(width_divisor)
    layers: list[Layer] = [
        *_convolution("conv1_7x7_s2", width(64), kernel=7, stride=2, padding=3),
        MaxPool("pool1_3x3_s2", kernel=3, stride=2, partial=True),
        _normalization("pool1_norm1"),
        *_convolution("conv2_3x3_reduce", width(64)),
        *_convolution("conv2_3x3", width(192), kernel=3, padding=1),
        _normalization("conv2_norm2"),
        MaxPool("pool2_3x3_s2", kernel=3, stride=2, partial=True),
    ]
    for name, channels in _MODULES:
        if channels is None:
            layers.append(MaxPool(name, kernel=3, stride=2, partial=True))
        else:
            layers += _inception(name, layers[-1].name, channels, width)
    layers += [
        GlobalAvgPool("pool5"),
        Dropout("pool5_drop", 0.4),
        Flatten("flatten"),
        Linear("loss3_classifier", given(classes, 1000)),
    ]
    return Network("googlenet", given(image_size, 224), tuple(layers))


def _inception(
    name: str,
    source: str,
    channels: tuple[int, int, int, int, int, int],
    width: Callable[[int], int],
) -> list[Layer]:
    one, reduce3, three, reduce5, five, projected = map(width, channels)
    branches: list[list[Layer]] = [
        _convolution(f"{name}_1x1", one, source=source),
        [
            *_convolution(f"{name}_3x3_reduce", reduce3, source=source),
            *_convolution(f"{name}_3x3", three, kernel=3, padding=1),
        ],
        [
            *_convolution(f"{name}_5x5_reduce", reduce5, source=source),
            *_convolution(f"{name}_5x5", five, kernel=5, padding=2),
        ],
        [
            MaxPool(f"{name}_pool", kernel=3, stride=1, padding=1, inputs=(source,)),
            *_convolution(f"{name}_pool_proj", projected),
        ],
    ]
    ends = tuple(branch[-1].name for branch in branches)
    return [
        *(layer for branch in branches for layer in branch),
        Concatenate(f"{name}_output", inputs=ends),
    ]


def _convolution(
    name: str,
    channels: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    padding: int = 0,
    source: str | None = None,
) -> list[Layer]:
    inputs = () if source is None else (source,)
    convolution = Conv(name, channels, kernel, stride, padding, inputs=inputs)
    return [convolution, ReLU(f"{name}_relu")]


def _normalization(name: str) -> LocalResponseNorm:
    # Caffe divides alpha, 1e-4 in its model, by the size.
    return LocalResponseNorm(name, size=5, alpha=1e-4 / 5, beta=0.75, k=1.0)
