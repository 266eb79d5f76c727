"""The literals that a text must contain for a pattern to match.

Compiling a pattern takes a thousand times longer than searching for a literal, and most rules
match no name of a given trace. So a pattern is compiled only if one of its literals occurs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

_TOKEN: Final = re.compile(
    r"\\(?:[pPuUx]\{[^}]*\}|b\{[a-z-]+\}|x[0-9a-fA-F]{2}|.)"  # an escape
    r"|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]"  # a set
    r"|\(\?[a-zA-Z-]+\)"  # flags
    r"|\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?"  # the start of a group
    r"|(?:[*+?]|\{\d+(?:,\d*)?\})\??"  # a repetition
    r"|[^\\\[\](){}|*+?^$.]+"  # letters
    r"|.",
    re.DOTALL,
)
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z]*x")
_MARKS: Final = frozenset("\\[](){}|*+?^$.")
_EDGES: Final = frozenset("bBAz<>")
_CLASSES: Final = frozenset("dDwWsSpPuUxantrfv0")

_SHORTEST: Final = 3
"""Shorter literals occur in nearly every text and exclude no pattern."""

_LONGEST_TEXT: Final = 200_000
"""Bytes of text above which nearly all literals occur, so that all patterns are compiled."""


class Words:
    """Texts that patterns are matched against."""

    def __init__(self, texts: pl.Series) -> None:
        """Join and case-fold ``texts``."""
        short = texts.estimated_size() <= _LONGEST_TEXT
        self._text = "\n".join(texts.to_list()).casefold() if short else None

    def allow(self, pattern: str) -> bool:
        """Return false if ``pattern`` cannot match any of the texts, else true."""
        if self._text is None:
            return True
        text = self._text
        return all(any(word in text for word in words) for words in literals(pattern))


@functools.lru_cache(maxsize=4096)
def literals(pattern: str) -> tuple[frozenset[str], ...]:
    """Return sets of case-folded words: every match of ``pattern`` contains a word of each set."""
    if _VERBOSE.search(pattern):
        return ()
    return _alternatives(iter(_TOKEN.findall(pattern)))


def _alternatives(tokens: Iterator[str]) -> tuple[frozenset[str], ...]:
    """Return the sets of words of the alternatives up to the end of the group.

    All sets of a single alternative; of several, one set with the rarest words of each.
    """
    branches: list[list[frozenset[str]]] = []
    found: list[frozenset[str]] = []
    run = ""  # the letters that follow each other
    group: tuple[frozenset[str], ...] = ()  # the sets of the group just read, which may be optional
    for token in tokens:
        kind = token[0]
        if kind in "*?" or token[:2] == "{0":
            run, group = run[:-1], ()
        if group:
            found += group
            group = ()
        if kind not in _MARKS:
            run += token
        elif kind == "\\" and token[1] not in _CLASSES:
            run += "" if token[1] in _EDGES else token[1:]
        elif kind not in "^$" and not (kind == "(" and token[-1] == ")"):  # edges and flags
            if len(run) >= _SHORTEST:
                found.append(frozenset((run.casefold(),)))
            run = ""
            if kind == "(":
                group = _alternatives(tokens)
            elif kind == "|":
                branches.append(found)
                found = []
            elif kind == ")":
                break
    found += group
    if len(run) >= _SHORTEST:
        found.append(frozenset((run.casefold(),)))
    if not branches:
        return tuple(found)
    branches.append(found)
    if not all(branches):
        return ()
    return (frozenset().union(*map(_rarest, branches)),)


def _rarest(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the set whose shortest word is longest: long words are rare."""
    return sets[0] if len(sets) == 1 else max(sets, key=lambda words: min(map(len, words)))
