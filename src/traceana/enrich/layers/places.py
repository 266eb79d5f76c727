"""Layers as places in a program: which thread was where, when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.tree import PathTree
from traceana.enrich.nesting import NONE, Ints, Nesting

SEPARATOR: Final = "."

Layer = tuple[str, str | None, str]
"""(path, type, role) of one row of ``layers``."""


@dataclass(frozen=True, slots=True)
class Places:
    """Intervals on threads, each of them a layer.

    ``layer[i]`` indexes ``layers`` for interval ``i``. Intervals of no interest have been left out
    before nesting.
    """

    nesting: Nesting
    layer: Ints
    layers: list[Layer]

    def at(self, key: Ints, time: Ints) -> Ints:
        """Return the index into ``layers`` of where each thread was, NONE where nowhere."""
        row = self.nesting.innermost(key, time)
        return np.where(row == NONE, NONE, self.layer[row]) if len(self.layer) else row


def codes(text: pl.Series) -> tuple[Ints, list[str]]:
    """Number the distinct texts; returns (number per row, texts by number)."""
    distinct = text.unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(distinct)))
    if not len(distinct):
        return np.zeros(0, dtype=np.int64), []
    return (
        text.replace_strict(distinct, numbers, return_dtype=pl.Int64).to_numpy(),
        distinct.cast(pl.String).to_list(),
    )


def nest(frame: pl.DataFrame, key: Ints) -> Nesting:
    """Nest the rows of ``frame`` by their ``start`` and ``duration``."""
    return Nesting.of(key, frame["start"].to_numpy(), frame["duration"].to_numpy())


def tree_of(frame: pl.DataFrame, key: Ints) -> tuple[Nesting, PathTree, list[str]]:
    """Return the nesting of ranges, the tree of their texts, and the texts by number."""
    nesting = nest(frame, key)
    code, texts = codes(frame["text"])
    return nesting, PathTree.of(nesting, code), texts
