"""The literals that a text must contain for a pattern to match.

Compiling a pattern takes a thousand times longer than searching for a literal, and most rules
match no name of a given trace. So a pattern is compiled only if one of its literals occurs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
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
        wanted = literals(pattern)
        return wanted is None or any(word in self._text for word in wanted)


@functools.lru_cache(maxsize=4096)
def literals(pattern: str) -> frozenset[str] | None:
    """Return case-folded words such that every match of ``pattern`` contains one of them.

    ``None`` if there are no such words.
    """
    if _VERBOSE.search(pattern):
        return None
    return _alternatives(_TOKEN.finditer(pattern))


def _alternatives(tokens: Iterator[re.Match[str]]) -> frozenset[str] | None:
    """Return the words of the alternatives up to the end of the group.

    ``None`` if an alternative has no words.
    """
    found: set[str] = set()
    complete = True
    branch = _Branch()
    for token in tokens:
        kind = token.lastgroup
        if kind == "close":
            break
        if kind == "or":
            complete = branch.add_to(found) and complete
            branch = _Branch()
        else:
            branch.read(kind, token.group(), tokens)
    complete = branch.add_to(found) and complete
    return frozenset(found) if complete else None


class _Branch:
    """Parser of one alternative: the current run of letters, and the best words so far."""

    def __init__(self) -> None:
        self._run = ""
        self._group: frozenset[str] | None = None
        self._best: frozenset[str] | None = None

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

    def add_to(self, found: set[str]) -> bool:
        """Add the words of this alternative to ``found``; return whether it has any."""
        self._settle()
        self._end_run()
        found.update(self._best or ())
        return self._best is not None

    def _repeat(self, text: str) -> None:
        """Drop the last letter or group if it is optional, and end the run of letters."""
        optional = text[0] in "*?" or text.startswith("{0")
        if optional:
            self._group = None
            self._run = self._run[:-1]
        self._settle()
        self._end_run()

    def _settle(self) -> None:
        """Compare the words of a group that is not optional."""
        if self._group is not None:
            self._weigh(self._group)
            self._group = None

    def _end_run(self) -> None:
        if len(self._run) >= _SHORTEST:
            self._weigh(frozenset((self._run.casefold(),)))
        self._run = ""

    def _weigh(self, words: Iterable[str]) -> None:
        """Keep the set of words whose shortest word is longest, because it is the rarest."""
        words = frozenset(words)
        if self._best is None or min(map(len, words)) > min(map(len, self._best)):
            self._best = words
