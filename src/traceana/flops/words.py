"""Lists of names, written as a text of words."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    """Return the words of ``text``."""
    return tuple(text.split())
