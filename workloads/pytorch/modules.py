"""Modules that PyTorch does not have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Add(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """The sum of its inputs."""

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """Add from left to right."""
        total = first
        for other in others:
            total = total + other
        return total


class Concatenate(nn.Module):  # type: ignore[misc]  # mypy does not follow torch
    """Concatenates its inputs along the channels."""

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        """Concatenate along the second axis."""
        return torch.cat(values, dim=1)


class SeparateConv2d(nn.Conv2d):  # type: ignore[misc]  # mypy does not follow torch
    """A convolution whose bias is added by a separate operator."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Convolve, then add."""
        product = self._conv_forward(images, self.weight, None)
        return product if self.bias is None else product + self.bias[:, None, None]


class SeparateLinear(nn.Linear):  # type: ignore[misc]  # mypy does not follow torch
    """A fully connected layer whose bias is added by a separate operator."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply, then add."""
        return functional.linear(values, self.weight) + self.bias
