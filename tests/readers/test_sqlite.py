"""Pages of a table to polars: order, gaps, types that change from row to row, progress."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceana.readers import sqlite
from traceana.readers.source import silent
from traceana.readers.sqlite import Database
from traceana.readers.table_source import Bytes, Integer, Query, decoded

Columns = dict[str, Integer | Bytes]

cells = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(alphabet=st.characters(codec="utf-8"), max_size=5),
    st.binary(max_size=5),
)


def table(path: Path, rows: list[tuple[Any, ...]], numbers: list[int] | None = None) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        for number, row in zip(numbers or range(1, len(rows) + 1), rows, strict=True):
            connection.execute("INSERT INTO t (rowid, a, b) VALUES (?, ?, ?)", (number, *row))
        connection.commit()
    return path


def fetch(path: Path, progress: Any = silent) -> pl.DataFrame:
    with Database(path) as database:
        columns: Columns = {"a": Integer("a"), "b": Bytes("b")}
        query = Query("t", columns, lambda page: page)
        (frame,) = database.read([query], progress)
    assert frame.schema == {"a": pl.Int64, "b": pl.Binary}
    return frame


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PAGE_ROWS", 3)
    monkeypatch.setattr(sqlite, "_PART_ROWS", 7)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)
@given(rows=st.lists(st.tuples(cells, cells), max_size=25))
def test_any_cells_come_through_as_sqlite_casts_them(
    tmp_path: Path, small_pages: None, rows: list[tuple[Any, Any]]
) -> None:
    path = table(tmp_path / "t.sqlite", rows)
    with closing(sqlite3.connect(path)) as connection:
        sql = "SELECT CAST(a AS INTEGER), coalesce(CAST(b AS BLOB), x'') FROM t ORDER BY rowid"
        want = connection.execute(sql).fetchall()
    assert fetch(path).rows() == want


@pytest.mark.slow
@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=12),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12
)
def test_gaps_between_row_numbers_cost_nothing_and_lose_nothing(
    tmp_path: Path, small_pages: None, numbers: list[int]
) -> None:
    numbers = sorted(numbers)
    path = table(tmp_path / "t.sqlite", [(n, str(n)) for n in numbers], numbers)
    assert fetch(path)["a"].to_list() == numbers


def test_progress_rises_to_the_total(tmp_path: Path, small_pages: None) -> None:
    path = table(tmp_path / "t.sqlite", [(i, None) for i in range(100)])
    calls: list[tuple[int, int]] = []
    fetch(path, lambda done, total: calls.append((done, total)))
    assert calls[0] == (0, 100)
    assert calls[-1] == (100, 100)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_a_listener_that_gives_up_stops_the_reading(tmp_path: Path, small_pages: None) -> None:
    path = table(tmp_path / "t.sqlite", [(i, None) for i in range(100)])

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(path, stop)


def test_columns_that_are_missing_are_null(tmp_path: Path) -> None:
    path = table(tmp_path / "t.sqlite", [(1, "x"), (None, "y")])
    with Database(path) as database:
        columns: Columns = {
            "none": Integer("nosuch"),
            "first": Integer("nosuch", "a", "b"),
            "bytes": Bytes("nosuch"),
        }
        (frame,) = database.read([Query("t", columns, lambda page: page)], silent)
    assert frame.rows() == [(None, 1, b""), (None, 0, b"")]


def test_bytes_that_are_no_text_are_replaced_one_by_one() -> None:
    raw = pl.Series([b"ok", b"\xff\x41", b"", b"a\x00b", None], dtype=pl.Binary)
    assert decoded(raw).to_list() == ["ok", "\ufffdA", "", "a\x00b", None]
