"""The texts of a database, to which its other tables refer by number."""

from __future__ import annotations

import polars as pl

from traceana.ingest.tables import Bytes, Integer, Query, decoded


def query(table: str, number: str, text: str) -> Query:
    """Return the query for the texts in ``table``, which must be there; names of its columns."""
    return Query(
        table,
        {"id": Integer(number), "text": Bytes(text)},
        lambda page: page.with_columns(decoded(page["text"]).alias("text")),
    )


class Texts:
    """Looks texts up by their number."""

    def __init__(self, table: pl.DataFrame | None) -> None:
        """Take over the result of :func:`query`, None where the database has no such table."""
        if table is None:
            table = pl.DataFrame(schema={"id": pl.Int64, "text": pl.String})
        self._table = table.unique("id", keep="first")

    def of(self, ids: pl.Series) -> pl.Series:
        """Return the texts of ``ids`` as labels, null where the database does not have one.

        Only the distinct numbers are looked up as text.
        """
        wanted = ids.drop_nulls().unique().alias("id").to_frame()
        found = wanted.join(self._table, on="id", how="inner").with_columns(
            pl.col("text").cast(pl.Categorical)
        )
        return (ids.alias("id").to_frame().join(found, on="id", how="left", maintain_order="left"))[
            "text"
        ]
