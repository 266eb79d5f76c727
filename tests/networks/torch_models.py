"""Networks that the workloads do not have, laid out as in their papers, narrow."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class DenseLayer(nn.Module):  # type: ignore[misc]
    """Normalization before each convolution; the result is joined to what came in."""

    def __init__(self, entering: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(entering)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(entering, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(self.relu1(self.norm1(x)))
        return torch.cat([x, self.conv2(self.relu2(self.norm2(inner)))], 1)


def densenet121(growth: int = 4, classes: int = 10) -> nn.Module:
    """Huang et al. (2017): 58 dense layers in blocks of 6, 12, 24, 16; 121 weighted layers."""
    wide = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, wide, 7, 2, 3, bias=False),
        nn.BatchNorm2d(wide),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    for block, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(DenseLayer(wide, growth))
            wide += growth
        if block < 3:
            half = wide // 2
            layers += [nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(wide, half, 1, bias=False), nn.AvgPool2d(2)]
            wide = half
    head = [nn.BatchNorm2d(wide), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(wide, classes))


class SqueezeExcitation(nn.Module):  # type: ignore[misc]
    """Hu et al. (2018): a factor for each channel, of the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(channels // 4, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, inner, 1)
        self.relu = nn.ReLU()
        self.expand = nn.Conv2d(inner, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.relu(self.reduce(self.pool(x)))))


class Inverted(nn.Module):  # type: ignore[misc]
    """Sandler et al. (2018): expand, convolve each channel by itself, project."""

    def __init__(
        self,
        entering: int,
        inner: int,
        leaving: int,
        window: int,
        stride: int,
        act: type[nn.Module],
        squeeze: bool,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if inner != entering:
            layers += [nn.Conv2d(entering, inner, 1, bias=False), nn.BatchNorm2d(inner), act()]
        depthwise = nn.Conv2d(inner, inner, window, stride, window // 2, groups=inner, bias=False)
        layers += [depthwise, nn.BatchNorm2d(inner)]
        if squeeze:
            layers.append(SqueezeExcitation(inner))
        layers += [act(), nn.Conv2d(inner, leaving, 1, bias=False), nn.BatchNorm2d(leaving)]
        self.path = nn.Sequential(*layers)
        self.residual = stride == 1 and entering == leaving

    def forward(self, x: Tensor) -> Tensor:
        return x + self.path(x) if self.residual else self.path(x)


def mobilenet_v2(classes: int = 10) -> nn.Module:
    """Sandler et al. (2018), table 2, a quarter as wide."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
    ]
    wide = 8
    plan = ((1, 4, 1, 1), (6, 6, 2, 2), (6, 8, 3, 2), (6, 16, 4, 2), (6, 24, 3, 1), (6, 40, 3, 2))
    for expansion, leaving, times, first in (*plan, (6, 80, 1, 1)):
        for place in range(times):
            stride = 1 if place else first
            layers.append(
                Inverted(wide, expansion * wide, leaving, 3, stride, nn.ReLU6, squeeze=False)
            )
            wide = leaving
    layers += [nn.Conv2d(wide, 320, 1, bias=False), nn.BatchNorm2d(320), nn.ReLU6()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(320, classes)]
    return nn.Sequential(*layers, *head)


def mobilenet_v3_small(classes: int = 10) -> nn.Module:
    """Howard et al. (2019), table 2, half as wide: squeeze and excitation, hard swish."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
    ]
    relu, swish = nn.ReLU, nn.Hardswish
    plan: tuple[tuple[int, int, int, int, bool, type[nn.Module]], ...] = (
        (3, 8, 8, 2, True, relu),
        (3, 36, 12, 2, False, relu),
        (3, 44, 12, 1, False, relu),
        (5, 48, 20, 2, True, swish),
        (5, 120, 20, 1, True, swish),
        (5, 120, 20, 1, True, swish),
        (5, 60, 24, 1, True, swish),
        (5, 72, 24, 1, True, swish),
        (5, 144, 48, 2, True, swish),
        (5, 288, 48, 1, True, swish),
        (5, 288, 48, 1, True, swish),
    )
    wide = 8
    for window, inner, leaving, stride, squeeze, act in plan:
        layers.append(Inverted(wide, inner, leaving, window, stride, act, squeeze))
        wide = leaving
    layers += [nn.Conv2d(wide, 288, 1, bias=False), nn.BatchNorm2d(288), nn.Hardswish()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(288, 512), nn.Hardswish()]
    return nn.Sequential(*layers, *head, nn.Dropout(0.2), nn.Linear(512, classes))


def _double(entering: int, leaving: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(entering, leaving, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(leaving, leaving, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al. (2015): down, and up again by transposed convolutions."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise([3, *widths[:-1]]))
        self.pool = nn.MaxPool2d(2)
        self.bottom = _double(widths[-2], widths[-1])
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(list(pairwise(widths)))
        )
        self.merge = nn.ModuleList(_double(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def vgg11(classes: int = 10) -> nn.Module:
    """Simonyan and Zisserman (2015), configuration A, a quarter as wide, for images of 64 x 64."""
    layers: list[nn.Module] = []
    entering = 3
    for width in (16, 0, 32, 0, 64, 64, 0, 128, 128, 0, 128, 128, 0):
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(entering, width, 3, padding=1), nn.ReLU(inplace=True)]
        entering = width
    head = [nn.Linear(512, 256), nn.ReLU(True), nn.Dropout(), nn.Linear(256, 256), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Dropout(), nn.Linear(256, classes))


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention of several heads, its three products in one."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):  # type: ignore[misc]
    """A decoder's block: attention and two linear layers, each beside the residual path."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads, fused)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):  # type: ignore[misc]
    """Radford et al. (2019): a decoder whose head shares the weight of its embedding."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4, fused: bool = True) -> None:
        super().__init__()
        self.wte = nn.Embedding(100, width)
        self.wpe = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads, fused) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class Tagger(nn.Module):  # type: ignore[misc]
    """Two layers of LSTM in both directions, and a linear layer at every time step."""

    def __init__(self, entering: int = 24, hidden: int = 32, bidirectional: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, entering)
        self.lstm = nn.LSTM(entering, hidden, num_layers=2, bidirectional=bidirectional)
        self.out = nn.Linear(hidden * (1 + bidirectional), 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embedding(tokens))[0])


class Shared(nn.Module):  # type: ignore[misc]
    """One convolution and one linear layer, each called three times on its own result."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.again = nn.Conv2d(16, 16, 3, padding=1)
        self.act = nn.ReLU()
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for _ in range(3):
            x = self.act(self.again(x))
        x = x.mean((2, 3))
        for _ in range(3):
            x = self.act(self.mix(x))
        return self.head(x)


class Checkpointed(nn.Module):  # type: ignore[misc]
    """Blocks of two convolutions that a checkpoint runs again in the backward pass, and a head."""

    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(_double(16, 16) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self._run(block, x)
        return self.head(self._run(self.mlp, x.mean((2, 3))))

    def _run(self, part: nn.Module, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return part(x)
        return checkpoint(part, x, use_reentrant=self.reentrant)


class ResidualBlock(nn.Module):  # type: ignore[misc]
    """A residual block whose shortcut is a convolution where the channels change."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, out // channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = nn.Sequential()
        if out != channels:
            shortcut = nn.Conv2d(channels, out, 1, out // channels, bias=False)
            self.downsample.extend([shortcut, nn.BatchNorm2d(out)])

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.downsample(x))


def residual() -> nn.Module:
    """Return a small ResNet."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        ResidualBlock(8, 8),
        ResidualBlock(8, 16),
        ResidualBlock(16, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
