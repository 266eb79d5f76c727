"""Traces that nvprof printed, as text and as CSV, in logs with other output."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import manifest
from tests.support.command_line import Run
from traceana.errors import CorruptError, NotATraceError
from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace

PRINTED = manifest.TRACES / "nvprof-printed"
BEGIN = """\
==5071== NVPROF is profiling process 5071, command: python train.py
==5071== Profiling result:
"""
TEXT = """\
   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  \
Throughput  SrcMemType  DstMemType           Device   Context    Stream  Name
326.63ms  4.8000us                    -               -         -         -         -  16.000KB  \
3.1789GB/s    Pageable      Device     TITAN Xp (1)         1         7  [CUDA memcpy HtoD]
328.34ms  1.2396ms         (32768 1 1)      (64 2 1)        14      1.5KB       16B         -  \
         -           -           -     TITAN Xp (1)         1        13  \
void k<int, 2>(float*) [135]
330.00ms     992ns                    -               -         -         -         -        4B  \
1.2164MB/s      Device           -     TITAN Xp (1)         1         7  [CUDA memset]
"""
CSV = """\
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread",\
"Static SMem","Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context",\
"Stream","Name","Correlation_ID"
ms,us,,,,,,,,KB,B,KB,GB/s,,,,,,,
326.630000,4.800000,,,,,,,,,,16.000000,3.1789,"Pageable","Device","TITAN Xp (1)","1","7",\
"[CUDA memcpy HtoD]",130
328.340000,1239.600000,32768,1,1,64,2,1,14,1.500000,16,,,,,"TITAN Xp (1)","1","13",\
"void k<int, 2>(float*)",135
330.000000,0.992000,,,,,,,,,,0.003906,0.0012,"Device",,"TITAN Xp (1)","1","7","[CUDA memset]",140
"""


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return read(path, silent)


def rows(trace: Trace) -> list[dict[str, Any]]:
    """Return the activities with their names, without what only one layout has."""
    names = trace.tables.activities["name_id"].to_list()
    named = trace.tables.activities.drop("name_id").with_columns(
        trace.tables.names["name"].gather(names).alias("name")
    )
    return named.to_dicts()


def problems(trace: Trace) -> list[tuple[str, int]]:
    found = trace.tables.ledger.filter(pl.col("severity") == "problem")
    return found.select("reason", "count").rows()


def test_text_and_csv_of_one_run_are_equal(tmp_path: Path) -> None:
    in_text = written(tmp_path / "a.log", BEGIN + TEXT)
    in_csv = written(tmp_path / "a.csv", BEGIN + CSV)
    copy, kernel, memset = rows(in_csv)
    for one, other in zip(rows(in_text), (copy, kernel, memset), strict=True):
        differing = {key for key in one if one[key] != other[key]}
        # Only CSV has correlation ids of copies.
        assert differing <= {"correlation"}
    assert (kernel["name"], kernel["correlation"]) == ("void k<int, 2>(float*)", 135)
    assert [kernel[f"{what}_{axis}"] for what in ("grid", "block") for axis in "xyz"] == [
        *(32768, 1, 1, 64, 2, 1)
    ]
    assert (kernel["registers"], kernel["shared_memory"]) == (14, 1536 + 16)
    assert (kernel["start"], kernel["duration"]) == (1_710_000, 1_239_600)
    assert (copy["bytes"], copy["copy_kind"], copy["source_memory"]) == (16384, "HtoD", "pageable")
    assert copy["name"] == "Memcpy HtoD (Pageable -> Device)"
    assert (memset["bytes"], memset["kind"], memset["destination_memory"]) == (4, "memset", None)
    assert {one["process"] for one in (copy, kernel, memset)} == {5071}
    assert in_csv.tables.devices.select("device", "name").rows() == [(1, "TITAN Xp")]
    assert problems(in_text) == problems(in_csv) == []


def test_units_below_the_titles_are_those_of_their_columns(tmp_path: Path) -> None:
    """``nvprof --normalized-time-unit`` prints one unit for a column, below its title."""
    text = """\
   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  \
Throughput  SrcMemType  DstMemType           Device   Context    Stream  Name
      ms        ms                                                       KB         B        KB  \
      GB/s
326.6300  4.80e-03                    -               -         -         -         -  16.00000  \
  3.178900    Pageable      Device     TITAN Xp (1)         1         7  [CUDA memcpy HtoD]
328.3400  1.239600         (32768 1 1)      (64 2 1)        14  1.500000  16.00000         -  \
         -           -           -     TITAN Xp (1)         1        13  \
