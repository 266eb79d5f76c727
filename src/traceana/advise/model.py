"""What a rule is and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import polars as pl

if TYPE_CHECKING:
    from traceana.advise.figures import Figures

Value: TypeAlias = int | float | str | None

Kind = Literal["estimate", "at most", "measuring", "nothing to gain"]
"""What a saving is: an estimate, or a bound that will not be reached whole; or none, for a finding
on how the run was measured, and for one that says where nothing is to be gained."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to change, in the terms of each framework."""

    pytorch: str
    tensorflow: str
    jax: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule found in a trace.

    ``saving_ns`` is time of all devices over all that was looked at (see
    :class:`traceana.advise.figures.Figures`), 0 where there is none. ``figures`` are the values
    that the rule's sentence names; they are called as columns of the tables are, for they are shown
    as these. ``evidence`` holds the rows of our own tables that it stands on.
    """

    saving_ns: int
    figures: Mapping[str, Value]
    evidence: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to look for.

    ``finds`` returns nothing where it does not hold. ``says`` and ``estimate`` are sentences for
    people: the first names figures of :class:`Found` in braces, the second says how the saving is
    computed. ``doubt`` says when the finding is no reason to change anything.
    """

    id: str
    title: str
    finds: Callable[[Figures], Found | None]
    kind: Kind
    says: str
    estimate: str
    doubt: str
    change: Change


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that holds: ``saving_ns`` is per device and step, ``saving_share`` of a step."""

    rule: Rule
    saving_ns: int
    saving_share: float
    figures: Mapping[str, Value]
    evidence: pl.DataFrame
