"""Escaping and cutting of text from traces, which may contain any characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from rich.cells import cell_len, set_cell_size

from traceana.plain_text import plain

_LETTERS: Final = 8
"""Letters of a cell of the terminal, at most: marks above a letter have no cell of their own."""
LONGEST_LINE: Final = 2_000
"""Characters of a heading, fact or note."""
_HEAD: Final = 8
"""Characters at the start of a name that are shown before a difference."""
_SHORT_WORD: Final = 3
_WORD: Final = re.compile(r"[^\W_]+|[\W_]")
_IDENTIFIER: Final = re.compile(r"\w*")
_Span: TypeAlias = tuple[int, int]


def brief_line(text: str) -> str:
    """Return :func:`plain` of ``text``, cut to :data:`LONGEST_LINE` characters."""
    return plain(text) if len(text) <= LONGEST_LINE else f"{plain(text[:LONGEST_LINE])}…"


def terminal_width(text: str) -> int:
    """Return the terminal cells of ``text``, at most of its first :data:`LONGEST_LINE` letters."""
    return cell_len(text[:LONGEST_LINE])


_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return ``values`` as blocks of a height each, from the smallest to the largest.

    More values than ``width`` are means of values in a row.
    """
    count = min(len(values), width)
    ends = [at * len(values) // count for at in range(count + 1)] if count else []
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    step = (high - low) / (len(_BLOCKS) - 1)
    return "".join(_BLOCKS[round((mean - low) / step) if step else 0] for mean in means)


def cut_end(text: str, width: int) -> str:
    """Return ``text`` cut at its end, with an ellipsis, to at most ``width`` terminal cells."""
    if _fits(text, width):
        return text
    return _first(text, width - 1).rstrip() + "…"


_NAME: Final = 24


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
    """Return a dotted path without its first parts, cut within the last one if that is too long.

    A text in parentheses, which names a row that is not a layer, is cut at its end.
    """
    if _fits(text, width):
        return text
    if text.startswith("("):
        return cut_end(text, width)
    cut = cut_start(text, width)
    _, dot, rest = cut.partition(".")
    return f"…{rest}" if dot and len(rest) >= width * 2 // 3 else cut


_LINE: Final = re.compile(r"^(.*?/)?([^/]*?:\d+)(?: (.*))?$")


def cut_line(text: str, width: int) -> str:
    """Return a line of a program, ``src/train.py:41 loss.item()``, without its first folders, else
    cut within its text."""
    match = None if _fits(text, width) else _LINE.match(text)
    if match is None:
        return cut_end(text, width)
    folders, line, said = match[1] or "", match[2], match[3]
    place = cut_start(folders + line, max(len(line) + 2, width if said is None else width // 2))
    return cut_end(place if said is None else f"{place} {said}", width)


def cut_distinct(texts: Sequence[str], width: int, cut: Callable[[str, int], str]) -> list[str]:
    """Return ``texts`` cut to ``width`` by ``cut``, with distinct results for distinct texts.

    Texts with the same result of ``cut`` show the words in which they differ. Texts that are still
    the same get a number.
    """
    shown = {text: cut(text, width) for text in dict.fromkeys(texts)}
    if cut is cut_path:  # Less than a whole part of the path may make the difference.
        for alike in _alike(shown):
            shown.update((text, cut_start(text, width)) for text in alike)
    for alike in _alike(shown):
        shown.update(_differences(alike, width))
    return _numbered(texts, shown, width)


def cut_kernels(texts: Sequence[str], width: int) -> list[str]:
    """Return names of kernels cut to ``width``, with distinct results for distinct names.

    Names that begin alike show the words in which they differ, others both ends.
    """
    shown = {text: cut_middle(text, width) for text in dict.fromkeys(texts)}
    for alike in _begin_alike(text for text in shown if not _fits(text, width)):
        shown.update(_differences(alike, width))
    return _numbered(texts, shown, width)


def differing_width(texts: Iterable[str], least: int, most: int) -> int:
    """Return the width, ``least`` to ``most``, in which names of kernels show how they differ."""
    long = (text for text in dict.fromkeys(texts) if not _fits(text, least))
    needed = (
        _length(spans, text)
        for alike in _begin_alike(long)
        for text, spans in _differing(alike).items()
    )
    return min(max(least, *needed, 0), most)


def _alike(shown: dict[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for text, cut in shown.items():
        groups.setdefault(cut, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _begin_alike(texts: Iterable[str]) -> list[list[str]]:
    return _alike({text: text[:_HEAD] for text in texts})


def _differences(alike: list[str], width: int) -> dict[str, str]:
    """Return texts with their start and the words in which they differ, as far as they fit."""
    return {text: _composed(text, spans, width) for text, spans in _differing(alike).items()}


def _differing(alike: list[str]) -> dict[str, list[_Span]]:
    """Return the spans of each text: its start, and the words at which it differs from others.

    After such a word, a text is compared only with the texts that have the same word there.
    """
    words = [[*_WORD.finditer(text[:LONGEST_LINE])] for text in alike]
    rows = sorted(([word[0] for word in row], at) for at, row in enumerate(words))
    marked: list[list[_Span]] = [[(0, min(_HEAD, len(text)))] for text in alike]
    groups = [(rows, 0)]
    while groups:
        group, position = groups.pop()
        # The rows are sorted: what the first and the last begin with, all begin with.
        first, last = group[0][0], group[-1][0]
        while position < min(len(first), len(last)) and first[position] == last[position]:
            position += 1
        left, right = ("".join(row[position : position + 1]) for row in (first, last))
        differ = (at for at, pair in enumerate(zip(left, right, strict=False)) if len({*pair}) > 1)
        alike_start = next(differ, min(len(left), len(right)))
        same: dict[str, list[tuple[list[str], int]]] = {}
        for row, at in group:
            if position < len(row):
                marked[at].append(_with_context(words[at], position, alike_start))
                same.setdefault(row[position], []).append((row, at))
        groups += [(part, position + 1) for part in same.values() if len(part) > 1]
    return {text: _merged(spans) for text, spans in zip(alike, marked, strict=True)}


def _with_context(words: list[re.Match[str]], at: int, alike: int) -> _Span:
    """Return the span of a word.

    A long word is shown without its start, the letters ``alike`` in all texts; a short word with
    the words before it (``lambda#7``, not ``7``).
    """
    end, start = words[at].end(), words[at].start()
    if alike > _HEAD:
        return start + alike, end
    while at and end - start < _SHORT_WORD and end - words[at - 1].start() <= _HEAD:
        at -= 1
        start = words[at].start()
    return start, end


def _merged(spans: list[_Span]) -> list[_Span]:
    """Return ``spans`` in order, joined where an ellipsis would not be shorter."""
    merged: list[_Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _length(spans: list[_Span], text: str) -> int:
    """Return the length of ``spans`` with the ellipses between them and behind the last."""
    shown = sum(end - start for start, end in spans)
    return shown + len(spans) - (spans[-1][1] == len(text))


def _composed(text: str, spans: list[_Span], width: int) -> str:
    """Return the parts of ``text`` in ``spans``, and as much between them as fits ``width``."""
    if spans[-1][1] <= width // 2:
        return cut_middle(text, width)
    room = width - _length(spans, text)
    if room < 0:  # The start has what all have in common.
        spans = [(0, max(spans[0][1] + room, _HEAD // 2)), *spans[1:]]
    shown = spans[:1]
    for start, end in spans[1:]:
        before = shown[-1][1]
        if len(shown) > 1 and start - before - 1 <= room:
            room -= start - before - 1
            shown[-1] = shown[-1][0], end
        else:
            shown.append((start, end))
    for at in range(len(shown) - 1, 0, -1):
        start, end = shown[at]
        whole = _IDENTIFIER.match(text, end)
        more = min(whole.end() - end if whole else 0, room)
        room -= max(more, 0)
        shown[at] = start, end + max(more, 0)
    if 0 <= len(text) - shown[-1][1] - 1 <= room:
        room -= len(text) - shown[-1][1] - 1
        shown[-1] = shown[-1][0], len(text)
    if room > 0:
        shown[0] = 0, shown[0][1] + room
        shown = _merged(shown)
    if len(shown) == 1:
        return cut_end(text, width)
    parts = "…".join(text[start:end] for start, end in shown)
    return cut_end(parts if shown[-1][1] == len(text) else f"{parts}…", width)


def _numbered(texts: Sequence[str], shown: dict[str, str], width: int) -> list[str]:
    """Return the ``shown`` form of ``texts``, numbered where two would be the same."""
    for alike in _alike(shown):
        _number(alike, width, shown)
    return [shown[text] for text in texts]


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
