"""Kernel names short enough to read in a table. The full name is in every other format."""

from __future__ import annotations

from typing import Final

from traceana.report.text import plain

_NOISE: Final = (
    "(anonymous namespace)::",
    "<unnamed>::",
    "at::native::",
    "c10::",
    "at::cuda::",
)


def brief(name: str) -> str:
    """Return ``name`` without return type, argument list and the namespaces of libraries.

    >>> brief("void at::native::(anonymous namespace)::softmax<4, float>(float*, int)")
    'softmax<4, float>'
    """
    shown = name.removeprefix("void ")
    for noise in _NOISE:
        shown = shown.replace(noise, "")
    return plain(_without_arguments(shown) or name)


def _without_arguments(name: str) -> str:
    """Cut the parenthesis that ends ``name``, if it ends in one that is a function's."""
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            return name[:position]
    return name
