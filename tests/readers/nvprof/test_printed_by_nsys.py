"""The traces that ``nsys stats`` prints: ``cuda_gpu_trace`` and ``cuda_api_trace``."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest

from tests.support.command_line import Run
from traceana.errors import ExitCode
from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace

OLD = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
)
NEW = OLD.replace("MBps", "MB/s").replace("Ctx,", "Ctx,GreenCtx,")
SHORT = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH"}
CALLS = """\
Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
1000,300,cudaMemcpyAsync,0,11,77,78,20,python
2000,400,cudaLaunchKernel,0,12,77,78,20,python
2500,100,nvJitLinkCreate,0,13,77,78,20,python
"""
PREAMBLE = """\

NOTICE: Existing SQLite export found: run.sqlite

Processing [run.sqlite] with [cuda_gpu_trace.py]...
"""


def table(header: str) -> str:
    """Return four rows below ``header``, copies named as that version names them."""
    new = header == NEW
    context = "NVIDIA A10G (1),1," + ("," if new else "") + "7,"
    copies = [f"[CUDA memcpy {side if new else short}]" for side, short in SHORT.items()]
    return header + "".join(
        f"{cells},{context}{name}\n"
        for cells, name in (
            ("1500,5000,11,,,,,,,,,,4.194,838.861,Pageable,Device", copies[0]),
            (
                "7000,250,12,16,2,1,64,4,1,32,0.000,0.025,,,,",
                '"void scale<float>(float *, int)"',
            ),
            ("7400,500,14,,,,,,,,,,0.000,0.008,Device,Pinned", copies[1]),
            ("8000,90,15,,,,,,,,,,0.002,22.222,Device,", "[CUDA memset]"),
        )
    )


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return read(path, silent)


@pytest.mark.parametrize("header", [OLD, NEW])
@pytest.mark.parametrize("before", ["", PREAMBLE])
def test_activities_have_what_their_row_has(tmp_path: Path, header: str, before: str) -> None:
    trace = written(tmp_path / "a.csv", before + table(header))
    assert (trace.meta.format, trace.meta.producer) == ("nsys", "NVIDIA Nsight Systems")
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"])
    rows = trace.tables.activities.with_columns(names.alias("name")).select(
        *("kind", "start", "duration", "correlation", "device", "stream", "copy_kind", "bytes"),
        *("source_memory", "destination_memory", "name"),
    )
    assert rows.rows() == [
        ("memcpy", 0, 5000, 11, 1, 7, "HtoD", 4_194_000, "pageable", "device", rows["name"][0]),
        ("kernel", 5500, 250, 12, 1, 7, None, None, None, None, "void scale<float>(float *, int)"),
        # A size that three decimals round to 0 is not known.
        ("memcpy", 5900, 500, 14, 1, 7, "DtoH", None, "device", "pinned", rows["name"][2]),
        ("memset", 6500, 90, 15, 1, 7, None, 2_000, "device", None, rows["name"][3]),
    ]
    kernel = trace.tables.activities.filter(pl.col("kind") == "kernel")
    sizes = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers")
    assert kernel.select(sizes).row(0) == (16, 2, 1, 64, 4, 1, 32)
    assert trace.tables.devices.select("device", "name").rows() == [(1, "NVIDIA A10G")]
    assert "malformed" not in trace.tables.ledger["reason"].to_list()


def test_calls_have_their_launches(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.csv"
    trace = written(
        path, f"{table(NEW)}\nProcessing [run.sqlite] with [cuda_api_trace.py]...\n{CALLS}"
    )
    columns = ("name", "start", "duration", "correlation", "process", "thread")
    assert trace.tables.calls.select(columns).rows() == [
        ("cudaMemcpyAsync", 0, 300, 11, 77, 78),
        ("cudaLaunchKernel", 1000, 400, 12, 77, 78),
        ("nvJitLinkCreate", 1500, 100, 13, 77, 78),
    ]
    assert trace.tables.activities["process"].unique().to_list() == [77]
    answer = run("report", str(path))
    assert answer.exit_code == ExitCode.OK
    assert "2 launches (with copies, memsets)" in answer.stdout


def test_migrations_of_unified_memory_are_managed(tmp_path: Path) -> None:
    text = table(NEW).replace("[CUDA memcpy Host", "[CUDA memcpy Unified Host")
    copies = written(tmp_path / "a.csv", text).tables.activities.filter(pl.col("kind") == "memcpy")
    columns = ("copy_kind", "source_memory", "destination_memory")
    assert copies.select(columns).rows() == [
        ("HtoD", "managed", "managed"),
        ("DtoH", "device", "pinned"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Start (ns),Duration (ns),Name,PID,TID,T-Pri,Thread Name\n1,2,poll,3,4,20,python\n",
        "Start (ns),End (ns),Duration (ns),DurChild (ns),Name\n1,3,2,0,step\n",
    ],
)
def test_other_traces_of_nsys_are_refused(tmp_path: Path, run: Run, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    answer = run("report", str(path))
    assert answer.exit_code == ExitCode.UNRECOGNIZED_FORMAT
    assert "cuda_gpu_trace" in answer.stderr


def in_columns(text: str, mark: str, before: str = "") -> str:
    """Return the table ``text`` in columns below a ruler, digits in groups with ``mark``."""
    rows = list(csv.reader(text.splitlines()))
    decimal = "." if mark != "." else ","
    grouped = [rows[0]]
    for row in rows[1:]:
        cells = []
        for cell in row:
            whole, point, rest = cell.partition(".")
            if whole.isdigit() and (not point or rest.isdigit()):
                whole = f"{int(whole):,}".replace(",", mark)
                cell = f"{whole}{decimal}{rest}" if point else whole
            cells.append(cell)
        grouped.append(cells)
    widths = [max(map(len, column)) for column in zip(*grouped, strict=True)]
    numbers = {
        title for title in rows[0] if title not in ("Name", "Device", "SrcMemKd", "DstMemKd")
    }
    lines = [
        " "
        + "  ".join(
            cell.rjust(width) if title in numbers else cell.ljust(width)
            for title, cell, width in zip(rows[0], cells, widths, strict=True)
        )
        for cells in grouped
    ]
    lines.insert(1, " " + "  ".join("-" * width for width in widths))
    return "".join(f"{before}{line}\n" for line in lines)


@pytest.mark.parametrize("header", [OLD, NEW])
@pytest.mark.parametrize(
    ("mark", "before"), [(",", ""), (".", ""), (" ", ""), (",", "    "), (",", "# ")]
)
def test_columns_and_csv_are_equal(tmp_path: Path, header: str, mark: str, before: str) -> None:
    whole = written(tmp_path / "a.csv", f"{table(header)}\n{CALLS}")
    tables = [in_columns(text, mark, before) for text in (table(header), CALLS)]
    trace = written(
        tmp_path / "a.txt", "\n [3/3] Executing 'cuda_gpu_trace'\n\n" + "\n".join(tables)
    )
    assert trace.meta.properties["printed"] == "text"
    assert trace.tables.activities.equals(whole.tables.activities)
    assert trace.tables.names.equals(whole.tables.names)
    assert trace.tables.calls.equals(whole.tables.calls)
    assert "malformed" not in trace.tables.ledger["reason"].to_list()


def test_titles_that_lost_their_first_space_are_read(tmp_path: Path) -> None:
    whole = in_columns(table(NEW), ",")
    trace = written(tmp_path / "a.txt", whole.lstrip())
    assert trace.tables.activities.equals(written(tmp_path / "b.txt", whole).tables.activities)


def test_a_row_in_columns_that_is_cut_is_a_problem(tmp_path: Path) -> None:
    whole = in_columns(table(NEW), ",")
    trace = written(tmp_path / "a.txt", whole[: whole.rstrip("\n").rindex("\n") + 60])
    assert trace.tables.activities.height == 3
    assert ("malformed", 1) in trace.tables.ledger.select("reason", "count").rows()


@pytest.mark.parametrize("as_columns", [False, True])
def test_a_table_without_names_is_no_crash(tmp_path: Path, run: Run, *, as_columns: bool) -> None:
    text = table(OLD).replace("Strm,Name", "Strm,Label")
    path = tmp_path / "a.txt"
    path.write_text(in_columns(text, ",") if as_columns else text)
    assert run("info", str(path)).exit_code in (ExitCode.OK, ExitCode.UNRECOGNIZED_FORMAT)
