"""The classification rules: read from TOML files, validated, typed, in order.

Errors name the file, the line and the rule.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl
import rtoml

from traceana.columns.distinct import ascii_classes
from traceana.errors import InvalidInputError
from traceana.files import config_folder, text_content
from traceana.plain_text import as_unicode
from traceana.trace.taxonomy import (
    BOOLEAN_COLUMNS,
    CLOSED_SETS,
    SETTABLE_COLUMNS,
)

ClassValue = str | bool


class Rule(msgspec.Struct, frozen=True):
    """A pattern of names, and the class of the names that match it.

    ``head`` is matched against the name's head (:func:`traceana.enrich.classify.engine.heads_of`),
    ``name`` against the whole name. If both are given, both must match. ``unless`` must not match
    the whole name.
    """

    id: str
    reason: str
    file: str
    columns: Mapping[str, ClassValue]
    head: str | None = None
    name: str | None = None
    unless: str | None = None


class Attribute(msgspec.Struct, frozen=True):
    """A pattern that sets a column from the name, for names of some categories.

    It applies if no rule and no earlier attribute has set the column. ``value`` may contain ``$1``,
    ``$2`` … for the groups of ``pattern``. With ``values`` the result is looked up there, and a
    missing key is no match. ``name_part`` is ``name`` or ``head``.
    """

    column: str
    pattern: str
    value: ClassValue
    file: str
    name_part: str = "name"
    categories: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    values: Mapping[str, str] = msgspec.field(default_factory=dict)


class RuleSet(msgspec.Struct, frozen=True, eq=False):
    """Rules in the order in which they are checked, and the attributes that complete a class.

    The last rule matches every name. ``operators`` say how an operator's FLOPs are counted: a
    pattern of its name, a formula, its operands.
    """

    rules: tuple[Rule, ...]
    attributes: tuple[Attribute, ...]
    operators: tuple[tuple[str, str, str], ...] = ()


_RULE_KEYS: Final = {"id", "reason", "head", "name", "unless", *SETTABLE_COLUMNS}
_ATTRIBUTE_KEYS: Final = {
    *("column", "pattern", "value", "part", "categories", "libraries", "values"),
}


def rules_in_use(extra: Path | None) -> RuleSet | None:
    """Return the rules of ``extra``, then those of the configuration directory, then traceana's.

    None where the user has none: traceana's own are read only for names that are new. Raises the
    errors of :func:`load_rules`.
    """
    configured = config_folder() / "rules.toml"
    files = [*([] if extra is None else [extra]), *([configured] if configured.exists() else [])]
    return load_rules(*files) if files else None


def load_rules(*files: Path) -> RuleSet:
    """Return the rules and attributes of users' TOML ``files`` in their order, then traceana's own.

    Raises :class:`InvalidInputError` if a file is not TOML, a key or value is unknown, a pattern is
    invalid, or two rules have one id, and the errors of :func:`traceana.files.content`.
    """
    if not files:
        return _own_rules()
    of_users = []
    for file in files:
        try:
            text = text_content(file, "TOML file of rules")
            of_users.append(parse_rules(text, as_unicode(str(file))))
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"{file}: not UTF-8 ({error}); give a UTF-8 TOML file"
            ) from None
    # traceana's rules come first, so that the error names the user's file for a duplicate id.
    file_of_id: dict[str, str] = {}
    for rule in chain.from_iterable(part.rules for part in (_own_rules(), *of_users)):
        if rule.id in file_of_id:
            raise InvalidInputError(
                f"{rule.file}: rule id {rule.id!r} is already used in {file_of_id[rule.id]}; "
                "rename it"
            )
        file_of_id[rule.id] = rule.file
    return _joined([*of_users, _own_rules()])


@functools.cache
def _own_rules() -> RuleSet:
    folder = resources.files("traceana.enrich.classify") / "rules"
    order = rtoml.loads((folder / "order.toml").read_text(encoding="utf-8"))["files"]
    texts = ((file, (folder / file).read_text(encoding="utf-8")) for file in order)
    # The tests check traceana's patterns. Compiling them here takes as long as classification.
    return _joined(parse_rules(text, file, check_patterns=False) for file, text in texts)


def parse_rules(text: str, file: str, *, check_patterns: bool = True) -> RuleSet:
    """Return the rules and attributes of one file's text; ``file`` is its name in messages."""
    try:
        content = rtoml.loads(text)
    except rtoml.TomlParsingError as error:
        raise InvalidInputError(f"{file}: not valid TOML: {error}") from None
    except RecursionError:
        raise InvalidInputError(f"{file}: not valid TOML: nested too deeply") from None
    unknown = set(content) - {"library", "rule", "attribute", "operator"}
    if unknown:
        raise InvalidInputError(
            f"{file}: unknown key {sorted(unknown)[0]!r} at the top level; keys: library, rule, "
            "attribute, operator"
        )
    library = content.get("library")
    rules = [
        _rule(table, _Location(file, text, "rule", number, check_patterns), library)
        for number, table in enumerate(_tables(content, "rule", file), start=1)
    ]
    attributes = [
        _attribute(table, _Location(file, text, "attribute", number, check_patterns))
        for number, table in enumerate(_tables(content, "attribute", file), start=1)
    ]
    operators = [
        _operator(table, _Location(file, text, "operator", number, check_patterns))
        for number, table in enumerate(_tables(content, "operator", file), start=1)
    ]
    return RuleSet(tuple(rules), tuple(attributes), tuple(operators))


