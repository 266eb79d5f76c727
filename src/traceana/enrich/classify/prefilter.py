"""The literals that a text must contain for a pattern to match.

Compiling a pattern takes a thousand times longer than searching for a literal, and most rules
match no name of a given trace. So a pattern is compiled only if one of its literals occurs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

import polars as pl

_TOKEN: Final = re.compile(
    r"(?P<escape>\\(?:[pPuUx]\{[^}]*\}|b\{[a-z-]+\}|x[0-9a-fA-F]{2}|.))"
    r"|(?P<set>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])"
    r"|(?P<flags>\(\?[a-zA-Z-]+\))"
    r"|(?P<open>\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?)"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<repeat>(?:[*+?]|\{\d+(?:,\d*)?\})\??)"
    r"|(?P<edge>[\^$])"
    r"|(?P<text>[^\\\[\](){}|*+?^$.]+)"
    r"|(?P<any>.)",
    re.DOTALL,
)
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z]*x")
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
    return _alternatives(_TOKEN.finditer(pattern))


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[frozenset[str], ...]:
    """Return the sets of words of the alternatives up to the end of the group.

    All sets of a single alternative; of several, one set with the rarest words of each.
    """
    branches = [_Branch()]
    for token in tokens:
        kind = token.lastgroup
        if kind == "close":
            break
        if kind == "or":
            branches.append(_Branch())
        else:
            branches[-1].read(kind, token.group(), tokens)
    sets = [branch.end() for branch in branches]
    if len(sets) == 1:
        return sets[0]
    if not all(sets):
        return ()
    return (frozenset().union(*(_rarest(words) for words in sets)),)


def _rarest(sets: tuple[frozenset[str], ...]) -> frozenset[str]:
    """Return the set whose shortest word is longest: long words are rare."""
    return max(sets, key=lambda words: min(map(len, words)))


class _Branch:
    """Parser of one alternative: the current run of letters, and the sets of words so far."""

    def __init__(self) -> None:
        self._run = ""
        self._group: tuple[frozenset[str], ...] = ()
        self._found: list[frozenset[str]] = []

    def read(self, kind: str | None, text: str, tokens: Iterator[re.Match[str]]) -> None:
        if kind == "repeat":
            self._repeat(text)
            return
        self._settle()
        if kind == "text":
            self._run += text
        elif kind == "escape" and text[1] not in _CLASSES:
            if text[1] not in _EDGES:
                self._run += text[1:]
        elif kind == "open":
            self._end_run()
            self._group = _alternatives(tokens)
        elif kind not in ("edge", "flags", "escape") or (kind == "escape" and text[1] in _CLASSES):
            self._end_run()

    def end(self) -> tuple[frozenset[str], ...]:
        """Return the sets of words of the whole alternative."""
        self._settle()
        self._end_run()
        return tuple(self._found)

    def _repeat(self, text: str) -> None:
        """Drop the last letter or group if it is optional, and end the run of letters."""
        optional = text[0] in "*?" or text.startswith("{0")
        if optional:
            self._group = ()
            self._run = self._run[:-1]
        self._settle()
        self._end_run()

    def _settle(self) -> None:
        """Keep the words of a group that is not optional."""
        self._found += self._group
        self._group = ()

    def _end_run(self) -> None:
        if len(self._run) >= _SHORTEST:
            self._found.append(frozenset((self._run.casefold(),)))
        self._run = ""
