"""The size parameters of every description."""

from __future__ import annotations

from collections.abc import Callable

from workloads.network import NetworkError


def given(size: int | None, papers: int) -> int:
    """Return ``size``, or the paper's own for None."""
    return papers if size is None else size


def divider(divisor: int) -> Callable[[int], int]:
    """Return a function that divides a layer's width by ``divisor``.

    The function raises :class:`NetworkError` for a width that ``divisor`` does not divide.
    """

    def width(channels: int) -> int:
        if divisor < 1 or channels % divisor:
            raise NetworkError(f"the width divisor {divisor} does not divide {channels} channels")
        return channels // divisor

    return width
