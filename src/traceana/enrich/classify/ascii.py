"""Patterns over identifiers: their classes are those of ASCII.

``\\w`` of all scripts is a table of seven hundred ranges, and building the tables of every rule
costs more than running it. A kernel's name is an identifier: in ASCII ``\\w`` says the same of it.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_CLASS: Final = re.compile(r"\\.", re.DOTALL)
_OUTSIDE: Final = {r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}
_INSIDE: Final = {r"\w": "0-9A-Za-z_", r"\d": "0-9"}


def ascii_classes(pattern: str) -> str:
    """Return ``pattern`` with ``\\w``, ``\\d`` and ``\\b`` as ASCII has them."""
    return _TOKEN.sub(_rewritten, pattern)


def _rewritten(token: re.Match[str]) -> str:
    text = token.group()
    if text.startswith("["):
        return _CLASS.sub(lambda escape: _INSIDE.get(escape.group(), escape.group()), text)
    return _OUTSIDE.get(text, text)
