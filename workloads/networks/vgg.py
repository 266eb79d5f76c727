"""VGG-16, configuration D of Simonyan, Zisserman 2014; layer names are those of Caffe's model."""

from __future__ import annotations

from workloads.network import Conv, Dropout, Flatten, Layer, Linear, MaxPool, Network, ReLU
from workloads.networks.sizes import divider, given

# (channels, convolutions) of each block
_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(
    *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
) -> Network:
    """Sixteen layers with weights. 138 357 544 parameters with 224x224 images and 1000 classes."""
    width = divider(width_divisor)
    layers: list[Layer] = []
    for block, (channels, convolutions) in enumerate(_BLOCKS, 1):
        for number in range(1, convolutions + 1):
            layers.append(Conv(f"conv{block}_{number}", width(channels), kernel=3, padding=1))
            layers.append(ReLU(f"relu{block}_{number}"))
        layers.append(MaxPool(f"pool{block}", kernel=2, stride=2))
    layers.append(Flatten("flatten"))
    for number in (6, 7):
        layers += [
            Linear(f"fc{number}", width(4096)),
            ReLU(f"relu{number}"),
            Dropout(f"drop{number}"),
        ]
    layers.append(Linear("fc8", given(classes, 1000)))
    return Network("vgg16", given(image_size, 224), tuple(layers))
