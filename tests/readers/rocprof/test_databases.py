"""SQLite databases of rocprofv3 (rocpd) and of rocprof."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.rocprof import databases, writing
from tests.readers.rocprof.test_counters import MEASURED
from tests.readers.rocprof.test_csv import problems, rows, run_of
from tests.readers.rocprof.writing import Kernel
from tests.support import manifest
from tests.support.command_line import Run
from traceana import open as open_trace
from traceana.errors import CorruptError, UnknownFormatError
from traceana.trace import Trace

LAYOUTS = pytest.mark.parametrize("tracked", [False, True], ids=["columns", "tracks"])


def events(trace: Trace, table: str) -> list[dict[str, Any]]:
    """Return the rows of calls or ranges, in the order of their start."""
    return trace.tables[table].sort("start", "duration").to_dicts()


@LAYOUTS
def test_a_database_and_the_csv_of_a_run_are_equal(tmp_path: Path, tracked: bool) -> None:
    of_csv = open_trace(run_of(tmp_path / "csv"))
    path = databases.rocpd(tmp_path / "results.db", databases.rocpd_run(tracked=tracked))
    trace = open_trace(path)
    # Calls and ranges have another order in the two.
    work = [
        trace.tables.activities.drop("call", "range").with_columns(
            trace.tables.names["name"].gather(trace.tables.activities["name_id"])
        )
        for trace in (of_csv, trace)
    ]
    for one, other in zip(*(frame.drop("name_id").to_dicts() for frame in work), strict=True):
        # CSV has no bytes of copies.
        differing = {key for key in one if one[key] != other[key]}
        assert differing <= ({"bytes"} if one["kind"] == "memcpy" else set())
    assert trace.tables.activities["bytes"].to_list() == [None] * 3 + [4096] * 2
    for table in ("calls", "ranges"):
        assert events(of_csv, table) == events(trace, table)
    gpu, of_agent_info = (one.tables.devices.row(0, named=True) for one in (trace, of_csv))
    assert {key for key in gpu if gpu[key] != of_agent_info[key]} == {"memory_bytes"}
    assert (trace.meta.producer, trace.meta.format_version) == ("AMD rocpd", "3")
    assert problems(trace) == problems(of_csv) == [("no_launch", 1)]
    assert trace.meta.events == 3 + 2 + 6 + 2


def test_broken_properties_of_an_agent_are_counted(tmp_path: Path) -> None:
    run = databases.rocpd_run(tracked=True)
    for agent in run.tables["info_agent"]:
        agent["extdata"] = '{"cu_count":'
    trace = open_trace(databases.rocpd(tmp_path / "results.db", run))
    (lost,) = trace.tables.ledger.filter(reason="lost_field", table="devices").to_dicts()
    assert (lost["count"], lost["detail"]) == (2, "properties of an agent")
    assert trace.tables.devices["multiprocessors"].null_count() == trace.tables.devices.height


@LAYOUTS
def test_instances_of_counters_are_added(tmp_path: Path, tracked: bool) -> None:
    run = databases.rocpd_run(MEASURED, tracked=tracked)
    counters = open_trace(databases.rocpd(tmp_path / "results.db", run)).tables.counters
    assert counters["activity"].to_list() == [0, 1, 2]
    assert counters["dram_read_bytes"].to_list() == [2048, 4096, 6144]
    assert counters["tensor_ops"].to_list() == [13 * 512, 23 * 512, 33 * 512]


@LAYOUTS
def test_the_counters_of_a_database_join_the_timeline_of_another_run(
    tmp_path: Path, run: Run, tracked: bool
) -> None:
    # Two sizes of one name: the launches differ by them.
    small, large = (
        Kernel(
            number, 1_000 * number, 1_500 * number, "k", grid=(size, 1, 1), block=(256, 1, 1),
            counters={"FETCH_SIZE": size / 256},
        )
        for number, size in ((1, 256), (2, 2048))
    )  # fmt: skip
    (tmp_path / "trace.csv").write_text(writing.kernel_trace([large, small]))
    counted = [small, large]
    path = databases.rocpd(tmp_path / "results.db", databases.rocpd_run(counted, tracked=tracked))
    counters = open_trace(tmp_path / "trace.csv", counters=path).tables.counters
    assert counters.select("activity", "dram_read_bytes").rows() == [(1, 1024), (0, 8192)]
    shown = run("kernels", tmp_path / "trace.csv", "--counters", path)
    assert "measured by rocpd: 2 of 2 kernels" in shown.stdout
    none = databases.rocpd(tmp_path / "none.db", databases.rocpd_run(tracked=tracked))
    refused = run("kernels", tmp_path / "trace.csv", "--counters", none)
    assert "no counters of kernel launches" in refused.stderr


@LAYOUTS
def test_the_processes_of_a_merged_database_stay_apart(tmp_path: Path, tracked: bool) -> None:
    one = databases.rocpd_run(tracked=tracked)
    other = databases.rocpd_run(tracked=tracked, process=900, uuid="_0001")
    trace = open_trace(databases.rocpd(tmp_path / "results.db", one, other))
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
    assert kernels["process"].to_list() == [800] * 3 + [900] * 3
    callers = trace.tables.calls["process"].gather(kernels["call"])
    assert callers.to_list() == kernels["process"].to_list()


def test_a_database_stands_for_the_csv_beside_it(tmp_path: Path) -> None:
    run_of(tmp_path / "run", "12_")
    databases.rocpd(tmp_path / "run" / "12_results.db", databases.rocpd_run(tracked=False))
    trace = open_trace(tmp_path / "run")
    assert (trace.tables.activities.height, trace.meta.producer) == (5, "AMD rocpd")


CHROME = """\
{ "traceEvents":[{}
,{"args":{"name":"0 CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":0}
,{"args":{"name":"1 COPY"},"ph":"M","pid":1,"name":"process_name","sort_index":1}
,{"pid":"6","tid":"0","name":"k(int)","ph":"X","ts":"150","dur":"25","args":{"BeginNs":"150000"}}
]}
"""


def test_a_run_of_rocprof_is_its_database(tmp_path: Path) -> None:
    """``rocprof --hip-trace`` writes the kernels as CSV, in the database and as a Chrome trace."""
    databases.legacy(tmp_path / "results.db", databases.legacy_run())
    (tmp_path / "results.csv").write_text(writing.results_v1())
    (tmp_path / "results.json").write_text(CHROME)
    trace = open_trace(tmp_path)
    assert (
        trace.tables.activities.height
        == open_trace(tmp_path / "results.db").tables.activities.height
    )
    assert trace.meta.source == str(tmp_path / "results.db")
    with pytest.raises(UnknownFormatError, match=r"rocprof's results\.json"):
        open_trace(tmp_path / "results.json")


@LAYOUTS
def test_what_a_database_lacks_is_a_problem(tmp_path: Path, tracked: bool) -> None:
    for table in ("string", "event", "info_kernel_symbol", *(["timestamp"] if tracked else [])):
        run = databases.rocpd_run(tracked=tracked)
        del run.tables[table]
        trace = open_trace(databases.rocpd(tmp_path / f"{table}.db", run))
        assert ("missing_table", 1) in problems(trace)
    # A row that another refers to.
    run = databases.rocpd_run(tracked=tracked)
    del run.tables["info_kernel_symbol"][1]
    trace = open_trace(databases.rocpd(tmp_path / "row.db", run))
    assert problems(trace)[0] == ("unnamed", 1)


def test_tables_of_other_kinds_are_counted(tmp_path: Path) -> None:
    run = databases.rocpd_run(tracked=False)
    for number in range(4):
        run.add("memory_allocate", start=number, end=number + 1, type="ALLOC", size=4096)
    trace = open_trace(databases.rocpd(tmp_path / "results.db", run))
    other = trace.tables.ledger.filter(pl.col("reason") == "unknown_category")
    assert other.select("count", "kept").rows() == [(4, False)]


def test_a_damaged_database_is_refused_or_marked(tmp_path: Path) -> None:
    path = databases.rocpd(tmp_path / "a.db", databases.rocpd_run(tracked=True))
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(CorruptError, match="truncated"):
        open_trace(path)


def test_rocprofs_database_has_the_kernels_of_its_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(writing.kernel_trace())
    want = rows(open_trace(tmp_path / "a.csv"))
    trace = open_trace(databases.legacy(tmp_path / "results.db", databases.legacy_run()))
    *found, copy = rows(trace)
    for one, other in zip(want, found, strict=True):
        differing = {key for key in one if one[key] != other[key]}
        lacks = {"process", "registers", "shared_memory"}
        assert differing <= lacks | {"start", "call", "range", "step"}
    assert (copy["copy_kind"], copy["bytes"], copy["device"]) == ("HtoD", 4096, 1)
    launched = trace.tables.calls["name"].gather(trace.tables.activities["call"]).to_list()
    assert launched == ["hipLaunchKernel"] * 3 + ["hipMemcpy"]
    assert trace.tables.ranges.select("text", "duration").rows() == [("step 0", 59_400)]
    # A barrier is no work.
    assert trace.tables.ledger.filter(pl.col("reason") == "unknown_category")[
        "count"
    ].to_list() == [1]
    assert problems(trace) == []


def test_a_call_of_several_copies_has_the_bytes_of_none(tmp_path: Path) -> None:
    tables = databases.legacy_run()
    tables["COPY"] *= 2
    tables["COPY"][1] = tables["COPY"][1] | {"BeginNs": 46_000, "EndNs": 47_000}
    trace = open_trace(databases.legacy(tmp_path / "results.db", tables))
    copies = trace.tables.activities.filter(pl.col("kind") == "memcpy")
    assert copies["bytes"].to_list() == [None, None]


def test_rocprofs_table_of_kernels_has_counters(tmp_path: Path) -> None:
    tables = databases.legacy_run()
    tables["KERN"] = [
        {"Index": number, "KernelName": f"{one.name}.kd", "gpu-id": 1, "queue-id": 0, "pid": 800,
         "FETCH_SIZE": 2.5, "DispatchNs": 1, "BeginNs": one.start, "EndNs": one.end}
        for number, one in enumerate(writing.KERNELS)
    ]  # fmt: skip
    trace = open_trace(databases.legacy(tmp_path / "a.db", tables))
    assert trace.tables.counters["dram_read_bytes"].to_list() == [2560] * 3
    # The kernels are those of the timeline, not counted twice.
    assert (trace.tables.activities["kind"] == "kernel").sum() == 3
    tables["OPS"] = tables["COPY"] = []
    alone = open_trace(databases.legacy(tmp_path / "b.db", tables))
    assert alone.tables.activities["duration"].to_list() == [4_000, 1_000, 7_000]
    assert alone.tables.counters["activity"].to_list() == [0, 1, 2]
    of_another_run = open_trace(tmp_path / "b.db", counters=tmp_path / "a.db").tables.counters
    assert of_another_run["activity"].to_list() == [0, 1, 2]


@LAYOUTS
def test_commands_show_a_database(tmp_path: Path, run: Run, tracked: bool) -> None:
    path = databases.rocpd(tmp_path / "results.db", databases.rocpd_run(tracked=tracked))
    for command in ("report", "kernels", "transfers", "idle", "info", "advise"):
        done = run(command, path)
        assert done.exit_code == 0, (command, done.stderr)


def test_views_are_no_tables(tmp_path: Path) -> None:
    path = databases.rocpd(tmp_path / "a.db", databases.rocpd_run(tracked=False))
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM rocpd_kernel_dispatch").fetchone()
    assert (
        open_trace(path).tables.activities.filter(pl.col("kind") == "kernel").height == count == 3
    )


@manifest.NEEDS_PRINTED
def test_the_published_database_has_its_counts() -> None:
    folder = manifest.PRINTED / "rocprof"
    trace = open_trace(folder / "hip__rocmblogs_HIP_trace_results.db")
    kernels = trace.tables.activities.filter(pl.col("kind") == "kernel")
    assert (kernels.height, kernels["duration"].sum()) == (1, 5280)
    # The summaries of the same run.
    copies = trace.tables.activities.filter(pl.col("kind") == "memcpy").group_by("copy_kind")
    found = copies.agg(pl.len(), pl.col("duration").sum()).sort("copy_kind").rows()
    summary = open_trace(folder / "hip__rocmblogs_HIP_trace_copy_stats.csv").tables.summary
    assert found == summary.sort("copy_kind").select("copy_kind", "calls", "total_ns").rows()
    calls = open_trace(folder / "hip__rocmblogs_HIP_trace_hip_stats.csv").tables.summary
    assert trace.tables.calls.height == calls["calls"].sum()
    assert trace.tables.calls["duration"].sum() == calls["total_ns"].sum()
    assert problems(trace) == []
