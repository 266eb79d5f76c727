"""Counters that ``nvprof --metrics`` and ``--events`` print, as text and CSV."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.nvprof import test_printed as printed
from tests.support import manifest
from tests.support.command_line import Run
from traceana.errors import NotATraceError
from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace

KERNEL = "void k<int, 2>(float*)"
BEGIN = printed.BEGIN + "==5071== Metric result:\n"
TEXT = f"""\
Invocations                               Metric Name              Metric Description         Min         Max         Avg
Device "TITAN Xp (1)"
    Kernel: {KERNEL}
          3                        achieved_occupancy              Achieved Occupancy    0.498652    0.498852    0.498765
          3                             sm_efficiency         Multiprocessor Activity      99.72%      99.82%      99.78%
          3                             flop_count_sp  Floating Point Operations(Sing        1000        3000        2000
          3                      dram_read_throughput   Device Memory Read Throughput  1.1655GB/s  1.1655GB/s  1.1651GB/s
          3                    dram_read_transactions     Device Memory Read Transact         100         300         200
          3                         dram_write_bytes           Total bytes written to           0        6400        3200
    Kernel: other(int)
          1                        achieved_occupancy              Achieved Occupancy    0.124107    0.124107    0.124107
"""  # noqa: E501
CSV = f"""\
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"TITAN Xp (1)","{KERNEL}",3,"achieved_occupancy","Achieved Occupancy",0.498652,0.498852,0.498765
"TITAN Xp (1)","{KERNEL}",3,"sm_efficiency","Multiprocessor Activity",99.72%,99.82%,99.78%
"TITAN Xp (1)","{KERNEL}",3,"flop_count_sp","Floating Point Operations",1000,3000,2000
"TITAN Xp (1)","{KERNEL}",3,"dram_read_throughput","Device",1.1655GB/s,1.1655GB/s,1.1651GB/s
"TITAN Xp (1)","{KERNEL}",3,"dram_read_transactions","Device Memory",100,300,200
"TITAN Xp (1)","{KERNEL}",3,"dram_write_bytes","Total bytes written",0,6400,3200
"TITAN Xp (1)","other(int)",1,"achieved_occupancy","Achieved Occupancy",0.124107,0.124107,0.124107
"""


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return read(path, silent)


@pytest.mark.parametrize("table", [TEXT, CSV], ids=["text", "csv"])
def test_text_and_csv_have_a_row_for_each_kernel(tmp_path: Path, table: str) -> None:
    noise = "epoch 1: loss 0.5,  12.3ms per step\n"
    trace = written(tmp_path / "a.log", noise + BEGIN + table + noise)
    row, other = trace.tables.counters.to_dicts()
    known = {key: value for key, value in row.items() if value is not None}
    assert known == {
        **{"name": KERNEL, "device": 1, "launches": 3, "fp32_flops": 2000},
        **{"dram_read_bytes": 6400, "dram_write_bytes": 3200, "dram_bytes": 9600},
        **{"achieved_occupancy_percent": 49.8765, "sm_efficiency_percent": 99.78},
    }
    assert (other["name"], other["launches"], other["fp32_flops"]) == ("other(int)", 1, None)
    assert trace.meta.properties == {
        "metric_rows": 7,
        "metrics_not_read": ("dram_read_throughput",),
    }
    assert trace.tables.devices.select("device", "name").rows() == [(1, "TITAN Xp")]
    assert trace.tables.ledger.is_empty()


def test_levels_and_counters_that_ran_over_are_values(tmp_path: Path) -> None:
    """``nvprof --metrics all`` has a level for each unit's utilization."""
    text = BEGIN + TEXT
    text += """\
          1                          dram_utilization       Device Memory Utilization     Low (1)     Low (2)     Low (1)
          1                          dram_write_bytes           Total bytes written to  <OVERFLOW>  <OVERFLOW>  <OVERFLOW>
"""  # noqa: E501
    trace = written(tmp_path / "a.log", text)
    assert trace.meta.properties["metrics_not_read"] == ("dram_read_throughput", "dram_utilization")
    assert trace.tables.ledger.select("reason", "count").rows() == [("lost_field", 1)]


def test_events_have_kernels_and_no_known_counter(tmp_path: Path) -> None:
    text = f"""\
==5071== Event result:
Invocations                                Event Name         Min         Max         Avg       Total
Device "TITAN Xp (1)"
    Kernel: {KERNEL}
          3                             warps_launched          64          64          64         192
"""  # noqa: E501
    trace = written(tmp_path / "a.log", text)
    assert trace.tables.counters["launches"].to_list() == [3]
    assert trace.meta.properties["metrics_not_read"] == ("warps_launched",)


def test_alone_they_are_shown_by_kernel(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "a.csv"
    file.write_text(BEGIN + CSV)
    done = run("kernels", file, "--format", "json")
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)["rows"]
    assert (first["calls"], first["measured"], first["fp32_flops"]) == (3, 3, 6000)
    assert (first["dram_bytes"], first["occupancy"]) == (28_800, pytest.approx(0.498765))
    assert second["name"] == "other(int)"
    assert second["time_ns"] is second["measured_flops"] is None
    assert run("report", file).exit_code == 20


def joined(run: Run, folder: Path, launches: int) -> list[dict[str, Any]]:
    """Return the kernels of a timeline of ``launches`` with the counters of three."""
    head, units, copy, kernel, memset = printed.CSV.splitlines()
    rows = [
        kernel.replace("328.34", f"{328 + i}.34").replace(",135", f",{135 + i}")
        for i in range(launches)
    ]
    trace, counters = folder / "trace.csv", folder / "counters.csv"
    trace.write_text("\n".join([head, units, copy, *rows, memset, ""]))
    counters.write_text(BEGIN + CSV)
    done = run("kernels", trace, "--counters", counters, "--format", "json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return found


@pytest.mark.parametrize(("launches", "measured"), [(1, 1), (3, 3), (5, 3)])
def test_each_launch_of_a_timeline_gets_the_mean(
    run: Run, tmp_path: Path, launches: int, measured: int
) -> None:
    (row,) = joined(run, tmp_path, launches)
    assert (row["calls"], row["measured"]) == (launches, measured)
    assert row["measured_flops"] == 2000 * measured
    assert row["dram_bytes"] == 9600 * measured
    assert row["occupancy"] == pytest.approx(0.498765)


@pytest.mark.parametrize("table", [TEXT, CSV], ids=["text", "csv"])
def test_a_row_that_is_cut_is_a_problem(tmp_path: Path, table: str) -> None:
    end = table.rindex("0.124107    ") if table is TEXT else -22
    trace = written(tmp_path / "a.log", BEGIN + table[:end])
    problems = trace.tables.ledger.filter(pl.col("severity") == "problem")
    assert problems.select("reason", "count").rows() == [("malformed", 1)]


def test_a_header_that_is_damaged_has_no_rows(tmp_path: Path) -> None:
    broken = CSV.replace('"Invocations"', "Invocations  Metric Name").replace('"Kernel"', "Kern")
    trace = written(tmp_path / "a.csv", BEGIN + broken + BEGIN + CSV)
    assert trace.tables.counters.height == 2
    assert trace.meta.properties["metric_rows"] == 7


def test_a_table_without_kernels_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="without measured kernels"):
        written(tmp_path / "a.log", BEGIN + TEXT.splitlines()[0] + "\n")
    with pytest.raises(NotATraceError, match="No events/metrics were profiled"):
        written(tmp_path / "b.log", printed.BEGIN + "No events/metrics were profiled.\n")


@manifest.NEEDS_PRINTED
def test_published_metrics_have_their_counts() -> None:
    listed = manifest.printed("nvprof-metrics")
    assert listed
    for row in listed:
        if row["rows"] == "0":
            with pytest.raises(NotATraceError, match="No events/metrics"):
                read(manifest.PRINTED / row["file"], silent)
            continue
        trace = read(manifest.PRINTED / row["file"], silent)
        assert trace.meta.properties["metric_rows"] == int(row["rows"])
        assert trace.tables.counters["launches"].sum() == int(row["gpu_calls"])
