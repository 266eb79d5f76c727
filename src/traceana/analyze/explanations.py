"""Classes of kernel names, and why they are these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

from traceana.enrich.classify.engine import classify_names, explain
from traceana.result import Result

if TYPE_CHECKING:
    from traceana.enrich.classify import RuleSet

_NONE = ("no names were given",)


def classes(names: Sequence[str], rules: RuleSet, given: Sequence[str] | None = None) -> Result:
    """Return one row a name, in order: ``name``, the columns of the taxonomy, ``rule``.

    ``given`` holds the names as the user spelt them (mangled), where ``names`` are readable: the
    rows carry those, to be joined with.
    """
    frame = classify_names(pl.Series("name", names, dtype=pl.String), rules)
    if given is not None:
        frame = frame.with_columns(pl.Series("name", given, dtype=pl.String))
    return Result(frame, {}, () if names else _NONE)


def explanations(
    names: Sequence[str], rules: RuleSet, given: Sequence[str] | None = None
) -> Result:
    """Return one row a name, in order, as :func:`classes` does, and why.

    The further columns: ``reason`` (the deciding rule's own words), ``file`` (which holds it),
    ``head`` (the part of the name that rules look at) and ``also_matched`` (the ids of the rules
    that match too and come later, comma-separated).
    """
    told = [explain(name, rules) for name in names]
    why = pl.DataFrame(
        [(e.reason, e.file, e.head, ", ".join(e.also_matched)) for e in told],
        schema=dict.fromkeys(("reason", "file", "head", "also_matched"), pl.String),
        orient="row",
    )
    whole = classes(names, rules, given)
    return Result(pl.concat([whole.frame, why], how="horizontal"), {}, whole.notes)
