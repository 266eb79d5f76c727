"""Reads rule files and refuses what cannot run, naming the file and the rule or line."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.enrich.classify.ascii import ascii_classes
from traceana.enrich.classify.rules_model import Attribute, ClassValue, Example, Rule, RuleSet
from traceana.enrich.classify.schema import (
    BOOLEAN_COLUMNS,
    CLASS_COLUMNS,
    CLOSED_SETS,
    SETTABLE_COLUMNS,
)
from traceana.errors import BadRulesError, NotFoundError

_RULE_KEYS: Final = {"id", "reason", "head", "name", "unless", "examples", *SETTABLE_COLUMNS}
_ATTRIBUTE_KEYS: Final = {
    *("column", "pattern", "value", "part", "categories", "libraries", "values"),
}


@functools.cache
def _own_rules() -> RuleSet:
    folder = resources.files("traceana.enrich.classify") / "rules"
    order = tomllib.loads((folder / "order.toml").read_text(encoding="utf-8"))["files"]
    texts = ((file, (folder / file).read_text(encoding="utf-8")) for file in order)
    # The tests check our own patterns; compiling them here again costs as much as classifying.
    return _joined(parse_rules(text, file, check_patterns=False) for file, text in texts)


def load_rules(*files: Path) -> RuleSet:
    """The rules and attributes of users' TOML ``files`` in their order, then traceana's own.

    Raises :class:`BadRulesError` where a file is no TOML, a key or value is unknown, a pattern
    is none, or a rule's id is taken; :class:`NotFoundError` where there is no such file.
    """
    theirs = [_rules_of(file) for file in files]
    whole = _joined([*theirs, _own_rules()])
    if files:
        # Our own first: an id that is taken is the user's to rename.
        _check_ids((*_own_rules().rules, *(rule for part in theirs for rule in part.rules)))
    return whole


def _rules_of(file: Path) -> RuleSet:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such rule file; give a TOML file of rules") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRulesError(f"{file}: cannot be read as text ({error})") from None
    return parse_rules(text, str(file))


def parse_rules(text: str, file: str, *, check_patterns: bool = True) -> RuleSet:
    """The rules and attributes of one file's text; ``file`` is its name in messages."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadRulesError(f"{file}: not valid TOML: {error}") from None
    unknown = set(content) - {"library", "rule", "attribute"}
    if unknown:
        raise BadRulesError(f"{file}: unknown key {sorted(unknown)[0]!r} at the top of the file")
    library = content.get("library")
    rules = [
        _rule(table, _Place(file, text, "rule", number, check_patterns), library)
        for number, table in enumerate(_tables(content, "rule", file), start=1)
    ]
    attributes = [
        _attribute(table, _Place(file, text, "attribute", number, check_patterns))
        for number, table in enumerate(_tables(content, "attribute", file), start=1)
    ]
    return RuleSet(tuple(rules), tuple(attributes))


def _joined(parts: Iterable[RuleSet]) -> RuleSet:
    parts = tuple(parts)
    return RuleSet(
        tuple(rule for part in parts for rule in part.rules),
        tuple(attribute for part in parts for attribute in part.attributes),
    )


def _check_ids(rules: Iterable[Rule]) -> None:
    seen: dict[str, str] = {}
    for rule in rules:
        if rule.id in seen:
            where = seen[rule.id]
            raise BadRulesError(f"{rule.file}: rule id {rule.id!r} is taken by {where}; rename it")
        seen[rule.id] = rule.file


class _Place:
    """Where in a file something stands, for messages."""

    def __init__(self, file: str, text: str, kind: str, number: int, check_patterns: bool) -> None:
        self._file, self._text, self._kind, self._number = file, text, kind, number
        self.check_patterns = check_patterns

    @property
    def file(self) -> str:
        return self._file

    def error(
        self, table: Mapping[str, Any], problem: str, key: str | None = None
    ) -> BadRulesError:
        """The error to raise; it names the line of ``key``, or of the whole table."""
        label = table.get("id") or table.get("column") or f"number {self._number}"
        return BadRulesError(f"{self._file}:{self._line(key)}: {self._kind} {label}: {problem}")

    def _line(self, key: str | None) -> int:
        header = f"[[{self._kind}]]"
        count, line_of_table = 0, 1
        for line, text in enumerate(self._text.splitlines(), start=1):
            if text.strip().startswith(header):
                count += 1
                line_of_table = line if count == self._number else line_of_table
            elif count == self._number and key == text.partition("=")[0].strip().strip("'\""):
                return line
        return line_of_table


