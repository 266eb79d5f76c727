"""Distinct activity names and their row numbers, gathered while a reader streams."""

from __future__ import annotations

from typing import Final

import polars as pl

UNNAMED: Final = "(unnamed)"
"""The name of activities whose name is not in the file; the reader counts them in the ledger."""


class NameTable:
    """Gives every distinct name one number, in the order in which the names first appear.

    The numbers are ``activities.name_id``, the table of :meth:`frame` is ``names``. Only distinct
    names pass through Python, never one object an event.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, texts: pl.Series) -> pl.Series:
        """Return the UInt32 numbers of ``texts``; a null text is :data:`UNNAMED`."""
        if texts.is_empty():
            return pl.Series(dtype=pl.UInt32)
        named = texts.cast(pl.String).fill_null(UNNAMED)
        distinct = named.unique(maintain_order=True)
        numbers = [self._ids.setdefault(text, len(self._ids)) for text in distinct]
        return named.replace_strict(
            distinct, pl.Series(numbers, dtype=pl.UInt32), return_dtype=pl.UInt32
        )

    def frame(self) -> pl.DataFrame:
        """Return the names seen so far, one row each, row number = id."""
        return pl.DataFrame({"name": list(self._ids)}, schema={"name": pl.String})
