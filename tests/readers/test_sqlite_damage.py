"""Databases with damaged pages or odd schemas: rows are read, or their loss is in the ledger."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.readers.nsys.writing import (
    EXPORT,
    KERNEL,
    RUNTIME,
    STRINGS,
    call,
    export,
    kernel,
    ledger_of,
    nvtx,
    trace_of,
    write,
)
from tests.readers.nvprof import writing as nvprof
from traceana.errors import CorruptError, TraceanaError
from traceana.readers import read
from traceana.readers.kernel_names import UNNAMED
from traceana.readers.sqlite import Database
from traceana.trace import Trace

PAGE = 1024
NVTX = "NVTX_EVENTS"


def run(path: Path, count: int = 300) -> Path:
    """Write an export whose tables have several levels of pages."""
    tables = {
        KERNEL: [kernel(10 * i, 10 * i + 5, correlationId=i) for i in range(1, count + 1)],
        RUNTIME: [call(10 * i - 5, 10 * i - 3, correlationId=i) for i in range(1, count + 1)],
        NVTX: [nvtx(10 * i - 6, 10 * i + 1) for i in range(1, count + 1)],
    }
    export(path, tables)
    return changed(path, f"PRAGMA page_size = {PAGE}", "VACUUM")


def changed(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path


def pages_of(path: Path, table: str) -> list[int]:
    """Return the numbers of the pages of ``table``, from 0."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT pageno FROM dbstat WHERE name = ?", [table]).fetchall()
    return [number - 1 for (number,) in found]


def overwritten(path: Path, at: int, content: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    return path


def first_row_number(path: Path, leaf: int, varint: bytes) -> None:
    """Change the row number of the first row in the page ``leaf``."""
    content = path.read_bytes()[leaf * PAGE :][:PAGE]
    assert content[0] == 13  # a leaf of a table
    cell = int.from_bytes(content[8:10], "big")
    # A cell begins with its length, a varint.
    at = cell + 1 + (content[cell] >= 0x80)
    overwritten(path, leaf * PAGE + at, varint)


def one_cell_less(path: Path, leaf: int) -> None:
    at = leaf * PAGE + 3
    count = int.from_bytes(path.read_bytes()[at : at + 2], "big")
    overwritten(path, at, (count - 1).to_bytes(2, "big"))


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        try:
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchone() == (b"ok",))
        except sqlite3.Error:
            return False


def rows(trace: Trace) -> list[int]:
    return [trace.tables[name].height for name in ("activities", "calls", "ranges")]


def damaged(trace: Trace) -> list[str]:
    return trace.tables.ledger.filter(reason="damaged")["detail"].to_list()


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, NVTX])
def test_a_row_number_out_of_order_hides_no_other_row(tmp_path: Path, table: str) -> None:
    path = run(tmp_path / "a.sqlite")
    first_row_number(path, pages_of(path, table)[-2], b"\xff\x7f")
    trace = trace_of(path)
    assert rows(trace) == [300, 300, 300]
    (detail,) = damaged(trace)
    assert "out of order" in detail


@pytest.mark.parametrize("table", [KERNEL, RUNTIME, NVTX])
def test_rows_of_a_lost_page_are_in_the_ledger(tmp_path: Path, table: str) -> None:
    path = run(tmp_path / "a.sqlite")
    leaf = pages_of(path, table)[5]
    one_cell_less(path, leaf)
    trace = trace_of(path)
    assert sum(rows(trace)) < 900
    assert len(damaged(trace)) == 1
    assert trace.tables.ledger.filter(severity="problem").height


def test_a_smallest_row_number_behind_the_largest_is_read(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    (leaf, *_) = [page for page in pages_of(path, KERNEL) if path.read_bytes()[page * PAGE] == 13]
    first_row_number(path, leaf, b"\x7f")
    trace = trace_of(path)
    assert trace.tables.activities.height == 20
    assert len(damaged(trace)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 8, 200])
def test_every_damage_that_sqlite_finds_is_refused_or_in_the_ledger(
    tmp_path: Path, size: int
) -> None:
    whole = run(tmp_path / "whole.sqlite")
    total = whole.stat().st_size
    rng = random.Random(size)
    noticed = 0
    for _ in range(60):
        path = Path(shutil.copy(whole, tmp_path / "a.sqlite"))
        overwritten(path, rng.randrange(100, total - size), rng.randbytes(size))
        if sound(path):
            continue
        try:
            trace = read(path)
        except TraceanaError as error:
            assert str(path) in str(error)
            noticed += 1
            continue
        if rows(trace) != [300, 300, 300]:
            assert trace.tables.ledger.filter(severity="problem").height
        noticed += damaged(trace) != []
    assert noticed > 10


def test_damage_in_an_nvprof_database(tmp_path: Path) -> None:
    path = tmp_path / "a.nvvp"
    work = [nvprof.kernel(10 * i, 10 * i + 5, correlationId=i) for i in range(1, 301)]
    nvprof.database(path, {nvprof.KERNEL: work})
    changed(path, f"PRAGMA page_size = {PAGE}", "VACUUM")
    leaf = pages_of(path, nvprof.KERNEL)[5]
    one_cell_less(path, leaf)
    trace = read(path)
    assert trace.tables.activities.height < 300
    assert len(damaged(trace)) == 1


