"""What a network is made of, without any framework.

A :class:`Network` is a chain of named layers. Builders turn it into a framework's own modules and
keep the names, so that two frameworks can be compared layer by layer.
"""

from __future__ import annotations

from dataclasses import dataclass


class NetworkError(ValueError):
    """The description cannot be built: a size does not divide or shrinks to nothing."""


@dataclass(frozen=True)
class Conv:
    """2-D convolution with bias; square kernel, the same stride and zero padding on all sides."""

    name: str
    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Linear:
    """Fully connected layer with bias."""

    name: str
    out_features: int


@dataclass(frozen=True)
class ReLU:
    """max(x, 0), never in place: layer hooks need the input afterwards."""

    name: str


@dataclass(frozen=True)
class LocalResponseNorm:
    """Normalization across channels, b = a / (k + alpha * sum(a^2 over size channels))^beta.

    Krizhevsky, Sutskever, Hinton 2012, section 3.3. ``alpha`` multiplies the sum, as there, not
    the mean as in Caffe and PyTorch.
    """

    name: str
    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0


@dataclass(frozen=True)
class MaxPool:
    """Maximum over square windows without padding; partial windows at the border are dropped."""

    name: str
    kernel: int
    stride: int


@dataclass(frozen=True)
class Flatten:
    """(C, H, W) to (C*H*W,), channels outermost whatever the memory layout."""

    name: str


@dataclass(frozen=True)
class Dropout:
    """Sets each value to 0 with ``probability`` and scales the rest, in training only."""

    name: str
    probability: float = 0.5


Layer = Conv | Linear | ReLU | LocalResponseNorm | MaxPool | Flatten | Dropout


@dataclass(frozen=True)
class Network:
    """A chain of layers over square images of ``channels`` x ``image_size`` x ``image_size``."""

    name: str
    image_size: int
    layers: tuple[Layer, ...]
    channels: int = 3

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if len(set(names)) != len(names):
            raise NetworkError(f"{self.name}: two layers have the same name")
