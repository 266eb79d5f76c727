"""Without isal and ADBC, which some platforms lack, the tables are the same."""

from __future__ import annotations

import gzip
import importlib
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.synthetic import Scenario, write_nsys
from traceana import files
from traceana.errors import CorruptError
from traceana.readers import read, source, sqlite
from traceana.readers.source import silent
from traceana.readers.table_source import Integer, Query
from traceana.trace import Trace
from traceana.trace.schema import TABLES

ALEXNET = Path(__file__).parents[2] / "fixtures" / "alexnet-cpu-ranges.json.gz"


@pytest.fixture
def without_adbc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite", None)


@pytest.fixture
def zlib_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, "isal.isal_zlib", None)
        yield importlib.reload(files)
    importlib.reload(files)


def tables(trace: Trace) -> list[str]:
    return [trace.tables[name].write_json() for name in TABLES]


def small_run() -> Scenario:
    run = Scenario()
    run.launch(at=0, begins=1_000, duration=5_000)
    run.copy("HtoD", 4096, at=7_000, begins=8_000, duration=500)
    run.range("step", 0, 9_000)
    return run


def test_a_database_is_the_same_without_adbc(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = write_nsys(small_run(), tmp_path / "run.sqlite")
    with_adbc = tables(read(path))
    request.getfixturevalue("without_adbc")
    assert tables(read(path)) == with_adbc


@pytest.mark.usefixtures("without_adbc")
def test_cells_of_several_types_are_cast_without_adbc(tmp_path: Path) -> None:
    path = tmp_path / "mixed.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.executemany("INSERT INTO t VALUES (?)", [(1,), (2.5,), ("3",), (None,)])
        connection.commit()
    with sqlite.Database(path) as database:
        query = Query("t", {"a": Integer("a")}, lambda page: page)
        (frame,) = database.read([query], silent)
    assert frame["a"].to_list() == [1, 2, 3, None]


@pytest.mark.usefixtures("without_adbc")
def test_a_damaged_database_is_refused_without_adbc(tmp_path: Path) -> None:
    path = write_nsys(small_run(), tmp_path / "run.sqlite")
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 8192)
    with pytest.raises(CorruptError):
        read(path)


@pytest.mark.parametrize("cut", [0, 1000])
def test_gzip_is_the_same_without_isal(
    tmp_path: Path, request: pytest.FixtureRequest, cut: int
) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(ALEXNET.read_bytes()[: -cut or None])
    with_isal = tables(read(path))
    own = request.getfixturevalue("zlib_alone")
    assert own.decompressobj.__module__ != "isal.isal_zlib"
    assert tables(read(path)) == with_isal
    assert own.crc32(b"traceana") == 0xAFD3E1A2


def test_members_and_noise_without_isal(tmp_path: Path, zlib_alone: ModuleType) -> None:
    path = tmp_path / "members.gz"
    text = b"x" * (3 * source.BLOCK + 1)
    path.write_bytes(gzip.compress(text) + gzip.compress(b"y") + b"\0" * 8)
    opened = source.ByteSource(path)
    assert b"".join(opened.blocks()) == text + b"y"
    path.write_bytes(gzip.compress(text)[:-200] + b"noise" * 40)
    opened = source.ByteSource(path)
    list(opened.blocks())
    assert opened.truncated
