"""The rules of classification: read from TOML files, checked, typed, in the order of trial.

A file that cannot be used is refused with the file and the rule or line that is wrong.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

import polars as pl

from traceana.errors import BadRulesError, NotFoundError
from traceana.trace.taxonomy import (
    BOOLEAN_COLUMNS,
    CLASS_COLUMNS,
    CLOSED_SETS,
    SETTABLE_COLUMNS,
)

ClassValue = str | bool


@dataclass(frozen=True, slots=True)
class Example:
    """A name that a rule must decide, with the columns that the row must then hold."""

    name: str
    columns: Mapping[str, ClassValue | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern of names, and the class of those that match it.

    ``head`` is matched against the name's head (:func:`.spelling.heads_of`), ``name`` against the
    whole name. Both must match where both are given, and ``unless`` must not match the whole name.
    """

    id: str
    reason: str
    file: str
    columns: Mapping[str, ClassValue]
    head: str | None = None
    name: str | None = None
    unless: str | None = None
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column that is read from names of some categories, where no rule has set it.

    Of the attributes of a column the first that matches wins. ``value`` may hold ``$1``, ``$2`` …
    for the groups of ``pattern``; with ``values`` the outcome is looked up there, and what is not
    found there counts as no match. ``name_part`` is ``name`` or ``head``.
    """

    column: str
    pattern: str
    value: ClassValue
    file: str
    name_part: str = "name"
    categories: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in the order in which they are tried, and the attributes that complete a class.

    The last rule matches every name, so every name is decided.
    """

    rules: tuple[Rule, ...]
    attributes: tuple[Attribute, ...]


_RULE_KEYS: Final = {"id", "reason", "head", "name", "unless", "examples", *SETTABLE_COLUMNS}
_ATTRIBUTE_KEYS: Final = {
    *("column", "pattern", "value", "part", "categories", "libraries", "values"),
}


def rules_in_use(given: Path | None) -> RuleSet:
    """Return the rules of ``given``, then those of the configuration directory, then our own.

    Raises the errors of :func:`load_rules`.
    """
    return load_rules(*(file for file in (given, _configured_rules()) if file is not None))


def _configured_rules() -> Path | None:
    """Return the user's rule file, where there is one: ``traceana/rules.toml``.

    It is looked for in ``$XDG_CONFIG_HOME``, or ``~/.config`` where that is unset, empty or, by
    the XDG Base Directory Specification, not an absolute path.
    """
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if Path(home).is_absolute() else Path("~/.config").expanduser()
    file = folder / "traceana" / "rules.toml"
    return file if file.exists() else None


def load_rules(*files: Path) -> RuleSet:
    """Return the rules and attributes of users' TOML ``files`` in their order, then traceana's own.

    Raises :class:`BadRulesError` where a file is not TOML, a key or value is unknown, a pattern
    is invalid, or a rule's id is taken; :class:`NotFoundError` where the file is missing.
    """
    theirs = [_rules_of(file) for file in files]
    whole = _joined([*theirs, _own_rules()])
    if files:
        # Our own first: an id that is taken is the user's to rename.
        _check_ids((*_own_rules().rules, *(rule for part in theirs for rule in part.rules)))
    return whole


@functools.cache
def _own_rules() -> RuleSet:
    folder = resources.files("traceana.enrich.classify") / "rules"
    order = tomllib.loads((folder / "order.toml").read_text(encoding="utf-8"))["files"]
    texts = ((file, (folder / file).read_text(encoding="utf-8")) for file in order)
    # The tests check our own patterns; compiling them here again costs as much as classifying.
    return _joined(parse_rules(text, file, check_patterns=False) for file, text in texts)


def _rules_of(file: Path) -> RuleSet:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"{file}: no such file; give a TOML file of rules") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRulesError(f"{file}: cannot be read as text ({error})") from None
    return parse_rules(text, str(file))


def parse_rules(text: str, file: str, *, check_patterns: bool = True) -> RuleSet:
    """Return the rules and attributes of one file's text; ``file`` is its name in messages."""
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
        """Return the error to raise; it names the line of ``key``, or of the whole table."""
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
            raise place.error(table, f"{key}: invalid pattern: {_problem(error)}", key) from None
    return pattern


def _problem(error: pl.exceptions.ComputeError) -> str:
    """Return what is wrong with a pattern: one of the several lines of polars' message."""
    lines = str(error).splitlines()
    errors = [line for line in lines if line.startswith("error: ")] or lines
    return errors[0].removeprefix("regex ").removeprefix("error: ").rstrip(".")


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


_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_CLASS: Final = re.compile(r"\\.", re.DOTALL)
_OUTSIDE: Final = {r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}
_INSIDE: Final = {r"\w": "0-9A-Za-z_", r"\d": "0-9"}


def ascii_classes(pattern: str) -> str:
    """Return ``pattern`` with ``\\w``, ``\\d`` and ``\\b`` of ASCII.

    ``\\w`` of Unicode is a table of seven hundred ranges, and building the tables of every rule
    costs more than running it. Kernels' names are identifiers, in which both match alike.
    """
    return _TOKEN.sub(_rewritten, pattern)


def _rewritten(token: re.Match[str]) -> str:
    text = token.group()
    if text.startswith("["):
        return _CLASS.sub(lambda escape: _INSIDE.get(escape.group(), escape.group()), text)
    return _OUTSIDE.get(text, text)
