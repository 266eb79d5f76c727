"""Escaping and cutting of text from traces, which may contain any characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from traceana.files import as_unicode

_LETTERS: Final = 8
"""Letters of a cell of the terminal, at most: marks above a letter have no cell of their own."""
LONGEST_LINE: Final = 2_000
"""Characters of a heading, fact or note."""
_HOSTILE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters of ASCII and Latin-1: ANSI sequences, line ends
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\U000e0000-\U000e007f"  # tags
    "]"
)
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def plain(text: str) -> str:
    """Return ``text`` as one line, with control, bidirectional and invisible characters escaped.

    They become ``\\x1b``, ``\\u202e`` ..., so that they cannot control the terminal or hide text.
    Other characters are unchanged.
    """
    return _HOSTILE.sub(_written_out, as_unicode(text))


def brief_line(text: str) -> str:
    """Return :func:`plain` of ``text``, cut to :data:`LONGEST_LINE` characters."""
    return plain(text) if len(text) <= LONGEST_LINE else f"{plain(text[:LONGEST_LINE])}…"


def _written_out(match: re.Match[str]) -> str:
    character = match.group()
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def terminal_width(text: str) -> int:
    """Return the terminal cells of ``text``, of one longer than any line those of a line."""
    return cell_len(text[:LONGEST_LINE])


def cut_end(text: str, width: int) -> str:
    """Return ``text`` cut at its end, with an ellipsis, to at most ``width`` terminal cells."""
    if _fits(text, width):
        return text
    return _first(text, width - 1).rstrip() + "…"


_NAME: Final = 24


def cut_word(text: str, width: int) -> str:
    """Return ``text`` cut at the end of a word, to at most ``width`` cells with the ellipsis.

    A word of more than :data:`_NAME` characters, the name of a kernel or range, is cut within.
    """
    cut = cut_end(text, width)
    if cut == text:
        return cut
    words = cut[:-1]
    if text[len(words) : len(words) + 1] != " ":
        before, space, _ = words.rpartition(" ")
        word = text[len(before) + 1 :].partition(" ")[0]
        words = before if space and len(word) <= _NAME else words
    return f"{words.rstrip(',;:')}…"


def cut_start(text: str, width: int) -> str:
    """Return ``text`` cut at its start, because paths differ at their ends."""
    if _fits(text, width):
        return text
    return "…" + _last(text, width - 1).lstrip()


def cut_middle(text: str, width: int) -> str:
    """Return ``text`` cut in its middle, because kernel names differ at either end."""
    if _fits(text, width):
        return text
    if width < 3:
        return cut_end(text, width)
    tail = (width - 1) // 2
    return _first(text, width - 1 - tail) + "…" + _last(text, tail)


def _fits(text: str, width: int) -> bool:
    """Return whether ``text`` has at most ``width`` cells."""
    return len(text) <= _LETTERS * width and cell_len(text) <= width


def _first(text: str, width: int) -> str:
    """Return the first ``width`` cells of ``text``, without a look at the letters far behind them.

    Graphemes are found in all of what is given: seconds for a name of a megabyte.
    """
    return set_cell_size(text[: _LETTERS * width], width)


def _last(text: str, width: int) -> str:
    return set_cell_size(text[: -_LETTERS * width - 1 : -1], width)[::-1]


def cut_path(text: str, width: int) -> str:
    """Return a dotted path without its first parts, cut within the last one if that is too long."""
    if _fits(text, width):
        return text
    cut = cut_start(text, width)
    _, dot, rest = cut.partition(".")
    return f"…{rest}" if dot and len(rest) >= width * 2 // 3 else cut


def cut_distinct(texts: Sequence[str], width: int, cut: Callable[[str, int], str]) -> list[str]:
    """Return ``texts`` cut to ``width`` by ``cut``, with distinct results for distinct texts.

    Texts with the same result of ``cut`` are cut around their first difference. Texts that are
    still the same get a number.
    """
    shown = {text: cut(text, width) for text in dict.fromkeys(texts)}
    for alike in _alike(shown):
        _show_differences(alike, width, shown)
    for alike in _alike(shown):
        _number(alike, width, shown)
    return [shown[text] for text in texts]


def _alike(shown: dict[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for text, cut in shown.items():
        groups.setdefault(cut, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _show_differences(alike: list[str], width: int, shown: dict[str, str]) -> None:
    """Set ``shown`` of texts to their start and the part from their first difference on."""
    first, last = min(alike), max(alike)
    pairs = enumerate(zip(first, last, strict=False))
    differ = next((at for at, (one, other) in pairs if one != other), len(first))
    head = max(width * 2 // 5, 1)
    start = max(_word_start(alike[0], differ), head)
    found = {text: _from(text, head, start, width) for text in alike}
    shown.update(found)
    for group in _alike(found):
        if len(group) < len(alike):
            _show_differences(group, width, shown)


def _from(text: str, head: int, start: int, width: int) -> str:
    """Return the first ``head`` characters of ``text`` and the part from ``start`` that fits."""
    room = width - head - 1
    start = min(start, max(len(text) - room, head))
    between = "…" if start > head else ""
    return cut_end(f"{text[:head]}{between}{text[start:]}", width)


def _word_start(text: str, at: int) -> int:
    """Return the start of the word at ``at`` if it is near, else ``at``."""
    begins = at
    while begins > 0 and at - begins < 6 and text[begins - 1].isalnum():
        begins -= 1
    return begins if begins == 0 or not text[begins - 1].isalnum() else at


def _number(alike: list[str], width: int, shown: dict[str, str]) -> None:
    used = set(shown.values())
    number = 0
    for text in alike:
        while True:
            number += 1
            mark = f" #{number}"
            numbered = cut_end(text, max(width - len(mark), 1)) + mark
            if numbered not in used:
                break
        used.add(numbered)
        shown[text] = numbered
