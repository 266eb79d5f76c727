"""The networks, each described once, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from workloads.network import Network
from workloads.networks.alexnet import alexnet, alexnet_2012
from workloads.networks.googlenet import googlenet
from workloads.networks.resnet import resnet18, resnet50
from workloads.networks.small import cifar10_quick, lenet5, mlp
from workloads.networks.vgg import vgg16


class Describe(Protocol):
    """Function that describes a network."""

    def __call__(
        self, *, image_size: int | None = None, width_divisor: int = 1, classes: int | None = None
    ) -> Network:
        """Return the description of the network.

        ``image_size`` is the side of the square images in pixels, ``classes`` the number of
        outputs, None for the paper's own;
        ``width_divisor`` divides the number of channels and hidden units of every layer.
        Raises :class:`workloads.network.NetworkError` for sizes that cannot be built.
        """
        ...


NETWORKS: Mapping[str, Describe] = {
    "alexnet": alexnet,
    "alexnet_2012": alexnet_2012,
    "vgg16": vgg16,
    "googlenet": googlenet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "lenet5": lenet5,
    "cifar10_quick": cifar10_quick,
    "mlp": mlp,
}
