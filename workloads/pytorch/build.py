"""From the description of a network to a PyTorch module."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from workloads.data import initial_weights
from workloads.network import (
    Conv,
    Dropout,
    Flatten,
    Linear,
    LocalResponseNorm,
    MaxPool,
    Network,
    ReLU,
)
from workloads.shapes import LayerShape, layer_shapes


def build(network: Network, seed: int = 0) -> nn.Sequential:
    """A float32 module on the CPU whose children have the layers' names, in their order.

    The weights are those of :func:`workloads.data.initial_weights`, the biases 0.
    """
    modules = OrderedDict((shape.layer.name, _module(shape)) for shape in layer_shapes(network))
    model = nn.Sequential(modules)
    weights = initial_weights(network, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            layer, _, kind = name.rpartition(".")
            if kind == "weight":
                parameter.copy_(torch.from_numpy(weights[layer]))
            else:
                parameter.zero_()
    return model


def _module(shape: LayerShape) -> nn.Module:
    match shape.layer:
        case Conv() as conv:
            return nn.utils.skip_init(
                nn.Conv2d,
                shape.input[0],
                conv.out_channels,
                conv.kernel,
                stride=conv.stride,
                padding=conv.padding,
                groups=conv.groups,
            )
        case Linear() as linear:
            return nn.utils.skip_init(nn.Linear, shape.input[0], linear.out_features)
        case ReLU():
            return nn.ReLU()
        case LocalResponseNorm() as norm:
            # PyTorch multiplies alpha with the mean over the channels, the paper with their sum.
            return nn.LocalResponseNorm(norm.size, norm.alpha * norm.size, norm.beta, norm.k)
        case MaxPool() as pool:
            return nn.MaxPool2d(pool.kernel, pool.stride)
        case Flatten():
            return nn.Flatten()
        case Dropout() as dropout:
            return nn.Dropout(dropout.probability)
