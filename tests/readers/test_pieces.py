"""Each column of a table that was read is one piece of memory."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import traceana
from benchmarks.generate_database import generate
from traceana.readers import read
from traceana.trace.schema import TABLES, join_pieces


def test_joining_pieces_keeps_the_values() -> None:
    parts = [pl.DataFrame({"a": [1, None], "b": ["x", "y"]}), pl.DataFrame({"a": [3], "b": ["z"]})]
    whole = pl.concat(parts, rechunk=False)
    assert whole["a"].n_chunks() == 2
    join_pieces(whole)
    assert [column.n_chunks() for column in whole.get_columns()] == [1, 1]
    assert whole.rows() == [(1, "x"), (None, "y"), (3, "z")]


def test_tables_that_were_read_and_attributed_are_of_one_piece(tmp_path: Path) -> None:
    path, _ = generate("nsys", "training", 70_000, tmp_path)
    for trace in (read(path), traceana.open(path)):
        for name in TABLES:
            assert {column.n_chunks() for column in trace.tables[name].get_columns()} == {1}
