"""Databases of other programs, damaged, incomplete or without expected tables."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.readers.nsys.writing import (
    EXPORT,
    KERNEL,
    MEMCPY,
    RUNTIME,
    STRINGS,
    Tables,
    call,
    copy,
    export,
    gid,
    kernel,
    ledger_of,
    nvtx,
    trace_of,
    write,
)
from traceana.errors import CorruptError, NotFoundError, TraceanaError, UnknownFormatError
from traceana.readers import read
from traceana.readers.kernel_names import UNNAMED
from traceana.readers.source import silent


def refused(path: Path, error: type[TraceanaError]) -> str:
    with pytest.raises(error) as caught:
        read(path, silent)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def large(path: Path, kernels: int = 4000) -> Path:
    rows = [kernel(i, i + 1, correlationId=i) for i in range(1, kernels + 1)]
    return export(path, {KERNEL: rows, RUNTIME: [call(1, 2)]})


def test_a_database_of_another_program(tmp_path: Path) -> None:
    path = write(tmp_path / "places.sqlite", {"moz_places": [{"id": 1, "url": "x", "start": 3}]})
    assert "not one of nsys, nvprof or rocprof" in refused(path, UnknownFormatError)


def test_a_database_without_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    refused(path, UnknownFormatError)


def test_tables_of_unknown_modules_do_not_matter(tmp_path: Path) -> None:
    path = large(tmp_path / "a.sqlite", kernels=3)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "INSERT INTO sqlite_master VALUES "
            "('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING nosuchmodule(x)')"
        )
        connection.commit()
    assert trace_of(path).tables.activities.height == 3


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = large(tmp_path / "a.sqlite")
    size = path.stat().st_size
    for cut in (size - 1, size // 2, 4096, 60, 16):
        os.truncate(path, cut)
        assert f"truncated ({cut:,} of" in refused(path, CorruptError)


def test_damage_in_the_middle(tmp_path: Path) -> None:
    whole = large(tmp_path / "whole.sqlite")
    size = whole.stat().st_size
    # Every page is of a table that is read: damage is noticed wherever it is.
    for place in range(4096, size - 4096, 8192):
        path = tmp_path / "a.sqlite"
        shutil.copy(whole, path)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\xa5" * 4096)
        assert "damaged" in refused(path, CorruptError)


def test_a_damaged_schema(tmp_path: Path) -> None:
    path = large(tmp_path / "a.sqlite", kernels=3)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(1) * 2000)
    refused(path, CorruptError)


def test_the_magic_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 20)
    refused(path, CorruptError)


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_file_that_is_being_written(tmp_path: Path, suffix: str) -> None:
    path = large(tmp_path / "a.sqlite", kernels=3)
    beside = path.with_name(path.name + suffix)
    beside.write_bytes(b"")
    assert trace_of(path).tables.activities.height == 3
    beside.write_bytes(b"unfinished")
    assert "written" in refused(path, NotFoundError)


def test_a_link_to_a_file_that_is_being_written(tmp_path: Path) -> None:
    path = large(tmp_path / "a.sqlite", kernels=3)
    link = tmp_path / "elsewhere" / "b.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    assert trace_of(link).tables.activities.height == 3
    path.with_name(f"{path.name}-wal").write_bytes(b"unfinished")
    assert "a.sqlite-wal" in refused(link, NotFoundError)


def test_a_lock_of_another_program_does_not_hinder(tmp_path: Path) -> None:
    path = large(tmp_path / "a.sqlite", kernels=3)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert trace_of(path).tables.activities.height == 3


def test_no_texts(tmp_path: Path) -> None:
    tables = {"META_DATA_EXPORT": EXPORT, KERNEL: [kernel(1, 2)], RUNTIME: [call(1, 2)]}
    trace = trace_of(write(tmp_path / "a.sqlite", tables))
    assert trace.tables.names["name"].to_list() == [UNNAMED]
    assert ledger_of(trace)["missing_table", "StringIds"] == 1
    assert ledger_of(trace)["unnamed", KERNEL] == 1


def test_calls_without_the_work_that_they_launched(tmp_path: Path) -> None:
    rows = [call(1, 2), call(3, 4, nameId=4, correlationId=9)]
    trace = trace_of(export(tmp_path / "a.sqlite", {RUNTIME: rows}))
    assert trace.tables.activities.is_empty()
    assert ledger_of(trace) == {("missing_table", KERNEL): 1, ("missing_table", MEMCPY): 1}


def test_work_without_the_calls_that_launched_it(tmp_path: Path) -> None:
    trace = trace_of(export(tmp_path / "a.sqlite", {MEMCPY: [copy(1, 2, 1)]}))
    assert trace.tables.activities.height == 1
    assert ledger_of(trace) == {("missing_table", RUNTIME): 1}


def test_no_work_of_a_gpu_at_all(tmp_path: Path) -> None:
    trace = trace_of(export(tmp_path / "a.sqlite", {"NVTX_EVENTS": [nvtx(1, 2)]}))
    assert trace.tables.activities.is_empty()
    assert trace.tables.names.is_empty()
    assert trace.tables.devices.is_empty()
    assert trace.tables.ranges.height == 1
    assert trace.tables.ledger.is_empty()


def test_no_event_of_any_kind(tmp_path: Path) -> None:
    trace = trace_of(
        write(tmp_path / "a.sqlite", {"META_DATA_EXPORT": EXPORT, "StringIds": STRINGS})
    )
    assert trace.meta.events == 0


def test_events_that_no_table_is_for_are_counted_by_table(tmp_path: Path) -> None:
    tables: Tables = {
        "SCHED_EVENTS": [{"start": 1, "cpu": 0}, {"start": 2, "cpu": 0}],
        "GPU_METRICS": [{"timestamp": 1, "value": 3}],
        "DIAGNOSTIC_EVENT": [{"timestamp": 1, "severity": 1, "text": "fine"}],
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": [{"deviceId": 0, "globalPid": gid(7)}],
        "OSRT_CALLCHAINS": [{"id": 1, "symbol": 2}],
    }
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert ledger_of(trace) == {
        ("unknown_category", "SCHED_EVENTS"): 2,
        ("counter", "GPU_METRICS"): 1,
        ("instant", "DIAGNOSTIC_EVENT"): 1,
        ("event_record", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"): 1,
    }
    assert trace.meta.events == 5
