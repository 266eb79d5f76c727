"""Patterns on a column of texts: each distinct text is searched, not each row."""

from __future__ import annotations

import functools
import re
from typing import Final

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
        """Return which rows match ``pattern``, of :func:`ascii_classes`; false for null."""
        wanted = np.zeros(self.null + 1, dtype=np.bool_)
        wanted[self.codes] = self.distinct.str.contains(ascii_classes(pattern)).to_numpy()
        return np.asarray(wanted[self.code_of_row])

    def replaced(self, pattern: str, text: str) -> pl.Series:
        """Return the text of each row with the first match of ``pattern`` as ``text``."""
        place = np.full(self.null + 1, len(self.distinct), dtype=np.uint32)
        place[self.codes] = np.arange(len(self.codes), dtype=np.uint32)
        changed = self.distinct.str.replace(pattern, text).extend_constant(None, 1)
        return changed[place[self.code_of_row]]


_TOKEN: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
_CLASS: Final = re.compile(r"\\.", re.DOTALL)
_OUTSIDE: Final = {r"\w": "[0-9A-Za-z_]", r"\d": "[0-9]", r"\b": r"(?-u:\b)"}
_INSIDE: Final = {r"\w": "0-9A-Za-z_", r"\d": "0-9"}


@functools.cache
def ascii_classes(pattern: str) -> str:
    """Return ``pattern`` with ``\\w``, ``\\d`` and ``\\b`` limited to ASCII.

    Unicode's ``\\w`` is a table of seven hundred ranges, and building it for every pattern takes
    longer than searching. Names of kernels and operators are ASCII identifiers, so the matches are
    the same.
    """
    return _TOKEN.sub(_rewritten, pattern)


def _rewritten(token: re.Match[str]) -> str:
    text = token.group()
    if text.startswith("["):
        return _CLASS.sub(lambda escape: _INSIDE.get(escape.group(), escape.group()), text)
    return _OUTSIDE.get(text, text)
