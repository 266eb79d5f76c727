"""The real exports, against SQL written apart from the reader."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

import polars as pl
import pytest

from tests.readers.nsys.writing import trace_of
from tests.support.manifest import TRACES, Expected, each
from traceana.readers import read
from traceana.readers.source import silent

COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}


def query(want: Expected, sql: str) -> list[tuple[object, ...]]:
    uri = f"file:{quote(str(want.path))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)
            return []


@each("nsys-sqlite")
def test_copies_by_direction_count_bytes_and_time(want: Expected) -> None:
    sql = (
        "SELECT copyKind, count(*), sum(bytes), sum(end - start) "
        "FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY copyKind"
    )
    copies = trace_of(want.path).tables.activities.filter(pl.col("kind") == "memcpy")
    found = copies.group_by(pl.col("copy_kind").cast(pl.String)).agg(
        pl.len(), pl.col("bytes").sum(), pl.col("duration").sum()
    )
    assert sorted(found.rows()) == sorted(
        (COPIES[int(str(kind))], *rest) for kind, *rest in query(want, sql)
    )


@each("nsys-sqlite")
def test_time_by_kernel_name_process_and_device(want: Expected) -> None:
    sql = (
        "SELECT s.value, (k.globalPid >> 24) & 0xFFFFFF, k.deviceId, count(*), "
        "sum(k.end - k.start) "
        "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName "
        "GROUP BY 1, 2, 3"
    )
    trace = trace_of(want.path)
    named = trace.tables.activities.with_columns(
        name=trace.tables.names["name"].gather(trace.tables.activities["name_id"])
    )
    found = (
        named.filter(pl.col("kind") == "kernel")
        .group_by("name", "process", "device")
        .agg(pl.len(), pl.col("duration").sum())
    )
    assert sorted(found.rows()) == sorted(query(want, sql))


@each("nsys-sqlite")
def test_every_kernel_finds_its_call_once(want: Expected) -> None:
    trace = trace_of(want.path)
    keys = ["process", "correlation"]
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
    calls = trace.tables.calls.filter(pl.col("correlation").is_not_null())
    assert not calls.select(keys).is_duplicated().any()
    matched = kernels.join(calls, on=keys, how="inner", suffix="_call")
    sql = (
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k WHERE EXISTS ("
        "SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = k.correlationId "
        "AND (r.globalTid >> 24) = (k.globalPid >> 24))"
    )
    assert matched.height == query(want, sql)[0][0]
    assert (matched["start_call"] <= matched["start"]).all()


@each("nsys-sqlite")
def test_ranges_and_calls_keep_their_time(want: Expected) -> None:
    trace = trace_of(want.path)
    nvtx = trace.tables.ranges.filter(pl.col("kind") == "nvtx")
    rows = query(want, "SELECT count(*), sum(end - start) FROM NVTX_EVENTS WHERE eventType = 59")
    assert (nvtx.height, nvtx["duration"].sum() if nvtx.height else 0) == (
        rows[0] if rows else (0, 0)
    )
    sql = (
        "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass != 67"
    )
    assert [(trace.tables.calls.height, trace.tables.calls["duration"].sum())] == query(want, sql)


@each("nsys-sqlite")
def test_the_epoch_is_that_of_the_session(want: Expected) -> None:
    trace = read(want.path, silent)
    start = query(want, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")[0][0]
    first = query(want, "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL")[0][0]
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
    assert trace.meta.epoch_ns is not None
    earliest = kernels["start"].min()
    assert isinstance(earliest, int)
    assert trace.meta.epoch_ns + earliest == int(str(start)) + int(str(first))


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces")
def test_synchronizations_are_on_the_device_of_their_process() -> None:
    path = TRACES / "nsys" / "transformer_2xh100_before.schema3.25.sqlite"
    work = trace_of(path).tables.activities
    devices = work.group_by("process").agg(pl.col("device").unique())
    assert all(len(found) == 1 for found in devices["device"])
    assert work.filter(pl.col("kind") == "sync")["device"].n_unique() == 2
