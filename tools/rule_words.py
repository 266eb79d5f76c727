"""Writes the words that a name must contain for a classification rule to match it.

    python -m tools.rule_words

The rules' patterns are parsed here, by Python's parser, so that the engine only looks up words:
compiling a pattern takes a thousand times longer than searching for a word, and most rules match no
name of a given trace. A test fails if the file does not belong to the rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from traceana.enrich.classify import engine, load_rules

FILE = Path(engine.__file__).parent / "rules" / engine.WORDS_FILE

SHORTEST = 3
"""Shorter words occur in nearly every name and exclude no pattern."""

_FLAGS = re.compile(r"\(\?[a-z]+\)")
"""Python takes flags only at the start of a pattern. Words are compared without case."""
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)

Words = list[frozenset[str]]


def words_of(pattern: str) -> Words:
    """Return sets of case-folded words: every match of ``pattern`` contains a word of each set."""
    python = _FLAGS.sub("", pattern).replace(r"(?-u:\b)", r"\b")
    return _words(_parser.parse(python))


def _words(sequence: Iterable[tuple[Any, Any]]) -> Words:
    words: Words = []
    letters = ""

    def end_word() -> None:
        nonlocal letters
        if len(letters) >= SHORTEST:
            words.append(frozenset((letters.casefold(),)))
        letters = ""

    for kind, value in sequence:
        if kind is _constants.LITERAL:
            letters += chr(value)
            continue
        if kind is _constants.AT:
            continue
        end_word()
        if kind is _constants.SUBPATTERN:
            words += _words(value[-1])
        elif kind in _REPEATS and value[0] > 0:
            words += _words(value[2])
        elif kind is _constants.BRANCH:
            alternatives = [_words(alternative) for alternative in value[1]]
            if all(alternatives):
                words.append(frozenset().union(*map(_rarest, alternatives)))
    end_word()
    return words


def _rarest(words: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the set whose shortest word is longest: long words are rare."""
    return max(words, key=lambda alternatives: min(map(len, alternatives)))


def content() -> str:
    """Return the words of all patterns of traceana's own rules, as JSON: a line a pattern."""
    rules = load_rules()
    patterns = {rule.head for rule in rules.rules} | {rule.name for rule in rules.rules}
    patterns |= {attribute.pattern for attribute in rules.attributes}
    lines = (
        f"{json.dumps(pattern)}: {json.dumps([sorted(words) for words in words_of(pattern)])}"
        for pattern in sorted(pattern for pattern in patterns if pattern is not None)
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(content(), encoding="utf-8")