def test_pages_that_form_a_cycle_end(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite")
    content = path.read_bytes()
    root = next(page for page in pages_of(path, KERNEL) if content[page * PAGE] == 5)
    header = content[root * PAGE :][:PAGE]
    cells = int.from_bytes(header[3:5], "big")
    for number in range(cells):
        at = int.from_bytes(header[12 + 2 * number : 14 + 2 * number], "big")
        overwritten(path, root * PAGE + at, (root + 1).to_bytes(4, "big"))
    with pytest.raises(CorruptError, match="damaged"):
        read(path)


@pytest.mark.parametrize(
    "columns",
    [
        ["rowid"],
        ["ROWID INTEGER DEFAULT 5"],
        ["rowid BLOB DEFAULT X'00'"],
        ["rowid INTEGER AS (1/0)"],
        ["rowid", "_rowid_ DEFAULT 1", "oid"],
    ],
)
def test_a_column_named_as_the_row_number_hides_no_kernel(
    tmp_path: Path, columns: list[str]
) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    want = trace_of(path)
    changed(path, *(f"ALTER TABLE {KERNEL} ADD COLUMN {column}" for column in columns))
    trace = trace_of(path)
    assert trace.tables.activities.equals(want.tables.activities)
    assert trace.tables.ledger.equals(want.tables.ledger)


def test_a_table_without_row_numbers(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    want = trace_of(path).tables.activities
    with closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({KERNEL})")]
    listed = ", ".join(columns)
    changed(
        path,
        f"CREATE TABLE made ({listed}, PRIMARY KEY (correlationId)) WITHOUT ROWID",
        f"INSERT INTO made SELECT {listed} FROM {KERNEL}",
        f"DROP TABLE {KERNEL}",
        f"ALTER TABLE made RENAME TO {KERNEL}",
    )
    assert trace_of(path).tables.activities.equals(want)


@pytest.mark.parametrize(
    "columns", ["id INTEGER, v TEXT, value TEXT AS (v)", "v INTEGER, value TEXT, id AS (v)"]
)
def test_strings_of_a_generated_column_are_missing(tmp_path: Path, columns: str) -> None:
    path = write(tmp_path / "a.sqlite", {"META_DATA_EXPORT": EXPORT, KERNEL: [kernel(1, 2)]})
    changed(path, f"CREATE TABLE StringIds ({columns})")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for row in STRINGS:
            connection.execute("INSERT INTO StringIds VALUES (?, ?)", list(row.values()))
    trace = trace_of(path)
    assert trace.tables.names["name"].to_list() == [UNNAMED]
    assert ledger_of(trace)["missing_table", "StringIds"] == 1


def test_a_generated_column_beside_the_others_does_not_matter(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    want = trace_of(path)
    changed(path, "ALTER TABLE StringIds ADD COLUMN g AS (abs(-9223372036854775807 - 1))")
    assert trace_of(path).tables.names.equals(want.tables.names)


@pytest.mark.parametrize(
    "change",
    [
        "sql = CAST(X'435245415445ff' AS TEXT)",
        "sql = replace(sql, ',', ', \"' || CAST(X'ff' AS TEXT) || '\" ,')",
        "name = CAST(X'ff41' AS TEXT)",
        "rootpage = 999999",
        "rootpage = 1",
    ],
)
def test_a_schema_that_is_not_utf8_or_wrong(tmp_path: Path, change: str) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    where = f"WHERE name = '{KERNEL}'"
    changed(path, "PRAGMA writable_schema = ON", f"UPDATE sqlite_master SET {change} {where}")
    try:
        trace = read(path)
    except TraceanaError as error:
        assert str(path) in str(error)
        assert "codec" not in str(error)
        return
    assert trace.tables.ledger.filter(severity="problem").height


def test_a_column_whose_name_is_not_utf8_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, bX TEXT)")
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = "
            "CAST(replace(CAST(sql AS BLOB), X'6258', X'62ff') AS TEXT)"
        )
    with Database(path) as database:
        assert database.tables == {"t": ("a",)}
        assert database.records("t") == [{"a": 1}]


def test_texts_that_are_not_utf8_are_shown_with_replacements(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    changed(
        path,
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 3, CAST(X'6c6f7374ff' AS TEXT))",
        "UPDATE StringIds SET value = CAST(X'63ff' AS TEXT) WHERE id = 1",
    )
    trace = trace_of(path)
    assert trace.tables.names["name"].to_list() == ["c\ufffd"]
    assert trace.meta.properties["warnings"] == ("lost\ufffd",)


def test_constraints_of_the_file_are_not_evaluated(tmp_path: Path) -> None:
    path = run(tmp_path / "a.sqlite", count=20)
    changed(
        path,
        "CREATE TABLE x (a CHECK (length(zeroblob(900000000)) > 0))",
        "PRAGMA ignore_check_constraints = ON",
        "INSERT INTO x VALUES (1)",
    )
    assert damaged(trace_of(path)) == []


def test_a_database_with_the_largest_pages(tmp_path: Path) -> None:
    path = changed(run(tmp_path / "a.sqlite", count=20), "PRAGMA page_size = 65536", "VACUUM")
    size = path.stat().st_size
    assert rows(trace_of(path)) == [20, 20, 20]
    with path.open("r+b") as file:
        file.truncate(size - 65536)
    with pytest.raises(CorruptError, match=f"truncated \\({size - 65536:,} of {size:,}"):
        read(path)


def test_a_table_whose_name_has_another_case_in_one_place_is_damaged(tmp_path: Path) -> None:
    """One bit of the schema: SQLite's own check finds nothing, for names have no case there."""
    path = run(tmp_path / "a.sqlite")
    assert trace_of(path).tables.calls.height == 300
    content = path.read_bytes()
    twice = 2 * RUNTIME.encode()
    assert content.count(twice) == 1
    path.write_bytes(content.replace(twice, (RUNTIME.lower() + RUNTIME).encode()))
    assert trace_of(path).tables.calls.is_empty()
    assert ledger_of(trace_of(path))["damaged", "tables with two names"] == 1
