"""Edits of SQLite databases, and damage to single pages."""

from __future__ import annotations

import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from tests.fuzz import values

Connection = sqlite3.Connection
Edit = Callable[[random.Random, Connection, str], str]


def edited(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the database with one edit, or one of its pages damaged."""
    return _paged(rng, content) if rng.random() < 0.25 else _with(rng.choice(_EDITS), rng, content)


def valued(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """Return the database with other numbers in some cells, or fewer or more rows."""
    return _with(rng.choice(_OF_VALUES), rng, content)


def _with(edit: Edit, rng: random.Random, content: bytes) -> tuple[bytes, str]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        try:
            connection.deserialize(content)
            connection.execute("PRAGMA trusted_schema = ON")
            names = [
                name
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"
                )
                if isinstance(name, str) and not name.startswith("sqlite_")
            ]
            if not names:
                return content, "no tables"
            what = edit(rng, connection, rng.choice(names))
            return connection.serialize(), what
        except (sqlite3.Error, UnicodeError, OverflowError, MemoryError) as error:
            return content, f"unchanged: {edit.__name__}: {error!s:.40}"


def _paged(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    size = struct.unpack(">H", content[16:18])[0] if len(content) > 100 else 0
    size = 65536 if size == 1 else size
    if size < 512 or len(content) < 2 * size:
        return content, "no pages"
    page = rng.randrange(len(content) // size)
    begin, end = page * size, (page + 1) * size
    body = content[begin:end]
    pick = rng.randrange(6)
    if pick == 0:
        return content[:begin] + bytes(size) + content[end:], f"page {page} zeroed"
    if pick == 1:
        other = rng.randrange(len(content) // size) * size
        return content[:begin] + content[other : other + size] + content[end:], f"page {page} lost"
    if pick == 2:
        hit = bytearray(body)
        at = rng.randrange(0, 100 if page == 0 else 24)
        hit[at] = rng.randrange(256)
        return content[:begin] + bytes(hit) + content[end:], f"byte {at} of page {page} changed"
    if pick == 3:
        hit = bytearray(body)
        at = rng.randrange(size - 8)
        hit[at : at + 8] = rng.randbytes(8)
        return content[:begin] + bytes(hit) + content[end:], f"8 bytes at {at} of page {page}"
    if pick == 4:
        return content[: page * size], f"cut to {page} pages"
    half = size // 2
    return content[:begin] + body[:half] + bytes(half) + content[end:], f"page {page} half zeroed"


def _columns(connection: Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_xinfo("{table}")')]


def _rows(rng: random.Random) -> str:
    """Return the condition that selects one row, some or all."""
    return rng.choice(
        (
            f"rowid = {rng.randrange(1, 40)}",
            f"rowid % {rng.randrange(2, 5)} = 0",
            f"rowid < {rng.randrange(2, 30)}",
            "1",
        )
    )


def _cell(rng: random.Random) -> tuple[str, list[Any]]:
    pick = rng.random()
    if pick < 0.4:
        return "?", [rng.choice(values.IN_INT64)]
    if pick < 0.5:
        return "?", [rng.choice(values.FLOATS)]
    if pick < 0.6:
        return "NULL", []
    if pick < 0.75:
        return "?", [values.text(rng)]
    if pick < 0.85:
        return "CAST(? AS TEXT)", [rng.choice((b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"a\0b"))]
    if pick < 0.95:
        return "?", [rng.choice((b"", b"\x00" * 12, rng.randbytes(16), b"1"))]
    return rng.choice(("9e999", "-9e999", "1e-310", "'12x'", "' 5'")), []


def _set_cells(rng: random.Random, connection: Connection, table: str) -> str:
    column = rng.choice(_columns(connection, table))
    value, given = _cell(rng)
    where = _rows(rng)
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = {value} WHERE {where}', given)
    return f"{table}.{column} = {value} {given!r:.40} where {where}"


def _add_to_cells(rng: random.Random, connection: Connection, table: str) -> str:
    column = rng.choice(_columns(connection, table))
    change = rng.choice(("+ 1", "- 1", "* -1", "+ 4611686018427387904", "* 1000000", "/ 2", "% 3"))
    where = _rows(rng)
    connection.execute(
        f'UPDATE OR IGNORE "{table}" SET "{column}" = "{column}" {change} WHERE {where}'
    )
    return f"{table}.{column} {change} where {where}"


def _copy_column(rng: random.Random, connection: Connection, table: str) -> str:
    columns = _columns(connection, table)
    one, other = rng.choice(columns), rng.choice(columns)
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{one}" = "{other}"')
    return f"{table}.{one} = {other}"


def _rename_column(rng: random.Random, connection: Connection, table: str) -> str:
    columns = _columns(connection, table)
    column = rng.choice(columns)
    name = rng.choice(("rowid", "oid", "start", "end", "id", "value", "x", values.TEXTS[2] + "x"))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{name}"')
    return f"{table}.{column} renamed {name!r}"


def _add_column(rng: random.Random, connection: Connection, table: str) -> str:
    column = rng.choice(("rowid", "_rowid_", "oid", "x", "gridX", "text", "START"))
    kind = rng.choice(("", "INTEGER", "TEXT", "INTEGER DEFAULT 5", "BLOB DEFAULT X'00'"))
    if rng.random() < 0.4:
        kind += rng.choice((" AS (1)", " GENERATED ALWAYS AS (length('ab'))", " AS (1/0)"))
    connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" {kind}')
    return f"{table} has a column {column} {kind}"


def _drop_column(rng: random.Random, connection: Connection, table: str) -> str:
    column = rng.choice(_columns(connection, table))
    connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    return f"{table}.{column} dropped"


def _drop_table(rng: random.Random, connection: Connection, table: str) -> str:
    connection.execute(f'DROP TABLE "{table}"')
    return f"{table} dropped"


def _rename_table(rng: random.Random, connection: Connection, table: str) -> str:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    other = rng.choice([*names, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "OSRT_API", "x\x00y"])
    if other in names:
        connection.execute(f'DROP TABLE IF EXISTS "{other}"' if other != table else "SELECT 1")
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "{other}"')
    return f"{table} renamed {other!r}"


def _as_view(rng: random.Random, connection: Connection, table: str) -> str:
    connection.execute(f'ALTER TABLE "{table}" RENAME TO hidden')
    body = rng.choice(
        (
            "SELECT * FROM hidden",
            "SELECT * FROM missing",
            f'SELECT * FROM "{table}"',
            "SELECT * FROM hidden a, hidden b, hidden c",
            "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
            "SELECT * FROM n",
        )
    )
    connection.execute(f'CREATE VIEW "{table}" AS {body}')
    return f"{table} is a view: {body}"


def _without_rowid(rng: random.Random, connection: Connection, table: str) -> str:
    columns = _columns(connection, table)
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(
        f"CREATE TABLE made (k INTEGER PRIMARY KEY, {listed}) "
        f"{'WITHOUT ROWID' if rng.random() < 0.7 else 'STRICT'}"
        if rng.random() < 0.7
        else f'CREATE TABLE made ({listed}, PRIMARY KEY ("{columns[0]}")) WITHOUT ROWID'
    )
    has_key = len(_columns(connection, "made")) > len(columns)
    connection.execute(
        f'INSERT OR IGNORE INTO made SELECT {"rowid, " if has_key else ""}{listed} FROM "{table}"'
    )
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'ALTER TABLE made RENAME TO "{table}"')
    return f"{table} made anew without rowid"


def _delete_rows(rng: random.Random, connection: Connection, table: str) -> str:
    where = _rows(rng)
    connection.execute(f'DELETE FROM "{table}" WHERE {where}')
    return f"rows of {table} deleted where {where}"


def _repeat_rows(rng: random.Random, connection: Connection, table: str) -> str:
    columns = [one for one in _columns(connection, table) if one != "_id_"]
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'INSERT OR IGNORE INTO "{table}" ({listed}) SELECT {listed} FROM "{table}"')
    return f"rows of {table} repeated"


def _far_rowids(rng: random.Random, connection: Connection, table: str) -> str:
    change = rng.choice(("rowid + 9000000000000000000", "-rowid", "rowid * 1000000000"))
    connection.execute(f'UPDATE OR IGNORE "{table}" SET rowid = {change}')
    return f"{table}: rowid = {change}"


def _schema_text(rng: random.Random, connection: Connection, table: str) -> str:
    connection.execute("PRAGMA writable_schema = ON")
    change = rng.choice(
        (
            "sql = CAST(X'435245415445ff' AS TEXT)",
            "sql = replace(sql, 'INTEGER', 'TEXT')",
            "sql = replace(sql, ',', ', \"' || CAST(X'ff' AS TEXT) || '\" ,')",
            "name = CAST(X'ff41' AS TEXT)",
            "rootpage = 1",
            "rootpage = rootpage + 1",
            "rootpage = 999999",
            "type = 'index'",
        )
    )
    connection.execute(f"UPDATE sqlite_master SET {change} WHERE name = ?", [table])
    return f"{table}: {change}"


_OF_VALUES: Final[tuple[Edit, ...]] = (
    *(_add_to_cells,) * 4, _copy_column, *(_delete_rows,) * 2, _repeat_rows,
)  # fmt: skip
_EDITS: Final[tuple[Edit, ...]] = (
    *(_set_cells,) * 10,
    *(_add_to_cells,) * 4,
    _copy_column,
    *(_rename_column,) * 2,
    *(_add_column,) * 2,
    *(_drop_column,) * 2,
    _drop_table,
    _rename_table,
    _as_view,
    _without_rowid,
    *(_delete_rows,) * 2,
    _repeat_rows,
    _far_rowids,
    *(_schema_text,) * 2,
)
