"""Networks after the known ones, small enough to run in a test: the same layers, tiny images."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


def alexnet() -> nn.Module:
    """Krizhevsky's second (one weird trick), a quarter as wide, for images of 67 x 67."""
    convs = [(3, 16, 11, 4, 2), (16, 48, 5, 1, 2), (48, 96, 3, 1, 1), (96, 64, 3, 1, 1)]
    layers: list[nn.Module] = []
    for place, (entering, leaving, window, stride, padding) in enumerate(convs):
        layers += [nn.Conv2d(entering, leaving, window, stride, padding), nn.ReLU(inplace=True)]
        if place < 2:
            layers.append(nn.MaxPool2d(3, 2))
    return nn.Sequential(
        *layers,
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(576, 128),
        nn.ReLU(inplace=True),
        nn.Linear(128, 10),
    )


def vgg16() -> nn.Module:
    """Thirteen convolutions of 3 x 3 and three linear layers, an eighth as wide, 32 x 32."""
    layers: list[nn.Module] = []
    entering = 3
    for width in (8, 8, 0, 16, 16, 0, 32, 32, 32, 0, 64, 64, 64, 0, 64, 64, 64, 0):
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(entering, width, 3, padding=1), nn.ReLU(inplace=True)]
        entering = width
    head = [nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


class Inception(nn.Module):  # type: ignore[misc]
    """One block of GoogLeNet: four branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.one = nn.Conv2d(12, 8, 1)
        self.three = nn.Sequential(nn.Conv2d(12, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(12, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 5, padding=2))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(12, 4, 1))
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        branches = [self.one(x), self.three(x), self.five(x), self.pool(x)]
        return self.head(torch.cat(branches, 1).relu().mean((2, 3)))


class Residual(nn.Module):  # type: ignore[misc]
    """A residual block: basic (ResNet-18), bottleneck (ResNet-50), inverted (MobileNetV2)."""

    def __init__(self, kind: str, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        inner = {"basic": leaving, "bottleneck": leaving // 4, "inverted": 6 * entering}[kind]
        groups = inner if kind == "inverted" else 1
        plan = {
            "basic": [(entering, inner, 3, stride, 1), (inner, leaving, 3, 1, 1)],
            "bottleneck": [
                (entering, inner, 1, 1, 1),
                (inner, inner, 3, stride, 1),
                (inner, leaving, 1, 1, 1),
            ],
            "inverted": [
                (entering, inner, 1, 1, 1),
                (inner, inner, 3, stride, groups),
                (inner, leaving, 1, 1, 1),
            ],
        }[kind]
        layers: list[nn.Module] = []
        for a, b, window, step, group in plan:
            conv = nn.Conv2d(a, b, window, step, window // 2, groups=group, bias=False)
            layers += [conv, nn.BatchNorm2d(b), nn.ReLU6() if kind == "inverted" else nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])
        self.short: nn.Module = nn.Identity()
        if entering != leaving or stride > 1:
            self.short = nn.Conv2d(entering, leaving, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layers(x) + self.short(x)).relu()


def residual(kind: str, widths: tuple[int, ...]) -> nn.Module:
    """A stem, blocks of ``widths``, every other with stride 2, and a linear layer."""
    blocks: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 2, 1, bias=False)]
    for place, (entering, leaving) in enumerate(pairwise(widths)):
        blocks.append(Residual(kind, entering, leaving, 1 + place % 2))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)]
    return nn.Sequential(*blocks, *head)


def generator() -> nn.Module:
    """Transposed convolutions, as of a DCGAN's generator, from 3 channels of 8 x 8."""
    return nn.Sequential(
        nn.ConvTranspose2d(3, 16, 4, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 3, 3, padding=1),
        nn.Tanh(),
    )


class Transformer(nn.Module):  # type: ignore[misc]
    """Two blocks of attention and a feed-forward net over 3 x 8 x 8 pixels in 8 tokens of 24."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(24, 72) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(24, 24) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
            for _ in range(2)
        )
        self.head = nn.Linear(24, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 8, 24)
        for qkv, out, feed in zip(self.qkv, self.out, self.feed, strict=True):
            q, k, v = (
                part.reshape(len(x), 8, 3, 8).transpose(1, 2) for part in qkv(x).chunk(3, -1)
            )
            with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                y = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + out(y.transpose(1, 2).reshape(len(x), 8, 24))
            x = x + feed(x)
        return self.head(x.mean(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "AlexNet": (alexnet, 67),
    "VGG-16": (vgg16, 32),
    "GoogLeNet's block": (Inception, 9),
    "ResNet-18's blocks": (lambda: residual("basic", (8, 8, 16, 16, 32)), 32),
    "ResNet-50's blocks": (lambda: residual("bottleneck", (16, 16, 32, 32, 64)), 32),
    "MobileNetV2's blocks": (lambda: residual("inverted", (4, 4, 6, 6, 8)), 32),
    "transposed convolutions": (generator, 8),
    "transformer": (Transformer, 8),
}
"""The networks by name, and the side of their images of 3 channels."""