void k<int, 2>(float*) [135]
330.0000  9.92e-04                    -               -         -         -         -  3.91e-03  \
  1.19e-03      Device           -     TITAN Xp (1)         1         7  [CUDA memset]
"""
    trace = written(tmp_path / "a.log", BEGIN + text)
    known = written(tmp_path / "b.log", BEGIN + TEXT)
    assert rows(trace) == rows(known)
    digits = trace.tables.ledger.filter(pl.col("reason") == "few_digits")["detail"].to_list()
    assert "duration to 10 ns at worst, their sum to 5 ns" in digits
    assert trace.meta.properties["printed"] == "text"
    assert problems(trace) == []


@pytest.mark.parametrize("table", [TEXT, CSV], ids=["text", "csv"])
@pytest.mark.parametrize("prefix", ["", "        ", "# ", "\x1b[32m", "> "])
def test_output_of_the_program_and_of_a_paste_is_no_row(
    tmp_path: Path, table: str, prefix: str
) -> None:
    plain = written(tmp_path / "plain.log", BEGIN + table)
    header, *others = (BEGIN + table).splitlines()
    noise = ["epoch 1: loss 0.5,  12.3ms per step", "", "  0.5 seconds", "ünïcode"]
    lines = [header, *others[:3], *noise, *others[3:], *noise]
    mixed = written(tmp_path / "mixed.log", "\n".join(prefix + line for line in lines))
    assert rows(mixed) == rows(plain)
    assert problems(mixed) == []


def test_a_header_far_behind_the_programs_output_is_found(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.log", "step done\n" * 100_000 + TEXT)
    assert trace.tables.activities.height == 3


def test_tables_of_several_processes_are_all_read(tmp_path: Path) -> None:
    second = BEGIN.replace("5071", "5072")
    trace = written(tmp_path / "a.log", BEGIN + TEXT + second + TEXT + second + CSV)
    assert trace.tables.activities.height == 9
    assert trace.tables.activities["process"].null_count() == 9


def test_names_without_quotes_keep_their_commas(tmp_path: Path) -> None:
    bare = CSV.replace('"void k<int, 2>(float*)"', "void k<int, 2>(float*)")
    assert rows(written(tmp_path / "a.csv", bare)) == rows(written(tmp_path / "b.csv", CSV))


@pytest.mark.parametrize("name", ['k<"a,b", 2>', 'say ""hi"", twice', 'a"b'])
def test_quotes_within_a_name_break_no_row(tmp_path: Path, name: str) -> None:
    trace = written(tmp_path / "a.csv", CSV.replace('"void k<int, 2>(float*)"', name))
    assert trace.tables.activities.height + sum(count for _, count in problems(trace)) == 3


@pytest.mark.parametrize(
    ("table", "cut"),
    [(TEXT, " 1        13  void k<int, 2>(float*) [135]"), (CSV, ',"void k<int, 2>(float*)",135')],
    ids=["text", "csv"],
)
def test_a_row_that_is_cut_is_a_problem(tmp_path: Path, table: str, cut: str) -> None:
    assert cut in table
    trace = written(tmp_path / "a.log", BEGIN + table.replace(cut, ""))
    assert trace.tables.activities.height == 2
    assert problems(trace) == [("malformed", 1)]
    # Within the name.
    trace = written(tmp_path / "b.log", BEGIN + CSV.replace('2>(float*)",135', ""))
    assert problems(trace) == [("malformed", 1)]


@pytest.mark.parametrize(
    ("table", "time"), [(TEXT, "328.34ms"), (CSV, "328.340000")], ids=["text", "csv"]
)
def test_a_row_whose_time_is_damaged_is_a_problem(tmp_path: Path, table: str, time: str) -> None:
    trace = written(tmp_path / "a.log", BEGIN + table.replace(time, "x" * len(time)))
    assert trace.tables.activities.height == 2
    assert problems(trace) == [("missing_time", 1)]


def test_a_header_that_is_no_csv_has_no_rows(tmp_path: Path) -> None:
    broken = CSV.replace('"Grid X",', "Grid\rX,")
    trace = written(tmp_path / "a.log", BEGIN + broken + BEGIN + TEXT)
    assert trace.tables.activities.height == 3
    assert problems(trace)


def test_a_table_that_breaks_off_is_read_up_to_there(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.csv", CSV[: CSV.index('"[CUDA memset]"') - 5])
    assert trace.tables.activities.height == 2
    assert problems(trace) == [("malformed", 1)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("==7== NVPROF is profiling process 7\n==7== No kernels were profiled.\n", "No kernels"),
        ("======== Error: Application received signal 9\n", "Application received signal 9"),
        ("======== Error: Application returned non-zero code 120\n", "non-zero code 120"),
        ("==7== NVPROF is profiling process 7\nhello\n", "no table with starts"),
    ],
)
def test_a_log_without_a_table_says_why(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(NotATraceError, match=why) as error:
        written(tmp_path / "a.log", text)
    assert "--print-gpu-trace" in str(error.value)


def test_times_without_a_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="without a unit"):
        written(tmp_path / "a.csv", CSV.replace("ms,us,,,,,,,,KB,B,KB,GB/s,,,,,,,\n", ""))
    with pytest.raises(CorruptError, match="'parsecs'"):
        written(tmp_path / "b.csv", CSV.replace("ms,us,", "ms,parsecs,"))


def test_calls_are_read_with_the_launches_that_they_made(tmp_path: Path) -> None:
    text = """\
