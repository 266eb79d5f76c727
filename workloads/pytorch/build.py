"""From the description of a network to a PyTorch module."""

from __future__ import annotations

import torch
from torch import nn

from workloads.data import initial_weights
from workloads.network import (
    IMAGES,
    Add,
    AvgPool,
    BatchNorm,
    Concatenate,
    Conv,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
    Tanh,
)
from workloads.pytorch import modules
from workloads.shapes import LayerShape, layer_shapes


def build(
    network: Network, seed: int = 0, *, separate_bias: bool = False, through_host: bool = False
) -> DescribedNetwork:
    """Return a float32 module on the CPU whose children have the layers' names, in their order.

    The weights are those of :func:`workloads.data.initial_weights`, the biases 0. With
    ``separate_bias`` the bias of convolutions and products is added by a separate operator, with
    ``through_host`` every layer's output is copied to the host and back.
    """
    model = DescribedNetwork(network, separate_bias=separate_bias, through_host=through_host)
    weights = initial_weights(network, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            layer, _, kind = name.rpartition(".")
            if kind == "weight":
                parameter.copy_(torch.from_numpy(weights[layer]))
            else:
                parameter.zero_()
    return model


class DescribedNetwork(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """The layers of the description ``network``; images are (batch, C, H, W)."""

    def __init__(self, network: Network, *, separate_bias: bool, through_host: bool) -> None:
        """Create the layers; convolutions and products are not initialized."""
        super().__init__()
        self.network = network
        self._sources = network.sources
        self._through_host = through_host
        for shape in layer_shapes(network):
            self.add_module(shape.layer.name, _module(shape, separate_bias))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output."""
        values = {IMAGES: images}
        result = images
        for name, layer in self.named_children():
            result = layer(*(values[source] for source in self._sources[name]))
            if self._through_host:
                result = result.to("cpu", copy=True).to(result.device, copy=True)
            values[name] = result
        return result


def _module(shape: LayerShape, separate_bias: bool) -> nn.Module:
    match shape.layer:
        case Conv() as conv:
            return nn.utils.skip_init(
                modules.SeparateConv2d if separate_bias else nn.Conv2d,
                shape.input[0],
                conv.out_channels,
                conv.kernel,
                stride=conv.stride,
                padding=conv.padding,
                groups=conv.groups,
                bias=conv.bias,
            )
        case Linear() as linear:
            kind = modules.SeparateLinear if separate_bias else nn.Linear
            return nn.utils.skip_init(kind, shape.input[0], linear.out_features)
        case ReLU():
            return nn.ReLU()
        case Tanh():
            return nn.Tanh()
        case LocalResponseNorm() as norm:
            # PyTorch multiplies alpha with the mean over the channels, the paper with their sum.
            return nn.LocalResponseNorm(norm.size, norm.alpha * norm.size, norm.beta, norm.k)
        case BatchNorm() as norm:
            return nn.BatchNorm2d(shape.output[0], norm.epsilon, norm.momentum)
        case MaxPool() as pool:
            return nn.MaxPool2d(pool.kernel, pool.stride, pool.padding, ceil_mode=pool.partial)
        case AvgPool() as pool:
            return nn.AvgPool2d(
                pool.kernel, pool.stride, pool.padding, pool.partial, count_include_pad=False
            )
        case GlobalAvgPool():
            return nn.AdaptiveAvgPool2d(1)
        case Flatten():
            return nn.Flatten()
        case Dropout() as dropout:
            return nn.Dropout(dropout.probability)
        case Add():
            return modules.Add()
        case Concatenate():
            return modules.Concatenate()
