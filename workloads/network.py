"""Description of a network, without any framework.

A :class:`Network` is a sequence of named layers. The input of a layer is the output of the one
before it, or of the layers that it names. Builders turn it into a framework's own modules and keep
the names, so that two frameworks can be compared layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

IMAGES: Final = "images"
"""The network's images as a layer's input; no layer may have this name."""


class NetworkError(ValueError):
    """The description cannot be built: a size does not divide or shrinks to nothing."""


@dataclass(frozen=True)
class _Named:
    """``inputs`` are names of earlier layers; empty means the layer before."""

    name: str
    inputs: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Conv(_Named):
    """2-D convolution; square kernel, the same stride and zero padding on all sides."""

    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = True


@dataclass(frozen=True)
class Linear(_Named):
    """Fully connected layer with bias."""

    out_features: int


@dataclass(frozen=True)
class ReLU(_Named):
    """max(x, 0), never in-place: layer hooks need the input afterwards."""


@dataclass(frozen=True)
class Tanh(_Named):
    """Hyperbolic tangent."""


@dataclass(frozen=True)
class LocalResponseNorm(_Named):
    """Normalization across channels, b = a / (k + alpha * sum(a^2 over size channels))^beta.

    Krizhevsky, Sutskever, Hinton 2012, section 3.3. ``alpha`` multiplies the sum, as there, not
    the mean as in Caffe and PyTorch.
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0


@dataclass(frozen=True)
class BatchNorm(_Named):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, over batch and positions.

    Ioffe, Szegedy 2015. Training uses the batch's own statistics; ``momentum`` is their weight in
    the update of the running averages.
    """

    epsilon: float = 1e-5
    momentum: float = 0.1


@dataclass(frozen=True)
class MaxPool(_Named):
    """Maximum over square windows; the padding is never the maximum.

    ``partial`` keeps a last window that reaches beyond the border, as Caffe does (PyTorch's
    ``ceil_mode``); without it such windows are dropped.
    """

    kernel: int
    stride: int
    padding: int = 0
    partial: bool = False


@dataclass(frozen=True)
class AvgPool(_Named):
    """Mean over the part of a square window within the image; ``partial`` as in MaxPool."""

    kernel: int
    stride: int
    padding: int = 0
    partial: bool = False


@dataclass(frozen=True)
class GlobalAvgPool(_Named):
    """(C, H, W) to (C, 1, 1): the mean of each channel."""


@dataclass(frozen=True)
class Flatten(_Named):
    """(C, H, W) to (C*H*W,), channels outermost, for any memory layout."""


@dataclass(frozen=True)
class Dropout(_Named):
    """Sets each value to 0 with ``probability`` and scales the rest, in training only."""

    probability: float = 0.5


@dataclass(frozen=True)
class Add(_Named):
    """The sum of inputs of equal shapes."""


@dataclass(frozen=True)
class Concatenate(_Named):
    """The inputs' channels one behind the other."""


Pool = MaxPool | AvgPool
Merge = Add | Concatenate
Weighted = Conv | Linear
Layer = (
    Weighted
    | ReLU
    | Tanh
    | LocalResponseNorm
    | BatchNorm
    | Pool
    | GlobalAvgPool
    | Flatten
    | Dropout
    | Merge
)


@dataclass(frozen=True)
class Network:
    """Layers in order of execution, over square images of ``channels`` x ``image_size`` squared.

    The last layer's output is the network's. Raises :class:`NetworkError` for an invalid
    description: repeated names, inputs that are not earlier layers, unused outputs.
    """

    name: str
    image_size: int
    layers: tuple[Layer, ...]
    channels: int = 3

    def __post_init__(self) -> None:
        names = [IMAGES, *(layer.name for layer in self.layers)]
        if len(set(names)) != len(names):
            raise NetworkError(f"{self.name}: two layers have the same name")
        known: set[str] = {IMAGES}
        sources = self.sources
        for layer in self.layers:
            for name in sources[layer.name]:
                if name not in known:
                    raise NetworkError(f"{layer.name}: its input {name!r} is not an earlier layer")
            if isinstance(layer, Merge) != (len(sources[layer.name]) > 1):
                raise NetworkError(f"{layer.name}: sums and concatenations need two inputs or more")
            known.add(layer.name)
        used = {name for names in sources.values() for name in names}
        unused = [layer.name for layer in self.layers[:-1] if layer.name not in used]
        if unused:
            raise NetworkError(f"{self.name}: unused output of {', '.join(unused)}")

    @property
    def sources(self) -> Mapping[str, tuple[str, ...]]:
        """The inputs of each layer, by its name: names of layers, or :data:`IMAGES`."""
        before = (IMAGES, *(layer.name for layer in self.layers))
        return {
            layer.name: layer.inputs or (previous,)
            for layer, previous in zip(self.layers, before, strict=False)
        }

    @property
    def fed_by_images(self) -> frozenset[str]:
        """The layers without a weight before them: the gradient of their inputs is not needed."""
        found: set[str] = set()
        weighted: set[str] = set()
        for layer in self.layers:
            sources = self.sources[layer.name]
            if weighted.isdisjoint(sources):
                found.add(layer.name)
            if not weighted.isdisjoint(sources) or isinstance(layer, Conv | Linear | BatchNorm):
                weighted.add(layer.name)
        return frozenset(found)

    def without_dropout(self) -> Network:
        """Return the network without its random layers, to compare results."""
        layers = tuple(
            replace(layer, probability=0.0) if isinstance(layer, Dropout) else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)
