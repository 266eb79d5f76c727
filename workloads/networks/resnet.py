"""Residual networks of He, Zhang, Ren, Sun 2015, with the names of their Caffe models.

In blocks that halve the image, the 3x3 convolution has the stride (the first one in networks of 18
layers), as in PyTorch's models. In the paper's networks of 50 layers the 1x1 convolution before it
has the stride.
"""

from __future__ import annotations

from workloads.network import (
    Add,
    BatchNorm,
    Conv,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool,
    Network,
    ReLU,
)
from workloads.networks.sizes import divider, given

_STAGES = (64, 128, 256, 512)
_EXPANSION = 4


def resnet18(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Eight blocks of two 3x3 convolutions. 11 689 512 parameters with 1000 classes."""
    return _resnet("resnet18", (2, 2, 2, 2), False, image_size, width_divisor, classes)


def resnet50(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Sixteen bottlenecks of 1x1, 3x3, 1x1. 25 557 032 parameters with 1000 classes."""
    return _resnet("resnet50", (3, 4, 6, 3), True, image_size, width_divisor, classes)


def _resnet(
    name: str,
    blocks: tuple[int, ...],
    bottleneck: bool,
    image_size: int | None,
    width_divisor: int,
    classes: int | None,
) -> Network:
    width = divider(width_divisor)
    layers: list[Layer] = [
        Conv("conv1", width(64), kernel=7, stride=2, padding=3, bias=False),
        BatchNorm("bn_conv1"),
        ReLU("conv1_relu"),
        MaxPool("pool1", kernel=3, stride=2, padding=1),
    ]
    for stage, (channels, count) in enumerate(zip(_STAGES, blocks, strict=True), 2):
        for number in range(count):
            layers += _block(
                f"{stage}{chr(ord('a') + number)}",
                layers[-1].name,
                width(channels),
                bottleneck,
                stride=2 if stage > 2 and number == 0 else 1,
                projected=number == 0 and (bottleneck or stage > 2),
            )
    layers += [
        GlobalAvgPool("pool5"),
        Flatten("flatten"),
        Linear("fc1000", given(classes, 1000)),
    ]
    return Network(name, given(image_size, 224), tuple(layers))


def _block(
    name: str, source: str, channels: int, bottleneck: bool, *, stride: int, projected: bool
) -> list[Layer]:
    out = channels * _EXPANSION if bottleneck else channels
    # (channels, kernel, stride) of each convolution on the block's main path
    path = (
        ((channels, 1, 1), (channels, 3, stride), (out, 1, 1))
        if bottleneck
        else ((channels, 3, stride), (channels, 3, 1))
    )
    layers: list[Layer] = []
    shortcut = source
    if projected:
        shortcut = f"bn{name}_branch1"
        layers += [
            Conv(f"res{name}_branch1", out, 1, stride, bias=False, inputs=(source,)),
            BatchNorm(shortcut),
        ]
    for number, (width, kernel, step) in enumerate(path):
        branch = f"{name}_branch2{chr(ord('a') + number)}"
        padding = kernel // 2
        inputs = () if number else (source,)
        convolution = Conv(f"res{branch}", width, kernel, step, padding, bias=False, inputs=inputs)
        layers += [convolution, BatchNorm(f"bn{branch}"), ReLU(f"res{branch}_relu")]
    layers.pop()  # the last ReLU comes after the sum
    return [
        *layers,
        Add(f"res{name}", inputs=(shortcut, layers[-1].name)),
        ReLU(f"res{name}_relu"),
    ]
