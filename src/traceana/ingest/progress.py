"""How a reader tells how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with (units done, units in all); units are bytes of the file or rows of the database."""


def silent(done: int, total: int) -> None:
    """Listen to nothing."""