def _tables(content: Mapping[str, Any], key: str, file: str) -> list[dict[str, Any]]:
    tables = content.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadRulesError(f"{file}: write each {key} as a table headed [[{key}]]")
    return tables


def _rule(table: dict[str, Any], place: _Place, library: str | None) -> Rule:
    _check_keys(table, _RULE_KEYS, ("id", "reason", "category"), place)
    if "head" not in table and "name" not in table:
        raise place.error(table, "needs a pattern: head, name or both")
    for key in ("id", "reason"):
        _text(table, key, place)
    columns = {key: table[key] for key in SETTABLE_COLUMNS if key in table}
    if library is not None:
        columns.setdefault("library", library)
    for column, value in columns.items():
        _check_value(column, value, table, place)
    if ("algorithm" in columns) != (columns["category"] == "conv"):
        raise place.error(table, "algorithm belongs to category conv, and conv needs one")
    return Rule(
        id=table["id"],
        reason=table["reason"],
        file=place.file,
        columns=columns,
        head=_pattern(table, "head", place),
        name=_pattern(table, "name", place),
        unless=_pattern(table, "unless", place),
        examples=tuple(_example(item, table, place) for item in table.get("examples", [])),
    )


def _attribute(table: dict[str, Any], place: _Place) -> Attribute:
    _check_keys(table, _ATTRIBUTE_KEYS, ("column", "pattern", "value"), place)
    column = _text(table, "column", place)
    if column not in SETTABLE_COLUMNS or column == "category":
        raise place.error(table, f"no column {column!r} to read from a name")
    values = table.get("values", {})
    outcomes = list(values.values()) if values else [table["value"]]
    if values or "$" not in str(table["value"]):
        for value in outcomes:
            _check_value(column, value, table, place)
    part = table.get("part", "name")
    if part not in ("name", "head"):
        raise place.error(table, f"part is {part!r}; it can be name or head")
    return Attribute(
        column=column,
        pattern=_needed_pattern(table, "pattern", place),
        value=table["value"],
        file=place.file,
        name_part=part,
        categories=tuple(table.get("categories", ())),
        libraries=tuple(table.get("libraries", ())),
        values=values,
    )


def _example(item: Any, table: dict[str, Any], place: _Place) -> Example:
    if isinstance(item, str):
        return Example(item)
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise place.error(table, "an example is a name, or a table with a name and columns")
    columns = {key: value for key, value in item.items() if key != "name"}
    unknown = set(columns) - set(CLASS_COLUMNS)
    if unknown:
        raise place.error(table, f"example names an unknown column {sorted(unknown)[0]!r}")
    return Example(item["name"], columns)


def _check_keys(
    table: dict[str, Any], known: set[str], needed: tuple[str, ...], place: _Place
) -> None:
    for key in table:
        if key not in known:
            raise place.error(table, f"unknown key {key!r}", key)
    for key in needed:
        if key not in table:
            raise place.error(table, f"needs {key}")


def _text(table: dict[str, Any], key: str, place: _Place) -> str:
    value = table[key]
    if not isinstance(value, str) or not value:
        raise place.error(table, f"{key} must be text", key)
    return value


def _pattern(table: dict[str, Any], key: str, place: _Place) -> str | None:
    return _needed_pattern(table, key, place) if key in table else None


def _needed_pattern(table: dict[str, Any], key: str, place: _Place) -> str:
    pattern = ascii_classes(_text(table, key, place))
    if place.check_patterns:
        try:
            pl.Series([""]).str.contains(pattern)
        except pl.exceptions.ComputeError as error:
            raise place.error(table, f"{key} is no pattern: {_told(error)}", key) from None
    return pattern


def _told(error: pl.exceptions.ComputeError) -> str:
    """What is wrong with a pattern: the message draws it over several lines and says it in one."""
    lines = str(error).splitlines()
    said = [line for line in lines if line.startswith("error: ")] or lines
    return said[0].removeprefix("regex ").removeprefix("error: ").rstrip(".")


def _check_value(column: str, value: ClassValue, table: dict[str, Any], place: _Place) -> None:
    if column in BOOLEAN_COLUMNS:
        if not isinstance(value, bool):
            raise place.error(table, f"{column} is true or false, not {value!r}", column)
        return
    if not isinstance(value, str):
        raise place.error(table, f"{column} must be text, not {value!r}", column)
    allowed = CLOSED_SETS.get(column)
    if allowed is not None and value not in allowed:
        raise place.error(
            table, f"{column} cannot be {value!r}; one of {', '.join(allowed)}", column
        )
