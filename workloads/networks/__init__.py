"""The networks, each described once, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from workloads.network import Network
from workloads.networks.alexnet import alexnet, alexnet_2012


class Describe(Protocol):
    """Gives the description of a network at a size."""

    def __call__(
        self, *, image_size: int | None = None, width_divisor: int = 1, classes: int = 1000
    ) -> Network:
        """Describe the network.

        ``image_size`` is the side of the square images in pixels, None for the paper's own;
        ``width_divisor`` divides the number of channels and hidden units of every layer.
        Raises :class:`workloads.network.NetworkError` when no such network can be built.
        """
        ...


NETWORKS: Mapping[str, Describe] = {"alexnet": alexnet, "alexnet_2012": alexnet_2012}
