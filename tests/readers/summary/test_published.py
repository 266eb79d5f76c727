"""Printed outputs of many tools that others published: rows, calls and times as counted by hand."""

from __future__ import annotations

import re
from typing import Final

import polars as pl
import pytest

from tests.support import manifest
from traceana.readers import read
from traceana.readers.source import silent

KINDS: Final = ("nvprof-summary", "nsys-stats", "rocprof", "torch-table", "mxnet-table")
SUMMARIES: Final = ("stats", "rocprofv3_readme")
"""In the names of rocprof's summaries."""
WORK: Final = ("kernel", "memcpy", "memset")
pytestmark = manifest.NEEDS_PRINTED


def listed() -> list[dict[str, str]]:
    return [
        row
        for row in manifest.printed(*KINDS)
        # Timelines, counters and databases of rocprof are other formats.
        if row["kind"] != "rocprof" or any(part in row["file"] for part in SUMMARIES)
    ]


@pytest.mark.parametrize("row", listed(), ids=lambda row: row["file"])
def test_a_published_summary_has_its_counts(row: dict[str, str]) -> None:
    if row["rows"] == "0" and row["gpu_calls"] == "0" and not _of_host(row):
        with pytest.raises(Exception, match=r"No kernels were profiled|no table with"):
            read(manifest.PRINTED / row["file"], silent)
        return
    trace = read(manifest.PRINTED / row["file"], silent)
    summary = trace.tables.summary
    work = summary.filter(pl.col("kind").cast(pl.String).is_in(WORK))
    if row["kind"] == "torch-table":
        total = trace.meta.properties.get("printed_total_ns", 0)
        # The text has the tables of several runs, and the manifest their sum.
        for other in trace.meta.properties.get("other_runs", ()):
            total += sum(round(float(ms) * 1e6) for ms in re.findall(r"([\d.]+) ms GPU", other))
        assert str(total or "") == row["gpu_time_text_sum_ns"]
        if row["complete"] == "yes":
            left_out = trace.tables.ledger.filter(
                pl.col("reason").is_in(["repeated", "other_run"])
            )["count"].sum()
            assert summary.height + left_out == int(row["rows"])
        return
    if _of_host(row) or row["kind"] == "mxnet-table":
        assert work.is_empty()
        assert summary.height in (int(row["rows"]), int(row["rows"]) - 1) or row["rows"] == "0"
        return
    assert work.height == int(row["rows"])
    assert work["calls"].sum() == int(row["gpu_calls"])
    assert work["total_ns"].sum() == int(row["gpu_time_text_sum_ns"])


def _of_host(row: dict[str, str]) -> bool:
    """Return whether the file has calls of the host alone."""
    return any(
        part in row["file"] for part in ("hip_stats", "api_sum", "api_summary", "bfs_unified")
    )