======== Profiling result:
   Start  Duration  Name
     0ns  2.4150us  cuDeviceGetPCIBusId
38.829ms     180ns  cudaLaunch (void k<int, 2>(float*) [118])
"""
    trace = written(tmp_path / "a.log", text)
    assert trace.tables.calls.select("name", "start", "duration", "correlation").rows() == [
        ("cuDeviceGetPCIBusId", 0, 2_415, None),
        ("cudaLaunch", 38_829_000, 180, 118),
    ]
    assert trace.tables.activities.is_empty()


def test_faults_of_unified_memory_are_no_work(tmp_path: Path) -> None:
    fault = (
        '1.204081,,,,,,,,,,,,,,,"TITAN Xp (1)",,,"[Unified Memory CPU page faults]",\n'
        '331.0,2.0,,,,,,,,,,,,,,"TITAN Xp (1)",,,"[Unified Memory Memcpy HtoD]",\n'
    )
    trace = written(tmp_path / "a.csv", CSV + fault)
    assert trace.tables.activities["source_memory"].to_list() == [
        "pageable",
        None,
        "device",
        "managed",
    ]
    assert trace.tables.ledger.filter(pl.col("reason") == "counter")["count"].to_list() == [1]


def test_migrations_have_the_bytes_of_their_own_column(tmp_path: Path) -> None:
    text = """\
======== Profiling result:
   Start  Duration    Grid Size    Device    Stream   Unified Memory  Virtual Address  Name
