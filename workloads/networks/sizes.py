"""The sizes that every description takes."""

from __future__ import annotations

from collections.abc import Callable

from workloads.network import NetworkError


def given(size: int | None, papers: int) -> int:
    """``size``, or the paper's own where none is given."""
    return papers if size is None else size


def divider(divisor: int) -> Callable[[int], int]:
    """What makes a layer's width so many times narrower.

    It raises :class:`NetworkError` for a width that ``divisor`` does not divide.
    """

    def width(channels: int) -> int:
        if divisor < 1 or channels % divisor:
            raise NetworkError(f"the width divisor {divisor} does not divide {channels} channels")
        return channels // divisor

    return width
