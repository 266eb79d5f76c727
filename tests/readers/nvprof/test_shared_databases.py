"""The real databases, against SQL written apart from the reader."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from urllib.parse import quote

import polars as pl

from tests.readers.nvprof.writing import trace_of
from tests.support.manifest import Expected, each


def query(want: Expected, sql: str) -> list[tuple[int, ...]]:
    uri = f"file:{quote(str(want.path))}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(sql).fetchall()


@each("nvprof-sqlite")
def test_every_kernel_and_copy_finds_its_call(want: Expected) -> None:
    trace = trace_of(want.path)
    keys = ["process", "correlation"]
    work = trace.tables.activities.filter(pl.col("kind") != "sync")
    matched = work.join(
        trace.tables.calls, on=keys, how="inner", suffix="_call", maintain_order="left"
    )
    assert matched.height == work.height
    assert (matched["start_call"] <= matched["start"]).all()
    launches = matched.filter(pl.col("kind") == "kernel")["name"].cast(pl.String)
    assert launches.str.contains("^cudaLaunch").all()
    copies = matched.filter(pl.col("kind") == "memcpy")["name"].cast(pl.String)
    assert copies.str.contains("^cudaMemcpy").all()
    sets = matched.filter(pl.col("kind") == "memset")["name"].cast(pl.String)
    assert sets.str.contains("^cudaMemset").all()


@each("nvprof-sqlite")
def test_ranges_keep_their_time_and_their_thread(want: Expected) -> None:
    trace = trace_of(want.path)
    nvtx = trace.tables.ranges.filter(pl.col("kind") == "nvtx")
    sql = (
        "SELECT count(*), coalesce(sum(e.timestamp - s.timestamp), 0) "
        "FROM CUPTI_ACTIVITY_KIND_MARKER s JOIN CUPTI_ACTIVITY_KIND_MARKER e ON s.id = e.id "
        "WHERE s.flags = 2 AND e.flags = 4"
    )
    assert [(nvtx.height, nvtx["duration"].sum())] == query(want, sql)
    # Every thread that calls CUDA in the one with ranges is annotated; one more only computes.
    if nvtx.height:
        assert set(trace.tables.calls["thread"].unique()) <= set(nvtx["thread"].unique())


@each("nvprof-sqlite")
def test_names_are_readable_and_synchronizations_have_a_device(want: Expected) -> None:
    trace = trace_of(want.path)
    assert not trace.tables.names["name"].str.starts_with("_Z").any()
    assert trace.tables.activities["device"].null_count() == 0
    assert trace.tables.activities["process"].n_unique() == 1
    assert not trace.tables.calls["name"].cast(pl.String).str.contains(" call ").any()
