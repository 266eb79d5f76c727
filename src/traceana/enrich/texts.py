"""Patterns on a column of texts: each distinct text is searched, not each row."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.nesting import Flags


class Texts(msgspec.Struct, frozen=True):
    """The distinct texts of a categorical column, and their codes.

    ``code_of_row`` has the code of each row, and ``null`` for null, which is above all codes.
    """

    distinct: pl.Series
    codes: npt.NDArray[np.uint32]
    null: int
    code_of_row: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, column: pl.Series) -> Texts:
        """Return the texts of a categorical ``column``."""
        values = column.unique().drop_nulls()
        codes = values.to_physical().to_numpy()
        null = int(codes.max(initial=0)) + 1
        code_of_row = column.to_physical().fill_null(null).to_numpy()
        return cls(values.cast(pl.String), codes, null, code_of_row)

    def matching(self, pattern: str) -> Flags:
        """Return which rows match ``pattern``; false for null."""
        wanted = np.zeros(self.null + 1, dtype=np.bool_)
        wanted[self.codes] = self.distinct.str.contains(pattern).to_numpy()
        return np.asarray(wanted[self.code_of_row])
