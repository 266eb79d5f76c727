"""Columns of one piece of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def join_pieces(table: pl.DataFrame) -> None:
    """Make each column of ``table`` one piece of memory, in place; the values stay.

    Tables that were put together from pages have columns of many pieces, and each query would put
    them together again: that takes most of the time of a group-by. One column at a time needs
    little memory.
    """
    for at, column in enumerate(table.get_columns()):
        if column.n_chunks() > 1:
            table.replace_column(at, column.rechunk())