def _joined(parts: Iterable[RuleSet]) -> RuleSet:
    parts = tuple(parts)
    return RuleSet(
        tuple(rule for part in parts for rule in part.rules),
        tuple(attribute for part in parts for attribute in part.attributes),
        tuple(operator for part in parts for operator in part.operators),
    )


class _Location:
    """The location of a table in a file, for error messages."""

    def __init__(self, file: str, text: str, kind: str, number: int, check_patterns: bool) -> None:
        self._file, self._text, self._kind, self._number = file, text, kind, number
        self.check_patterns = check_patterns

    @property
    def file(self) -> str:
        return self._file

    def error(
        self, table: Mapping[str, Any], problem: str, key: str | None = None
    ) -> InvalidInputError:
        """Return the error to raise, with the line of ``key``, or of the table."""
        label = (
            table.get("id") or table.get("column") or table.get("name") or f"number {self._number}"
        )
        return InvalidInputError(f"{self._file}:{self._line(key)}: {self._kind} {label}: {problem}")

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
        raise InvalidInputError(f"{file}: write each {key} as a table headed [[{key}]]")
    return tables


def _rule(table: dict[str, Any], location: _Location, library: str | None) -> Rule:
    _check_keys(table, _RULE_KEYS, ("id", "reason", "category"), location)
    if "head" not in table and "name" not in table:
        raise location.error(table, "needs a pattern: head, name or both")
    for key in ("id", "reason"):
        _text(table, key, location)
    columns = {key: table[key] for key in SETTABLE_COLUMNS if key in table}
    if library is not None:
        columns.setdefault("library", library)
    for column, value in columns.items():
        _check_value(column, value, table, location)
    if ("algorithm" in columns) != (columns["category"] == "conv"):
        raise location.error(
            table, "category conv requires an algorithm; other categories must not have one"
        )
    return Rule(
        id=table["id"],
        reason=table["reason"],
        file=location.file,
        columns=columns,
        head=_pattern(table, "head", location),
        name=_pattern(table, "name", location),
        unless=_pattern(table, "unless", location),
    )


def _attribute(table: dict[str, Any], location: _Location) -> Attribute:
    _check_keys(table, _ATTRIBUTE_KEYS, ("column", "pattern", "value"), location)
    column = _text(table, "column", location)
    if column not in SETTABLE_COLUMNS or column == "category":
        raise location.error(table, f"an attribute cannot set column {column!r}")
    values = table.get("values", {})
    outcomes = list(values.values()) if values else [table["value"]]
    if values or "$" not in str(table["value"]):
        for value in outcomes:
            _check_value(column, value, table, location)
    part = table.get("part", "name")
    if part not in ("name", "head"):
        raise location.error(table, f"part must be name or head, not {part!r}")
    return Attribute(
        column=column,
        pattern=_needed_pattern(table, "pattern", location),
        value=table["value"],
        file=location.file,
        name_part=part,
        categories=tuple(table.get("categories", ())),
        libraries=tuple(table.get("libraries", ())),
        values=values,
    )


def _operator(table: dict[str, Any], location: _Location) -> tuple[str, str, str]:
    keys = ("name", "formula", "operands")
    _check_keys(table, set(keys), keys, location)
    pattern = _needed_pattern(table, "name", location)
    formula, operands = _text(table, "formula", location), _text(table, "operands", location)
    # Few files have such a table.
    from traceana.flops.registry import check_row

    try:
        check_row(formula, operands)
    except ValueError as error:
        raise location.error(table, str(error)) from None
    return pattern, formula, operands


def _check_keys(
    table: dict[str, Any], known: set[str], needed: tuple[str, ...], location: _Location
) -> None:
    for key in table:
        if key not in known:
            raise location.error(table, f"unknown key {key!r}", key)
    for key in needed:
        if key not in table:
            raise location.error(table, f"needs {key}")


def _text(table: dict[str, Any], key: str, location: _Location) -> str:
    value = table[key]
    if not isinstance(value, str) or not value:
        raise location.error(table, f"{key} must be text", key)
    return value


def _pattern(table: dict[str, Any], key: str, location: _Location) -> str | None:
    return _needed_pattern(table, key, location) if key in table else None


def _needed_pattern(table: dict[str, Any], key: str, location: _Location) -> str:
    pattern = ascii_classes(_text(table, key, location))
    if location.check_patterns:
        try:
            pl.Series([""]).str.contains(pattern)
        except pl.exceptions.ComputeError as error:
            # The cause is one of several lines of polars' message.
            lines = str(error).splitlines()
            (cause, *_) = [line for line in lines if line.startswith("error: ")] or lines
            cause = cause.removeprefix("regex ").removeprefix("error: ").rstrip(".")
            raise location.error(table, f"{key}: invalid pattern: {cause}", key) from None
    return pattern


def _check_value(
    column: str, value: ClassValue, table: dict[str, Any], location: _Location
) -> None:
    if column in BOOLEAN_COLUMNS:
        if not isinstance(value, bool):
            raise location.error(table, f"{column} must be true or false, not {value!r}", column)
        return
    if not isinstance(value, str):
        raise location.error(table, f"{column} must be text, not {value!r}", column)
    allowed = CLOSED_SETS.get(column)
    if allowed is not None and value not in allowed:
        raise location.error(
            table, f"{column} cannot be {value!r}; one of {', '.join(allowed)}", column
        )
