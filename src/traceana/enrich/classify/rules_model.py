"""Rules as the engine sees them: checked, typed, immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ClassValue = str | bool


@dataclass(frozen=True, slots=True)
class Example:
    """A name that a rule must decide, with the columns that the row must then hold."""

    name: str
    columns: Mapping[str, ClassValue | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """Says of the names that match: they are of this class.

    ``head`` is matched against the name's qualified function without return type, template
    arguments and parameters, ``name`` against the whole name; both must match where both are given,
    and ``unless`` must not match the whole name.
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
    """Reads one column out of names of some categories, where no rule has set it.

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
