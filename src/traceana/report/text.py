"""Text of a trace made safe to show: it may come from anywhere and hold anything."""

from __future__ import annotations

import re
from typing import Final

from rich.cells import cell_len, set_cell_size

_HOSTILE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters of ASCII and Latin-1: ANSI sequences, line ends
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def plain(text: str) -> str:
    """Return ``text`` with every character that could steer a terminal or hide text written out.

    Control, bidirectional and invisible characters become ``\\x1b``, ``\\u202e`` ...; everything
    else stays. The result is one line.
    """
    return _HOSTILE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    character = match.group()
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cut_end(text: str, width: int) -> str:
    """Return ``text`` cut at its end, with an ellipsis, to at most ``width`` terminal cells."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def cut_start(text: str, width: int) -> str:
    """Return ``text`` cut at its start: the end of a path is what differs."""
    if cell_len(text) <= width:
        return text
    return "…" + set_cell_size(text[::-1], width - 1).rstrip()[::-1]


def cut_middle(text: str, width: int) -> str:
    """Return ``text`` cut in its middle: names that differ at either end stay different."""
    if cell_len(text) <= width:
        return text
    if width < 3:
        return cut_end(text, width)
    tail = (width - 1) // 2
    end = set_cell_size(text[::-1], tail)[::-1]
    return set_cell_size(text, width - 1 - tail) + "…" + end
