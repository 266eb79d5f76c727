"""nvprof databases without kernels or strings, damaged, or with invalid values."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.readers.nvprof.writing import (
    KERNEL,
    MARKER,
    MEMCPY,
    NOW,
    RUNTIME,
    START,
    call,
    copy,
    database,
    kernel,
    ledger_of,
    marker,
    trace_of,
)
from traceana.errors import CorruptError, UnknownFormatError
from traceana.readers import read
from traceana.readers.kernel_names import UNNAMED
from traceana.readers.source import silent


def test_no_kernels(tmp_path: Path) -> None:
    trace = trace_of(database(tmp_path / "a.nvvp", {RUNTIME: [call(1, 2)]}))
    assert trace.tables.activities.is_empty()
    assert ledger_of(trace) == {("missing_table", "CUPTI_ACTIVITY_KIND_KERNEL"): 1}


def test_nothing_but_texts(tmp_path: Path) -> None:
    path = database(tmp_path / "a.nvvp", {KERNEL: [kernel(1, 2)]})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DELETE FROM {KERNEL}")
        connection.commit()
    trace = trace_of(path)
    assert trace.meta.events == 0
    assert trace.meta.epoch_ns is None
    assert trace.tables.ledger.is_empty()


def test_tables_of_the_same_names_without_row_numbers_are_not_nvprofs(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE StringTable (_id_ INTEGER, value TEXT)")
        connection.commit()
    with pytest.raises(UnknownFormatError, match="not one of nsys, nvprof or rocprof"):
        read(path, silent)


def test_no_texts(tmp_path: Path) -> None:
    path = database(tmp_path / "a.nvvp", {KERNEL: [kernel(1, 2)], MARKER: [marker(1, START)]})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE StringTable")
        connection.execute("DROP TABLE Version")
        connection.commit()
    trace = trace_of(path)
    assert trace.tables.names["name"].to_list() == [UNNAMED]
    assert ledger_of(trace)["missing_table", "StringTable"] == 1
    assert ledger_of(trace)["unnamed", KERNEL] == 1
    assert trace.meta.format_version is None


def test_impossible_values(tmp_path: Path) -> None:
    rows = [
        kernel(10, 20),
        kernel(10, 5),
        kernel(-NOW, 5),
        kernel(1, 2, deviceId=1 << 40, gridX=1 << 40, name=None),
        {**kernel(2, 3, streamId=b"\xff"), "start": "soon"},
        kernel(10, 20),
    ]
    trace = trace_of(database(tmp_path / "a.nvvp", {KERNEL: rows, RUNTIME: [call(1, 2)]}))
    assert trace.tables.activities.height == 2
    assert trace.tables.activities["grid_x"].to_list() == [2, None]
    reasons = {reason: count for (reason, _), count in ledger_of(trace).items()}
    assert reasons == {
        "negative_duration": 1,
        "zero_timestamp": 2,
        "duplicate": 1,
        "unnamed": 1,
        "no_device": 1,
    }


def test_damage_in_the_middle(tmp_path: Path) -> None:
    rows = [kernel(i, i + 1, correlationId=i) for i in range(1, 3001)]
    whole = database(tmp_path / "whole.nvvp", {KERNEL: rows, MEMCPY: [copy(1, 2, 1)]})
    size = whole.stat().st_size
    path = tmp_path / "a.nvvp"
    for place in range(8192, size - 8192, 32768):
        shutil.copy(whole, path)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\xa5" * 4096)
        with pytest.raises(CorruptError, match="damaged"):
            read(path, silent)
    os.truncate(path, size // 2)
    with pytest.raises(CorruptError, match=f"truncated .{size // 2:,} of"):
        read(path, silent)


def test_a_table_whose_name_is_no_text_is_in_the_ledger(tmp_path: Path) -> None:
    path = database(tmp_path / "a.nvvp", {KERNEL: [kernel(0, 1)], RUNTIME: [call(1, 2)]})
    content = path.read_bytes()
    # One bit of the schema's record: the name of 27 bytes becomes a blob.
    assert content.count(b"\x17CC\x01") == 1
    path.write_bytes(content.replace(b"\x17CC\x01", b"\x17BC\x01"))
    trace = read(path, silent)
    assert trace.tables.calls.is_empty()
    problems = trace.tables.ledger.filter(trace.tables.ledger["severity"] == "problem")
    assert "damaged" in problems["reason"].to_list()
