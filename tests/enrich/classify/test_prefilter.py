"""A pattern is compiled only where it could match: that must never hide a match."""

from __future__ import annotations

import msgspec
import polars as pl
import pytest

from tools import rule_words
from tools.classification import SAMPLE
from traceana.columns.distinct import ascii_classes
from traceana.enrich.classify import classify_names, engine, load_rules
from traceana.enrich.classify.engine import SearchedText

RULES = load_rules()
PATTERNS = sorted(
    {p for rule in RULES.rules for p in (rule.head, rule.name, rule.unless) if p is not None}
    | {attribute.pattern for attribute in RULES.attributes}
)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^im2col", [{"im2col"}]),
        ("(?i)SCUDNN|winograd", [{"scudnn", "winograd"}]),
        (r"(?:foo|bar)_baz\w+", [{"foo", "bar"}, {"_baz"}]),
        (r"foo(?:barbaz)?\d", [{"foo"}]),
        (r"(?:conv|pool)(?:2d|3d)_(?:fwd|bwd)", [{"conv", "pool"}, {"fwd", "bwd"}]),
        (r"(?:sgemm_.*tile|winograd)", [{"sgemm_", "winograd"}]),
        (r"abcd?\w", [{"abc"}]),
        (r"\bgemm\b", [{"gemm"}]),
        (r"a\.b\(c", [{"a.b(c"}]),
        (r"x{0,3}y", []),
        (r"foo|\d+", []),
        (r"(?:foo|ba)r*", []),
        (r"conv2d|conv3d", [{"conv"}]),
        (r"(?-u:\b)gemm", [{"gemm"}]),
    ],
)
def test_words_of_a_pattern(pattern: str, words: list[set[str]]) -> None:
    assert rule_words.words_of(pattern) == words


def test_the_words_belong_to_the_rules() -> None:
    content = rule_words.FILE.read_text(encoding="utf-8")
    assert content == rule_words.content(), "run: python -m tools.rule_words"


def test_a_pattern_without_words_is_always_compiled() -> None:
    assert SearchedText(pl.Series(["name"])).may_match("a pattern of the user's")


def test_no_match_is_hidden() -> None:
    names = pl.read_csv(SAMPLE, separator="\t", quote_char=None)["name"]
    for pattern in PATTERNS:
        matched = names.filter(names.str.contains(pattern))
        for name in matched[:: max(1, len(matched) // 20)]:
            assert SearchedText(pl.Series([name])).may_match(pattern), (pattern, name)


def test_case_is_folded_as_the_engine_folds_it() -> None:
    # The Kelvin sign and the long s match k and s where case does not count.
    for name in ("\u212aernel", "\u017fcudnn_kernel"):
        for pattern in ("(?i)kernel", "(?i)scudnn"):
            matched = pl.Series([name]).str.contains(pattern).item()
            (words,) = rule_words.words_of(pattern)
            assert not matched or any(word in name.casefold() for word in words)


def test_one_by_one_is_as_all_at_once() -> None:
    names = pl.read_csv(SAMPLE, separator="\t", quote_char=None)["name"][::40]
    together = classify_names(names, msgspec.structs.replace(RULES))
    # The classes that a rule set has found are kept with it: each name has one of its own.
    apart = pl.concat([classify_names([name], msgspec.structs.replace(RULES)) for name in names])
    assert together.equals(apart)


def test_names_classified_before_keep_their_class() -> None:
    names = pl.read_csv(SAMPLE, separator="\t", quote_char=None)["name"][::40]
    rules = msgspec.structs.replace(RULES)
    classify_names(names[1::3], rules)
    again = classify_names(names.reverse().append(names), rules)
    anew = classify_names(names.reverse().append(names), msgspec.structs.replace(RULES))
    assert again.equals(anew)


def test_more_names_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    names = pl.read_csv(SAMPLE, separator="\t", quote_char=None)["name"][::40]
    expected = classify_names(names, msgspec.structs.replace(RULES))
    for most in (0, names.estimated_size() // 2, names[:9].estimated_size()):
        monkeypatch.setattr(engine, "_MOST_KEPT", most)
        rules = msgspec.structs.replace(RULES)
        parts = [classify_names(names[at : at + 9], rules) for at in range(0, len(names), 9)]
        assert pl.concat(parts).equals(expected)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\w+\d", "[0-9A-Za-z_]+[0-9]"),
        (r"[\w:]\b", r"[0-9A-Za-z_:](?-u:\b)"),
        (r"\\w[^\]\d]", r"\\w[^\]0-9]"),
        (r"\W[]\w]", r"\W[]0-9A-Za-z_]"),
    ],
)
def test_classes_are_those_of_ascii(pattern: str, expected: str) -> None:
    assert ascii_classes(pattern) == expected
