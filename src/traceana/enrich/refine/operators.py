"""What the operators around an activity say: who launched it, inside what, for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.classify.engine import classify_names
from traceana.enrich.classify.ruleset import RuleSet
from traceana.enrich.nesting import NONE, Ints, from_rows
from traceana.enrich.refine.channels import along_channels
from traceana.enrich.refine.model import Context

_SCOPE_TAIL: Final = r"([^/]+?)(?:_\d+)?/?$"


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a trace, their names classified and their situations numbered.

    ``names`` has one row a distinct name of an operator, or last part of a name scope: ``text``,
    the class columns and ``within``, a bit for each pattern of ``withins``. ``situations`` has one
    row a distinct situation: ``operator`` and ``purpose`` (rows of ``names``; purpose -1 where
    none), ``within`` and ``channel``. ``of_op`` and ``of_scope`` give the row of ``situations`` of
    an operator and of an activity by its scope; ``convolution_of`` the row of the nearest
    operator that is a convolution, -1 where none. ``scopes`` has a row a distinct scope: ``scope``,
    ``situation``, ``convolution`` (its last part is one) and ``told_direction``.
    """

    names: pl.DataFrame
    withins: tuple[str, ...]
    situations: pl.DataFrame
    of_op: Ints
    convolution_of: Ints
    scopes: pl.DataFrame

    @classmethod
    def of(
        cls, ops: pl.DataFrame, scopes: pl.Series, context: Context, rules: RuleSet | None
    ) -> Operators:
        """Look at ``ops`` and at the distinct ``scopes`` of activities."""
        withins = tuple({rule.within: None for rule in context.rules if rule.within})
        tails = scopes.cast(pl.String).str.extract(_SCOPE_TAIL)
        texts = pl.concat([ops["name"].unique(maintain_order=True).cast(pl.String), tails])
        names = _named(texts.drop_nulls().unique(maintain_order=True), context, rules, withins)
        name = _codes(ops["name"], names)
        parent, levels = from_rows(ops["parent"]), _levels(ops["depth"])
        row = np.arange(ops.height)
        convolution = names["is_convolution"].to_numpy()
        purpose = names["is_purpose"].to_numpy()
        within = names["within"].to_numpy()[name] if ops.height else np.empty(0, np.int64)
        found = pl.DataFrame(
            {
                "operator": name,
                "purpose": _nearest(np.where(purpose[name], name, NONE), parent, levels),
                "within": _united(within, parent, levels),
                "channel": along_channels(ops, names["text"].gather(name)),
            }
        )
        owner = _nearest(np.where(convolution[name], row, NONE), parent, levels)
        scoped = _scoped(scopes, tails, names)
        both = pl.concat([found, scoped.select(found.columns)])
        situations = both.unique(maintain_order=True)
        numbered = both.join(
            situations.with_row_index("situation"),
            on=found.columns,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )["situation"].cast(pl.Int64)
        return cls(
            names,
            withins,
            situations,
            numbered[: ops.height].to_numpy(),
            owner,
            pl.DataFrame(
                {
                    "scope": scopes,
                    "situation": numbered[ops.height :],
                    "convolution": pl.Series(convolution).gather(scoped["operator"]),
                    "told_direction": names["direction"].gather(scoped["operator"]),
                }
            ),
        )

    @property
    def told_direction(self) -> pl.Series:
        """What the name of each operator tells of its direction."""
        operator = self.situations["operator"].gather(self.of_op)
        return self.names["direction"].gather(operator)


def _named(
    texts: pl.Series, context: Context, rules: RuleSet | None, withins: Sequence[str]
) -> pl.DataFrame:
    classes = classify_names(texts, rules).rename({"name": "text"})
    bits = [texts.str.contains(p).cast(pl.Int64) * (1 << i) for i, p in enumerate(withins)]
    purposeless = texts.str.contains(context.purposeless)
    return classes.with_columns(
        (pl.col("category") == "conv").alias("is_convolution"),
        (pl.col("category").is_in(context.purposes) & ~purposeless).alias("is_purpose"),
        sum(bits, pl.zeros(len(texts), pl.Int64, eager=True)).alias("within"),
    )


def _codes(column: pl.Series, names: pl.DataFrame) -> Ints:
    """Return, for each value of ``column``, its row in ``names``."""
    distinct = column.unique(maintain_order=True)
    rows = pl.DataFrame({"key": distinct, "text": distinct.cast(pl.String)}).join(
        names.select("text").with_row_index("row"), on="text", how="left", maintain_order="left"
    )
    found = (
        column.alias("key")
        .to_frame()
        .join(rows.select("key", "row"), on="key", how="left", maintain_order="left")
    )
    return from_rows(found["row"])


def _scoped(scopes: pl.Series, tails: pl.Series, names: pl.DataFrame) -> pl.DataFrame:
    operator = from_rows(
        tails.alias("text")
        .to_frame()
        .join(
            names.select("text").with_row_index("row"), on="text", how="left", maintain_order="left"
        )["row"]
    )
    is_purpose = names["is_purpose"].to_numpy()[operator]
    return pl.DataFrame(
        {
            "scope": scopes,
            "operator": operator,
            "purpose": np.where(is_purpose, operator, NONE),
            "within": names["within"].to_numpy()[operator],
            "channel": pl.Series([None] * len(scopes), dtype=pl.Boolean),
        }
    )


def _levels(depth: pl.Series) -> list[Ints]:
    """Return the rows of every depth from 1 on, the outer before the inner."""
    depths = depth.fill_null(0).to_numpy()
    order = np.argsort(depths, kind="stable")
    bounds = np.searchsorted(depths[order], np.arange(1, int(depths.max(initial=0)) + 1))
    return np.split(order, bounds)[1:]


def _nearest(value: Ints, parent: Ints, levels: Sequence[Ints]) -> Ints:
    """Return ``value`` with NONE replaced by that of the nearest operator around."""
    result = value.copy()
    for rows in levels:
        lacking = rows[result[rows] == NONE]
        result[lacking] = result[parent[lacking]]
    return result


def _united(bits: npt.NDArray[np.int64], parent: Ints, levels: Sequence[Ints]) -> Ints:
    """Return ``bits`` of each operator together with those of all around it."""
    result = bits.copy()
    for rows in levels:
        result[rows] |= result[parent[rows]]
    return result
