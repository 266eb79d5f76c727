"""Two ways to read one thing give the same tables: SQLite and directories of tables."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.fuzz import seeds, sqlite_edits
from traceana.errors import TraceanaError
from traceana.readers import read
from traceana.trace.schema import TABLES


def converted(content: bytes, folder: Path) -> Path | None:
    """Write every table of a database as Parquet; None where Arrow's types cannot hold a column."""
    folder.mkdir()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.deserialize(content)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in names.fetchall():
            found = connection.execute(f'SELECT * FROM "{name}"')
            columns = [column for column, *_ in found.description]
            try:
                frame = pl.DataFrame(
                    found.fetchall(), schema=columns, orient="row", infer_schema_length=None
                )
            except (TypeError, OverflowError, pl.exceptions.PolarsError):
                return None
            frame.write_parquet(folder / f"{name}.parquet")
    return folder


@pytest.mark.exhaustive(after=8)
@pytest.mark.parametrize("number", range(40))
def test_an_edited_database_and_its_tables_are_read_alike(tmp_path: Path, number: int) -> None:
    (seed,) = [one for one in seeds.of("nsys") if one.name == "gpu"]
    content, what = sqlite_edits.valued(random.Random(number), seed.files["run.sqlite"])
    path = tmp_path / "run.sqlite"
    path.write_bytes(content)
    folder = converted(content, tmp_path / "tables")
    if folder is None:
        return  # a column of texts and numbers: no Parquet file has one
    try:
        want = read(path)
    except TraceanaError as error:
        with pytest.raises(type(error)):
            read(folder)
        return
    found = read(folder)
    for table in TABLES:
        assert found.tables[table].equals(want.tables[table]), (table, what)
