"""The exports recorded by ``workloads/`` on a machine without a GPU."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.readers.nsys.writing import trace_of
from traceana.readers.sqlite import read_only_uri

EXPORTS = sorted((Path(__file__).resolve().parents[3] / "fixtures").glob("*.sqlite"))


@pytest.mark.parametrize("path", EXPORTS, ids=[path.stem for path in EXPORTS])
def test_the_layers_of_a_run_without_gpu_are_ranges(path: Path) -> None:
    trace = trace_of(path)
    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
        sql = (
            "SELECT s.value, count(*), sum(end - start) FROM NVTX_EVENTS "
            "JOIN StringIds s ON s.id = textId WHERE eventType = 59 GROUP BY 1"
        )
        want = connection.execute(sql).fetchall()
    nvtx = trace.tables.ranges.filter(pl.col("kind") == "nvtx")
    found = nvtx.group_by(pl.col("text").cast(pl.String)).agg(pl.len(), pl.col("duration").sum())
    assert want
    assert sorted(found.rows()) == sorted(want)
    assert nvtx["thread"].null_count() == 0
    assert trace.tables.activities.is_empty()
    assert trace.tables.ledger.filter(pl.col("severity") == "problem").is_empty()
