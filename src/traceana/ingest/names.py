"""Distinct activity names and their row numbers, gathered while a reader streams."""

from __future__ import annotations

from typing import Final

import polars as pl

from traceana.ingest.demangle import readable

UNNAMED: Final = "(unnamed)"
"""The name of activities whose name is not in the file; the reader counts them in the ledger."""


class NameTable:
    """Gives every distinct name one number, in the order in which the names first appear.

    The numbers are ``activities.name_id``, the table of :meth:`frame` is ``names``. Only distinct
    names pass through Python, never one object an event. Mangled C++ names are kept in their
    readable form only, so that the formats' names of one kernel are one name.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._seen: dict[str, int] = {}  # by the spelling in the file

    def ids(self, texts: pl.Series) -> pl.Series:
        """Return the UInt32 numbers of ``texts``; a null text is :data:`UNNAMED`."""
        labels = texts.cast(pl.Categorical)
        distinct = labels.unique(maintain_order=True)
        names = distinct.cast(pl.String).fill_null(UNNAMED).to_list()
        plain = readable(name for name in names if name not in self._seen)
        for name in names:
            if name not in self._seen:
                shown = plain.get(name, name)
                self._seen[name] = self._ids.setdefault(shown, len(self._ids))
        numbers = [self._seen[name] for name in names]
        # The physical number of a label is the key: no event's name is compared as text.
        return labels.to_physical().replace_strict(
            distinct.to_physical(), pl.Series(numbers, dtype=pl.UInt32), return_dtype=pl.UInt32
        )

    def frame(self) -> pl.DataFrame:
        """Return the names seen so far, one row each, row number = id."""
        return pl.DataFrame({"name": list(self._ids)}, schema={"name": pl.String})