1.20408s         -            -         -         -      PC 0x4034d6   0x7f8cc0000000  \
[Unified Memory CPU page faults]
1.28174s  5.7920us            -  Xp (0)           -      48.000000KB   0x7f8cc0080000  \
[Unified Memory Memcpy HtoD]
"""
    work = written(tmp_path / "a.log", text).tables.activities
    assert work.select("bytes", "source_memory", "duration").rows() == [(49152, "managed", 5792)]
    head, _, row, *_ = CSV.splitlines()
    head = head.replace('"Name"', '"Unified Memory","Virtual Address","Name"')
    units = "ms,us,,,,,,,,KB,B,KB,GB/s,,,,,,B,,,"
    row = row.replace('"[CUDA memcpy HtoD]"', ',,"[CUDA memcpy HtoD]"')
    migration = row.replace("16.000000,3.1789", ",").replace(
        ',,,"[CUDA memcpy HtoD]",130', ',49152,"0x7f","[Unified Memory Memcpy HtoD]",'
    )
    lines = "\n".join([head, units, row, migration, ""])
    work = written(tmp_path / "a.csv", lines).tables.activities
    assert work.select("bytes", "source_memory").rows() == [(16384, "pageable"), (49152, "managed")]


def test_reports_of_several_processes_are_a_note(tmp_path: Path) -> None:
    second = BEGIN.replace("5071", "5072")
    trace = written(tmp_path / "a.log", BEGIN + TEXT + second + TEXT)
    notes = trace.tables.ledger.filter(pl.col("reason") == "several_reports")
    assert notes.select("count", "severity").rows() == [(2, "note")]
    assert (
        "several_reports" not in written(tmp_path / "b.log", BEGIN + TEXT).tables.ledger["reason"]
    )


def test_few_digits_are_a_note_with_what_they_cost(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.log", BEGIN + TEXT)
    notes = trace.tables.ledger.filter(pl.col("reason") == "few_digits")
    assert notes.select("count", "detail").rows() == [
        (3, "start to 10,000 ns at worst"),
        (1, "duration to 100 ns at worst, their sum to 50 ns"),
        (1, "bytes to 2 bytes at worst, their sum to 1 bytes"),
    ]


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=20))
def test_durations_of_csv_are_exact(
    tmp_path_factory: pytest.TempPathFactory, ns: list[int]
) -> None:
    header, units = CSV.splitlines()[:2]
    lines = [
        # Far apart: a kernel around many others of its stream is impossible, and left out.
        f'{at}000.5,{one // 10**6}.{one % 10**6:06},{"," * 13}"X (0)","1","7","k",{at + 1}'
        for at, one in enumerate(ns)
    ]
    text = "\n".join([header, units.replace("ms,us", "s,ms"), *lines])
    trace = written(tmp_path_factory.mktemp("csv") / "a.csv", text)
    assert trace.tables.activities["duration"].to_list() == ns


def test_a_printed_trace_has_a_report(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "a.log"
    file.write_text(BEGIN + TEXT)
    for command in ("report", "kernels", "transfers", "idle", "advise", "info"):
        assert run(command, file).exit_code == 0, command


@pytest.mark.skipif(not PRINTED.exists(), reason="no printed traces of others here")
def test_every_tenth_recorded_trace_has_its_counts() -> None:
    with (PRINTED / "MANIFEST.tsv").open() as lines:
        listed = [
            row
            for row in csv.DictReader(lines, delimiter="\t")
            if row["kind"].startswith("nvprof-gpu-trace")
        ]
    for row in (*listed[:2], *listed[2::60]):
        trace = read(PRINTED / row["file"], silent)
        work = trace.tables.activities
        kernels = work.filter(pl.col("kind") == "kernel")
        copies = work.filter(pl.col("kind") == "memcpy")["copy_kind"].value_counts()
        assert kernels.height == int(row["kernels"])
        assert kernels["duration"].sum() == int(row["kernel_ns"])
        assert kernels["name_id"].n_unique() == int(row["distinct_names"])
        assert dict(copies.rows()) == {
            kind: int(count) for kind, count in (one.split(":") for one in row["memcpy"].split())
        }
        assert (work["kind"] == "memset").sum() == int(row["memset"] or 0)
        assert problems(trace) == []


def published() -> list[dict[str, str]]:
    return manifest.printed("nvprof-gpu-trace", "nvprof-api-trace")


@manifest.NEEDS_PRINTED
@pytest.mark.parametrize("row", published(), ids=lambda row: row["file"])
def test_a_published_trace_has_its_counts(row: dict[str, str]) -> None:
    trace = read(manifest.PRINTED / row["file"], silent)
    # The manifest counts calls and times without unified memory, and rows with it.
    managed = (pl.col("source_memory") == "managed") & pl.col("copy_kind").is_in(["HtoD", "DtoH"])
    work = trace.tables.activities.filter(~managed.fill_null(False))
    left_out = trace.tables.ledger.filter(pl.col("reason") == "counter")["count"].sum()
    rows_read = trace.tables.activities.height + trace.tables.calls.height + left_out
    assert rows_read == int(row["rows"])
    assert work.height == int(row["gpu_calls"])
    steps = trace.tables.ledger.filter(pl.col("detail").str.starts_with("duration"))["detail"]
    off = int(steps[0].rpartition("sum to ")[2].split()[0].replace(",", "")) if len(steps) else 0
    total = int(work["duration"].sum())
    assert abs(total - int(row["gpu_time_text_sum_ns"] or 0)) <= off
    assert problems(trace) == []
    assert (trace.tables.activities.filter(managed)["bytes"] > 0).all()


def test_names_of_copies_and_calls_that_are_cut_are_no_kernels(tmp_path: Path) -> None:
    cut = TEXT[: TEXT.rindex("]") - 4]
    trace, whole = written(tmp_path / "a.txt", cut), written(tmp_path / "b.txt", TEXT)
    kernels = pl.col("kind") == "kernel"
    assert (
        trace.tables.activities.filter(kernels).height
        == whole.tables.activities.filter(kernels).height
    )
    assert ("malformed", 1) in problems(trace)
    calls = "   Start  Duration  Name\n38.303ms     241ns  cuDeviceGet\n39.303ms     241ns  cu"
    trace = written(tmp_path / "c.txt", calls)
    assert trace.tables.calls.height == 2
    assert trace.tables.activities.is_empty()
