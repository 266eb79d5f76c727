"""Summaries as every profiler prints them: what is written is read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceana
from tests.readers.summary import writing
from tests.readers.summary.writing import ROWS, Row
from tests.support.command_line import Run
from tests.support.traces import with_methods
from traceana import Trace
from traceana.errors import CorruptError, ExitCode, NotATraceError
from traceana.readers import read
from traceana.readers.printed.quantities import TIME, Quantity, quantity
from traceana.readers.source import silent

Write = Callable[[Sequence[Row]], str]

LAYOUTS: dict[str, Write] = {
    "nvprof": writing.nvprof_text,
    "nvprof before CUDA 9": writing.nvprof_old,
    "nvprof CSV": writing.nvprof_csv,
    "nsys 2019": writing.nsys_2019,
    "nsys 2023": writing.nsys_2023,
    "nsys in groups of four": lambda rows: writing.nsys_2023(rows, fours),
    "nsys with points": lambda rows: writing.nsys_2023(rows, points),
    "nsys CSV": writing.nsys_csv,
    "rocprof": writing.rocprof_csv,
    "rocpd": writing.rocpd_text,
    "torch": writing.torch_table,
}
ONLY_KERNELS = ("rocpd",)
PASTES: dict[str, Callable[[str], str]] = {
    "indented": lambda text: "".join(f"    {line}\n" for line in text.splitlines()),
    "comment": lambda text: "".join(f"# {line}\n" for line in text.splitlines()),
    "quoted": lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
    "coloured": lambda text: "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
    "bold": lambda text: "".join(f"**{line}**\n" if line else "\n" for line in text.splitlines()),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "issue": lambda text: (
        f"Training is slow, about 12.5% of peak:\n```\n{text}```\n"
        "The 2 kernels take 91.2ms, 4.27ms of it GEMM.\n"
    ),
    "log": lambda text: text.replace("\n", "\nstep 12  loss 0.25  1.2ms  4  per image\n"),
    # Each begins as a section or a header of a profiler does.
    "titles": lambda text: text.replace(
        "\n",
        "\nTraining loss (mean): 0.25\nLoss  Time per step (ms)\nAPI calls took 5 s\n"
        "Training Statistics: 3 of 4\nProfiling results in out.txt\nOpenMP (4 threads)\n",
    ),
}


def fours(number: int) -> str:
    """Return ``number`` in groups of four digits, as in some locales."""
    text = str(number)
    first = len(text) % 4
    groups = [text[:first], *(text[at : at + 4] for at in range(first, len(text), 4))]
    return ",".join(group for group in groups if group)


def points(number: int) -> str:
    """Return ``number`` in groups of three digits with points between them."""
    return f"{number:,}".replace(",", ".")


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return with_methods(read(path, silent))


def found(trace: Trace, *kinds: str) -> list[tuple[str, int, int, int]]:
    rows = trace.tables.summary.filter(pl.col("kind").cast(pl.String).is_in(kinds))
    return rows.select("name", "calls", "total_ns", "precision_ns").rows()


def problems(trace: Trace) -> list[tuple[str, int]]:
    bad = trace.tables.ledger.filter(pl.col("severity") == "problem")
    return bad.select("reason", "count").rows()


def expect(trace: Trace, rows: Sequence[Row], name: str) -> None:
    """Check that ``trace`` has ``rows``, their times within half of the last digit."""
    for kind in ("kernel", "memcpy", "memset", "call"):
        own = [row for row in rows if row.kind == kind]
        if (name in ONLY_KERNELS and kind != "kernel") or (name == "torch" and kind == "call"):
            continue
        read_back = found(trace, kind)
        assert [one[1] for one in read_back] == [row.calls for row in own]
        for row, (label, _, total, step) in zip(own, read_back, strict=True):
            assert abs(row.total_ns - total) <= (step + 1) / 2
            if kind == "kernel":
                assert label == row.name
        means = trace.tables.summary.filter(pl.col("kind") == kind)["mean_ns"].to_list()
        for row, mean in zip(own, means, strict=True):
            assert mean is None or abs(mean - row.mean_ns) <= 1 + row.mean_ns // 1000


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_printed_is_read(tmp_path: Path, name: str) -> None:
    trace = written(tmp_path / "a.txt", LAYOUTS[name](ROWS))
    expect(trace, ROWS, name)
    assert problems(trace) == []
    counted = trace.tables.summary.filter("counted")["kind"].unique().cast(pl.String)
    assert "call" not in counted
    assert trace.tables.activities.is_empty()
    assert trace.is_summary


@pytest.mark.parametrize("paste", PASTES)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_log_or_a_paste_puts_around_changes_nothing(
    tmp_path: Path, name: str, paste: str
) -> None:
    plain = written(tmp_path / "plain.txt", LAYOUTS[name](ROWS))
    pasted = written(tmp_path / "pasted.txt", PASTES[paste](LAYOUTS[name](ROWS)))
    assert pasted.tables.summary.equals(plain.tables.summary)
    assert problems(pasted) == []


@pytest.mark.parametrize("cell", [0, 6, 10])
@pytest.mark.parametrize("between", ["  ", " | "])
def test_cells_in_bold_are_read(tmp_path: Path, cell: int, between: str) -> None:
    """Reports set the rows that they speak of, or some of their cells, in bold."""
    text = writing.torch_table(ROWS)
    lines = text.splitlines()
    for at in range(3, len(lines), 2):
        cells = re.split(" {2,}", lines[at].strip())
        if len(cells) > cell:
            cells[cell] = f"**{cells[cell]}**"
            lines[at] = between.join(cells)
    if between != "  ":
        rows = (re.split(" {2,}", line.strip()) for line in lines[1:] if "total:" not in line)
        ends = (line for line in lines if "total:" in line)
        lines = [*(line[0] if "|" in line[0] else between.join(line) for line in rows), *ends]
    trace = written(tmp_path / "a.txt", "\n".join(lines) + "\n")
    assert trace.tables.summary.equals(written(tmp_path / "b.txt", text).tables.summary)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "torch"])
def test_several_reports_of_one_file_are_all_read(tmp_path: Path, name: str) -> None:
    text = LAYOUTS[name](ROWS)
    trace = written(tmp_path / "a.txt", f"## batch 1\n{text}\n## batch 2\n{text}")
    once = written(tmp_path / "b.txt", text)
    assert trace.tables.summary.height == 2 * once.tables.summary.height
    assert trace.tables.summary["total_ns"].sum() == 2 * once.tables.summary["total_ns"].sum()
    assert problems(trace) == []


# Two spaces separate columns, and a name of letters and digits alone may be a call.
NAMES = st.from_regex(
    r"(?:void )?[a-z]{2,8}(?:::[a-z_]{1,9}){0,2}<(?:[a-z]{1,6}, ){0,3}int=[0-9]{1,3}>"
    r"\((?:float const \*(?:, int)?)?\)",
    fullmatch=True,
)
KERNELS = st.builds(Row, NAMES, st.integers(1, 10**9), st.integers(1, 10**13))


@pytest.mark.exhaustive(after=4)
@pytest.mark.parametrize("name", LAYOUTS)
@settings(max_examples=10)  # each is written and read, and a dozen kernels has all kinds
@given(rows=st.lists(KERNELS, min_size=1, max_size=12, unique_by=lambda row: row.name))
def test_any_kernels_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[Row]
) -> None:
    trace = written(tmp_path_factory.mktemp("any") / "a.txt", LAYOUTS[name](rows))
    expect(trace, rows, name)
    assert "malformed" not in trace.tables.ledger["reason"]


def test_mxnet_prints_operators_and_memory(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.txt", writing.mxnet_table([Row("Convolution", 4, 52_000)]))
    assert trace.meta.format == "mxnet"
    assert trace.tables.summary.select("name", "kind", "calls", "total_ns").rows() == [
        ("Convolution", "op", 4, 52_000)
    ]


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("CopyCPU2GPU", "HtoD"),
        ("CopyGPU2CPU", "DtoH"),
        ("CopyGPU2GPU", "DtoD"),
        ("SyncCopyGPU2CPU", "DtoH"),
        ("_copyto_GPU2GPU", "DtoD"),
    ],
)
def test_copies_of_mxnet_have_their_direction(tmp_path: Path, name: str, direction: str) -> None:
    rows = [Row("_backward_copy", 2, 180_000), Row("CopyCPU2CPU", 1, 1_000), Row(name, 4, 430_000)]
    trace = written(tmp_path / "a.txt", writing.mxnet_table(rows))
    assert trace.tables.summary["kind"].to_list() == ["op", "op", "memcpy"]
    copies = trace.transfers().frame
    assert copies.select("direction", "count", "time_ns").rows() == [(direction, 4, 430_000)]


def test_old_versions_of_mxnet_print_memory_in_columns_of_time(tmp_path: Path) -> None:
    """MXNet 1.2: "Note that counter items are counter values and not time units." """
    times = "Time (ms)    Min Time (ms)    Max Time (ms)    Avg Time (ms)"
    storage = f"""\
Device Storage
=================
Name                          Total Count        {times}
----                          -----------        ---------    -------------
Memory: cpu/0                          31        2048.0000           0.0000        1536.0     7.0

"""
    text = storage + writing.mxnet_table([Row("Convolution", 4, 52_000)])
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.select("name", "total_ns").rows() == [("Convolution", 52_000)]
    assert trace.tables.ledger.filter(pl.col("reason") == "counter")["count"].sum() == 2
    assert "several_reports" not in trace.tables.ledger["reason"].to_list()


def test_torch_counts_each_kernel_once(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.txt", writing.torch_table(ROWS))
    kinds = whole.tables.summary.filter("counted")["kind"].unique().cast(pl.String).sort()
    assert kinds.to_list() == ["kernel", "memcpy", "memset"]
    assert whole.meta.properties["printed_total_ns"] == 102_464_000
    assert problems(whole) == []
    # Of the rows that are shown, operators have more of the time.
    cut = written(tmp_path / "b.txt", writing.torch_table(ROWS, limit=1))
    assert cut.tables.summary.select("name", "counted").rows() == [("aten::operator_0", True)]
    (detail,) = cut.tables.ledger.filter(pl.col("reason") == "cut_table")["detail"]
    assert detail == "rows with 11.0 % of the GPU time not printed"


@pytest.mark.parametrize("device", ["XPU", "MTIA", "NPU", "PRIVATEUSEONE"])
def test_torch_prints_the_name_of_any_device(tmp_path: Path, device: str) -> None:
    cuda = writing.torch_table(ROWS)
    trace = written(tmp_path / "a.txt", re.sub("CUDA(?! mem)", device, cuda))
    known = written(tmp_path / "b.txt", cuda)
    assert trace.tables.summary.equals(known.tables.summary)
    assert not trace.on_cpu
    assert trace.meta.properties["printed_total_ns"] == 102_464_000


def test_torch_prints_overloads_in_a_column(tmp_path: Path) -> None:
    lines = writing.torch_table(ROWS).splitlines()
    width = len(lines[0].split()[0])
    overloads = iter(["-" * 13, "Overload Name", "-" * 13, "Tensor", "", "out", *[""] * 20])
    wide = "\n".join(
        f"{line[:width]}  {next(overloads):>13}{line[width:]}" if "time total" not in line else line
        for line in lines
    )
    trace = written(tmp_path / "a.txt", wide)
    assert trace.tables.summary.equals(written(tmp_path / "b.txt", "\n".join(lines)).tables.summary)
    assert problems(trace) == []


def test_the_annotation_of_the_device_is_known_without_that_of_the_host(tmp_path: Path) -> None:
    text = writing.torch_table(ROWS)
    kernel = next(line for line in text.splitlines() if "volta_sgemm" in line)
    for name, milliseconds, share in (("forward", 150, "146.39%"), ("loss", 5, "4.88%")):
        row = kernel.replace("volta_sgemm_128x64_nn", f"{name:>21}")
        row = row.replace("4.271ms", f"{milliseconds}.000ms").replace("4.17%", share)
        trace = written(tmp_path / f"{name}.txt", text.replace(kernel, f"{row}\n{kernel}"))
        kernels = [one[0] for one in found(trace, "kernel")]
        assert kernels == [row.name for row in ROWS if row.kind == "kernel"]
        assert problems(trace) == []


def test_a_table_of_the_cpu_is_of_the_cpu(tmp_path: Path) -> None:
    text = """\
Name                Self CPU %      Self CPU    # of Calls
aten::mkldnn_convolution  73.72%       19.054s            20
aten::add_           0.52%     135.182ms            28
Self CPU time total: 25.848s
"""
    trace = written(tmp_path / "a.txt", text)
    assert trace.on_cpu
    assert trace.tables.summary["total_ns"].to_list() == [19_054_000_000, 135_182_000]


def test_a_table_without_time_of_the_device_is_of_the_cpu(tmp_path: Path) -> None:
    text = """\
Name           Self CPU %    Self CPU   CPU total %     CPU total     Self CUDA   Self CUDA %    # of Calls
aten::addmm        73.72%    19.054ms        80.00%      20.000ms       0.000us           NaN            20
aten::add_          0.52%   135.182us         0.52%     135.182us       0.000us           NaN            28
Self CPU time total: 25.848ms
Self CUDA time total: 0.000us
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    assert trace.on_cpu
    assert trace.tables.summary["total_ns"].to_list() == [19_054_000, 135_182]
    detail = "rows with 25.8 % of the CPU time not printed"
    assert trace.tables.ledger.filter(reason="cut_table")["detail"].to_list() == [detail]
    whole = written(tmp_path / "b.txt", text.replace("25.848ms", "19.189ms"))
    assert problems(whole) == []


def test_a_time_below_zero_is_a_note(tmp_path: Path) -> None:
    """The time of an operator's children may exceed its own."""
    text = """\
Name                Self CPU %      Self CPU    # of Calls
aten::mul_              -2.50%     -25.000us             1
aten::add_             102.50%       1.025ms            28
Self CPU time total: 1.000ms
"""
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary["total_ns"].to_list() == [None, 1_025_000]
    assert problems(trace) == []
    lost = trace.tables.ledger.filter(reason="lost_field").select("severity", "count", "detail")
    assert lost.rows() == [("note", 1, "times below 0, or too large")]


def test_reports_that_are_added_up_are_a_note(tmp_path: Path) -> None:
    one = writing.nvprof_text(writing.ROWS)
    other = re.sub("==([0-9]+)==", "==77==", one)
    for number, (text, notes) in enumerate(
        (
            (one, []),
            (one + other, [(2, "of 2 processes")]),
            (writing.nsys_2023(writing.ROWS) * 3, [(3, None)]),
        )
    ):
        path = tmp_path / f"{number}.txt"
        path.write_text(text)
        ledger = read(path, silent).tables.ledger.filter(pl.col("reason") == "several_reports")
        assert ledger.select("count", "detail").rows() == notes


@pytest.mark.parametrize(
    ("left_out", "lost"), [("volta_sgemm", "4.2 %"), ("void cudnn", "89.0 %"), ("memcpy", "6.8 %")]
)
@pytest.mark.parametrize("name", ["nvprof", "nvprof CSV", "nsys 2023", "torch"])
def test_a_cut_table_is_read_and_the_loss_is_said(
    tmp_path: Path, name: str, left_out: str, lost: str
) -> None:
    lines = LAYOUTS[name](ROWS).splitlines()
    kept = [
        line if left_out not in line and "operator" not in line else "..."
        for line in lines
        if "GPU activities:" not in line or left_out not in line
    ]
    trace = written(tmp_path / "a.txt", "\n".join(kept))
    cut = trace.tables.ledger.filter(pl.col("reason") == "cut_table")
    assert cut["severity"].to_list() == ["problem"]
    if not name.startswith("nsys"):
        assert cut["detail"].to_list() == [f"rows with {lost} of the GPU time not printed"]


def test_a_row_that_breaks_off_is_a_problem(tmp_path: Path) -> None:
    text = writing.nvprof_csv(ROWS)
    trace = written(tmp_path / "a.csv", text[: text.index('"[CUDA memset]"') - 3])
    assert ("malformed", 1) in problems(trace)
    text = writing.nvprof_old(ROWS[:3])
    trace = written(tmp_path / "b.txt", text[: text.rindex("volta") - 12])
    assert ("malformed", 1) in problems(trace)


@pytest.mark.parametrize(
    ("text", "unit", "whole", "value", "step"),
    [
        # A number with its unit has no groups: its comma is a decimal one.
        ("1,234ms", None, False, 1_234_000, 1_000),
        ("1,234", "ms", False, 1_234_000_000, 1_000_000),
        ("1.234", "ms", False, 1_234_000, 1_000),
        # Three digits behind a point are a group of a number without decimals.
        ("1.234", "ns", True, 1_234, 1),
        ("1.234e+06", "ns", True, 1_234_000, 1_000),
        ("1,234e+06", "ns", False, 1_234_000, 1_000),
    ],
)
def test_a_comma_is_a_decimal_one_or_between_groups(
    text: str, unit: str | None, whole: bool, value: int, step: int
) -> None:
    assert quantity(text, TIME, unit, whole=whole) == Quantity(value, step)


def test_few_digits_are_a_note_with_what_they_cost(tmp_path: Path) -> None:
    rows = [Row("k<int=1>()", 427_000_000, 45_028_000_000)]
    text = writing.nvprof_old(rows).replace("427000000", "4.27e+08")
    trace = written(tmp_path / "a.txt", text)
    notes = trace.tables.ledger.filter(pl.col("reason") == "few_digits")
    assert notes.select("severity", "count", "detail").rows() == [
        ("note", 1, "total to 100,000 ns at worst, their sum to 50,000 ns"),
        ("note", 1, "calls to 1,000,000 calls at worst"),
    ]
    assert trace.tables.summary["calls"].to_list() == [427_000_000]


def test_what_is_not_printed_is_null(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.txt", writing.rocprof_csv(ROWS))
    for column in ("min_ns", "max_ns", "median_ns", "deviation_ns", "bytes", "device", "process"):
        assert trace.tables.summary[column].null_count() == trace.tables.summary.height, column


def test_sizes_of_copies_are_those_of_their_rows(tmp_path: Path) -> None:
    sizes = """\
CUDA Memory Operation Statistics (KiB)

   Total  Operations   Average   Minimum   Maximum  Name
--------  ----------  --------  --------  --------  ------------------
  1024.0          13      78.8     0.004     500.0  [CUDA memcpy HtoD]
"""
    trace = written(tmp_path / "a.txt", writing.nsys_2019(ROWS) + sizes)
    copies = trace.tables.summary.filter(pl.col("kind") == "memcpy")
    assert copies["bytes"].to_list() == [1024 * 1024]
    for unit, size in (("MiB", 1 << 20), ("GiB", 1 << 30)):
        text = writing.nsys_2019(ROWS) + sizes.replace("KiB", unit)
        copies = written(tmp_path / "a.txt", text).tables.summary
        assert copies.filter(pl.col("kind") == "memcpy")["bytes"].to_list() == [1024 * size]
    megabytes = """\
 Total (MB)  Count  Avg (MB)  Operation
      0.846     13     0.009  [CUDA memcpy HtoD]
"""
    trace = written(tmp_path / "b.txt", writing.nsys_2023(ROWS) + megabytes)
    copies = trace.tables.summary.filter(pl.col("kind") == "memcpy")
    assert copies["bytes"].to_list() == [846_000]
    assert ("bytes to 1,000 bytes at worst, their sum to 500 bytes",) in trace.tables.ledger.select(
        "detail"
    ).rows()
    # 0.000 MB is less than its last digit.
    trace = written(tmp_path / "c.txt", writing.nsys_2023(ROWS) + megabytes.replace("846", "000"))
    assert trace.tables.summary.filter(pl.col("kind") == "memcpy")["bytes"].to_list() == [None]


@pytest.mark.parametrize("groups", [".", "\u202f", "\u00a0", "", " "])
def test_sizes_and_times_in_a_locale_with_a_decimal_comma(tmp_path: Path, groups: str) -> None:
    text = f"""\
 Time (%)  Total Time (\u03bcs)  Count  Avg (\u03bcs)  Operation
     98,9      1{groups}956,100     13    150,469  [CUDA memcpy HtoD]
      1,1             21,477      2     10,739  [CUDA memcpy DtoH]

 Total (MB)  Count  Avg (MB)  Operation
    115,606     13     8,893  [CUDA memcpy HtoD]
      0,846      2     0,423  [CUDA memcpy DtoH]
"""
    copies = written(tmp_path / "a.txt", text).tables.summary
    assert copies.select("calls", "total_ns", "mean_ns", "bytes").rows() == [
        (13, 1_956_100, 150_469, 115_606_000),
        (2, 21_477, 10_739, 846_000),
    ]
    # With a decimal point the same digits are groups.
    point = written(tmp_path / "b.txt", text.replace("98,9", "98.9").replace("1,1 ", "1.1 "))
    assert point.tables.summary["total_ns"].to_list()[1] == 21_477_000


def test_ranges_and_calls_of_the_system_are_no_work(tmp_path: Path) -> None:
    text = """\
[3/8] Executing 'nvtx_sum' stats report
 Time (%)  Total Time (ns)  Instances  Avg (ns)  Style    Range
     95.0        3,481,709          1  3,481.0   PushPop  forward
[4/8] Executing 'osrt_sum' stats report
 Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name
     67.3      335,987,431          2  167,993   sem_wait
"""
    trace = written(tmp_path / "a.txt", text + writing.nsys_2023(ROWS))
    expect(trace, ROWS, "nsys 2023")
    left_out = trace.tables.ledger.filter(pl.col("severity") == "note")
    assert {"repeated", "system_call"} <= {*left_out["reason"]}


OF_THE_HOST = """\
 ** MPI Event Summary (mpi_event_sum):

 Time (%)  Total Time (ns)  Instances   Avg (ns)    Source       Name
 --------  ---------------  ---------  -----------  -----------  -------------
     98.4      300,000,000          1  300,000,000  other        MPI_Init
      1.6        5,000,000         44      113,636  collectives  MPI_Allreduce

 ** OpenMP Summary (openmp_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)  Name
 --------  ---------------  -----  --------  --------
    100.0        2,000,000     10   200,000  Parallel

 ** OpenACC Summary (openacc_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)  Name
 --------  ---------------  -----  --------  ------------
    100.0        1,000,000     10   100,000  Wait@main.c:7

 ** Unified Memory Totals Summary (um_total_sum):

 Total HtoD Migration Size (MB)  Total DtoH Migration Size (MB)  Total CPU Page Faults
 ------------------------------  ------------------------------  ---------------------
                          1.000                           2.000                     10
"""


def test_mpi_openmp_and_openacc_are_no_kernels(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.txt", writing.nsys_2023(ROWS) + OF_THE_HOST)
    expect(trace, ROWS, "nsys 2023")
    assert problems(trace) == []
    left_out = trace.tables.ledger.filter(pl.col("reason") == "unknown_category")
    assert left_out.select("count", "detail").rows() == [(4, "MPI, OpenMP and OpenACC")]
    assert "several_reports" not in trace.tables.ledger["reason"].to_list()


def test_a_report_with_other_options_repeats_its_kernels(tmp_path: Path) -> None:
    text = writing.nsys_2023(ROWS)
    kernels = text[text.index("[4/8] Executing 'cuda_gpu_kern_sum'") :].partition("\n[")[0]
    base = kernels.replace("'cuda_gpu_kern_sum'", "'cuda_gpu_kern_sum:base'")
    trace = written(tmp_path / "a.txt", f"{text}{base}\n")
    expect(trace, ROWS, "nsys 2023")
    repeated = trace.tables.ledger.filter(pl.col("reason") == "repeated")
    assert "the same report in another form" in repeated["detail"].to_list()
    assert "several_reports" not in trace.tables.ledger["reason"].to_list()
    twice = written(tmp_path / "b.txt", f"{text}{kernels}\n")
    assert "several_reports" in twice.tables.ledger["reason"].to_list()


@pytest.mark.parametrize("names", ["cuda_{}_sum", "{}sum"])
def test_the_files_of_one_run_of_nsys_stats_are_one_run(
    tmp_path: Path, run: Run, names: str
) -> None:
    """``nsys stats --format csv --output NAME`` writes a file for each report."""
    reports = {"api": "call", "gpu_kern": "kernel", "gpu_mem_time": "memcpy"}
    for report, kind in reports.items():
        kinds = (kind, "memset") if kind == "memcpy" else (kind,)
        part = writing.nsys_csv([row for row in ROWS if row.kind in kinds])
        name = names.format(report if "_" in names else report.replace("_", ""))
        name = name.replace("apisum", "cudaapisum")
        (tmp_path / f"run_{name}.csv").write_text(part.partition("\n")[2])
    trace = traceana.open(tmp_path)
    expect(trace, ROWS, "nsys CSV")
    assert problems(trace) == []
    assert "several_reports" not in trace.tables.ledger["reason"].to_list()
    assert run("kernels", tmp_path).exit_code == ExitCode.OK
    # Reports of several runs are not added up.
    (tmp_path / "other_cuda_gpu_kern_sum.csv").write_text(part.partition("\n")[2])
    assert run("kernels", tmp_path).exit_code == ExitCode.UNRECOGNIZED_FORMAT


def test_another_report_ends_a_table(tmp_path: Path) -> None:
    text = writing.nsys_csv(ROWS)
    text += "PID,TID,DevId,Count,QCount,AAvg (ns),AMed (ns),QAvg (ns),Kernel Name\n"
    text += '7,7,0,104,100,"9,000",9000,12000,"void k<int>(float *)"\n'
    trace = written(tmp_path / "a.csv", text)
    expect(trace, ROWS, "nsys CSV")
    assert problems(trace) == []


def test_kernels_by_grid_have_their_names(tmp_path: Path) -> None:
    text = """\
 Time (%)  Total Time (ns)  Instances  Avg (ns)      GridXYZ         BlockXYZ     Name
 --------  ---------------  ---------  --------  --------------  --------------  ----
     93.0       91,234,567        104   877,255     8    1    1   128    1    1  void k<int>(int)
      7.0        6,957,100         13   535,161  1024 2048    1  1024    1    1  gemm
"""
    kernels = [("void k<int>(int)", 104, 91_234_567, 1), ("gemm", 13, 6_957_100, 1)]
    assert found(written(tmp_path / "a.txt", text), "kernel") == kernels
    # Kernels by grid repeat those by name, whichever is first, and one report has no copies.
    both = written(tmp_path / "b.txt", text + writing.nsys_2023(ROWS))
    expect(both, ROWS, "nsys 2023")


def test_ranges_of_nvprof_repeat_kernels(tmp_path: Path) -> None:
    text = writing.nvprof_text(ROWS)
    ranges = text.split("Profiling result:\n")[1]
    whole = f'{text}\n==308== NVTX result:\n==308==   Thread "x" (id = 3)\n{ranges}'
    trace = written(tmp_path / "a.txt", whole)
    expect(trace, ROWS, "nvprof")


def test_summaries_per_device_have_it(tmp_path: Path) -> None:
    text = writing.nvprof_old(ROWS[:2])
    both = "".join(
        text.replace("Profiling result:\n", f'Profiling result:\n==308== Device "{name}"\n')
        for name in ("Tesla K80 (0)", "Tesla K80 (1)")
    )
    trace = written(tmp_path / "a.txt", both)
    assert trace.tables.summary["device"].to_list() == [0, 0, 1, 1]
    assert trace.tables.devices.select("device", "name").rows() == [
        (0, "Tesla K80"),
        (1, "Tesla K80"),
    ]


def test_a_column_of_devices_is_that_of_their_rows(tmp_path: Path) -> None:
    text = """\
"Device","Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,,%,ms,,us,us,us,
"Tesla K80 (0)","GPU activities",100.000000,9.000000,9,1000.000000,1.000000,2.000000,"k(int)"
"Tesla K80 (1)","GPU activities",100.000000,8.000000,8,1000.000000,1.000000,2.000000,"k(int)"
"""
    trace = written(tmp_path / "a.csv", text)
    assert trace.tables.summary.select("device", "calls").rows() == [(0, 9), (1, 8)]
    assert trace.tables.devices.select("device", "name").rows() == [
        (0, "Tesla K80"),
        (1, "Tesla K80"),
    ]


@pytest.mark.parametrize(("unit", "ns"), [("ms", 10**6), ("s", 10**9)])
def test_units_below_the_titles_are_those_of_their_columns(
    tmp_path: Path, unit: str, ns: int
) -> None:
    """``nvprof --normalized-time-unit`` prints one unit for all times, below their titles."""
    text = f"""\
==308== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
                        %  {unit:>8}            {unit:>8}  {unit:>8}  {unit:>8}
 GPU activities:    91.30  1.83e+03         2  916.6507  665.2411  1.17e+03  k<int, 2>(float*, int)
                     8.70  174.5000         2  69.02481  60.35802  77.69160  [CUDA memcpy DtoH]
      API calls:   100.00  2.00e+03         3  10.00000  1.06e-03  16.30650  cudaMemcpy
"""
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.select(
        "name", "kind", "total_ns", "precision_ns", "mean_ns"
    ).rows() == [
        ("k<int, 2>(float*, int)", "kernel", 1830 * ns, 10 * ns, 9166507 * ns // 10**4),
        ("[CUDA memcpy DtoH]", "memcpy", 1745 * ns // 10, ns // 10**4, 6902481 * ns // 10**5),
        ("cudaMemcpy", "call", 2000 * ns, 10 * ns, 10 * ns),
    ]
    assert problems(trace) == []


def test_other_sections_of_nvprof_are_no_work(tmp_path: Path) -> None:
    header = writing.nvprof_old(ROWS[:1]).splitlines()[4]
    text = f"""{writing.nvprof_old(ROWS)}
==308== OpenACC (excl):
{header}
100.00%  90.000ms        10  9.0000ms  1.0000us  10.000ms  acc_wait@main.c:10

==308== Dependency Analysis:
Critical path(%)  Critical path  Waiting time  Name
           92.06%      4.061817s           0ns  void k(long)
            4.54%      200.30ms            1ns  cudaMalloc
"""
    assert "Time(%)" in header
    trace = written(tmp_path / "a.txt", text)
    expect(trace, ROWS, "nvprof before CUDA 9")
    assert problems(trace) == []


def test_times_without_a_unit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="without a unit"):
        written(tmp_path / "a.csv", writing.nvprof_csv(ROWS).replace(",%,ms,,us,us,us,\n", ""))


def test_mangled_and_cut_names_are_kept(tmp_path: Path) -> None:
    rows = [
        Row("_ZN2at6native13reduce_kernelILi512ELi1EEEvi", 3, 1000),
        Row("void at::native::elementwise_kernel<128, 2, at::nati...", 5, 900),
        Row("void", 1, 800),
    ]
    trace = written(tmp_path / "a.txt", writing.nsys_2023(rows))
    assert [one[0] for one in found(trace, "kernel")] == [row.name for row in rows]
    names = trace.tables.names["name"].gather(trace.tables.summary["name_id"].to_list()).to_list()
    assert names == ["void at::native::reduce_kernel<512, 1>(int)", rows[1].name, "void"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("==7== Profiling result:\nNo kernels were profiled.\n", "No kernels were profiled"),
        ("==7== NVPROF is profiling\n======== Error: Application received signal 9\n", "signal 9"),
        ("Time(%)      Time     Calls       Avg       Min       Max  Name\n", "no rows"),
    ],
)
def test_without_rows_the_reason_is_said(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(NotATraceError, match=why):
        written(tmp_path / "a.txt", text)


@pytest.mark.parametrize(
    "line",
    [" " * 120_000, "." * 120_000 + "x", "1" * 120_000, "Time(%)  Time  Calls " + "x " * 60_000,
     '"' * 120_000, "12.5% 1ms " * 12_000, "Type " * 24_000, "(" * 120_000, "A " * 60_000,
     "==" * 60_000, "1," * 60_000, "Total " * 20_000, "Name  " * 20_000],
    ids=lambda line: line[:12],
)  # fmt: skip
def test_long_lines_take_no_long_time(tmp_path: Path, line: str) -> None:
    text = writing.nvprof_text(ROWS)
    begin = time.process_time()
    trace = written(tmp_path / "a.txt", f"{text}{line}\n{text}{line}\n")
    assert time.process_time() - begin < 5
    assert trace.tables.summary.height == 2 * len(ROWS)


def columns_of(text: str) -> list[list[str]]:
    """Return the cells of nvprof's or nsys's table without its rulers and sections."""
    lines = [line for line in text.splitlines() if "  " in line.strip() and "---" not in line]
    return [re.split(r" {2,}", line.strip()) for line in lines]


@pytest.mark.parametrize(
    "between",
    [" | ", "\t", " ", ";"],
    ids=["markdown", "tabs", "single spaces", "semicolons"],
)
@pytest.mark.parametrize("name", ["nvprof before CUDA 9", "nsys 2023"])
def test_other_separators_are_read(tmp_path: Path, name: str, between: str) -> None:
    rows = [row for row in ROWS if row.kind != "call"]
    lines = [between.join(cells) for cells in columns_of(LAYOUTS[name](rows))]
    if between == " | ":
        lines = [f"| {line} |" for line in lines]
        lines.insert(1, "|---|---:|---:|")
    trace = written(tmp_path / "a.md", "\n".join([*lines, ""]))
    expect(trace, rows, name)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["nvprof", "nsys CSV", "torch"])
def test_other_encodings_are_read(tmp_path: Path, name: str, encoding: str) -> None:
    text = LAYOUTS[name](ROWS)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    file = tmp_path / "a.txt"
    file.write_bytes((mark + text).encode(encoding))
    expect(with_methods(read(file, silent)), ROWS, name)


def test_a_summary_of_rocprofv3_has_its_domains(tmp_path: Path) -> None:
    text = """\
ROCPROFV3 SUMMARY:

|             NAME             |     DOMAIN      | CALLS | DURATION (nsec) | AVERAGE (nsec) | PERCENT (INC) |
|------------------------------|-----------------|-------|-----------------|----------------|---------------|
| hipLaunchKernel              | HIP_API         |     4 |            9000 |   2.250000e+03 |     60.000000 |
| Cijk_Alik_Bljk_SB_MT64x64x32 | KERNEL_DISPATCH |     3 |            6000 |   2.000000e+03 |     40.000000 |
| MEMORY_COPY_HOST_TO_DEVICE   | MEMORY_COPY     |     2 |            1000 |   5.000000e+02 |     10.000000 |
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.select("name", "kind", "calls", "total_ns", "mean_ns").rows() == [
        ("hipLaunchKernel", "call", 4, 9000, 2250),
        ("Cijk_Alik_Bljk_SB_MT64x64x32", "kernel", 3, 6000, 2000),
        ("MEMORY_COPY_HOST_TO_DEVICE", "memcpy", 2, 1000, 500),
    ]


def test_summaries_of_domains_repeat_that_of_all(tmp_path: Path) -> None:
    """``rocprofv3 --summary --summary-per-domain``."""
    header = (
        "| NAME | DOMAIN | CALLS | DURATION (nsec) | AVERAGE (nsec) | PERCENT (INC) |\n|--|--|\n"
    )
    kernels = "| void k<int>(float*) | KERNEL_DISPATCH | 3 | 6000 | 2.000e+03 | 60.000000 |\n"
    memory = (
        "| MEMORY_ALLOCATION_ALLOCATE | MEMORY_ALLOCATION | 2 | 4000 | 2.000e+03 | 40.000000 |\n"
    )
    by_domain = f"ROCPROFV3 KERNEL_DISPATCH SUMMARY:\n{header}" + kernels.replace("60.0", "100.0")
    by_domain += f"ROCPROFV3 MEMORY_ALLOCATION SUMMARY:\n{header}{memory.replace('40.0', '100.0')}"
    for text in (by_domain, f"{by_domain}ROCPROFV3 SUMMARY:\n{header}{kernels}{memory}"):
        trace = written(tmp_path / "a.txt", text)
        assert found(trace, "kernel", "call") == [("void k<int>(float*)", 3, 6000, 1)]
        assert problems(trace) == []
        assert "several_reports" not in trace.tables.ledger["reason"].to_list()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("MEMORY_ALLOCATION_ALLOCATE", []),
        ("SCRATCH_MEMORY_ALLOC", []),
        ("ncclAllReduce", ["call"]),
        ("roctxRangePushA", ["call"]),
        ("ncclDevKernel_Generic_4", ["kernel"]),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", ["kernel"]),
    ],
)
def test_rows_of_rocprofv3_without_a_domain(tmp_path: Path, name: str, kinds: list[str]) -> None:
    text = (
        f'"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"{name}",2,5000,2500,100.0\n'
    )
    trace = written(tmp_path / "a_stats.csv", text)
    assert trace.tables.summary["kind"].cast(pl.String).to_list() == kinds


def test_kernels_and_copies_of_one_table_repeat_those_of_two(tmp_path: Path) -> None:
    text = """\
 Time (%)  Total Time (ns)  Instances  Avg (ns)   Category    Operation
     93.0       91,234,567        104   877,255  CUDA_KERNEL  void k<int=2>(float *)
      7.0        6,957,100         13   535,161  MEMORY_OPER  [CUDA memcpy HtoD]
"""
    alone = written(tmp_path / "a.txt", text)
    assert alone.tables.summary.select("kind", "calls").rows() == [("kernel", 104), ("memcpy", 13)]
    both = written(tmp_path / "b.txt", writing.nsys_2023(ROWS) + text)
    expect(both, ROWS, "nsys 2023")


SIZES = """\
Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
16.777,13,1.291,1.291,1.291,1.291,0.000,[CUDA memcpy HtoD]
8.389,2,4.194,4.194,4.194,4.194,0.000,[CUDA memset]
"""


def test_sizes_may_stand_before_the_times(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.csv", SIZES + "\n" + writing.nsys_csv(ROWS))
    work = trace.tables.summary.filter(pl.col("kind").is_in(["memcpy", "memset"]))
    assert work.select("calls", "total_ns", "bytes").rows() == [
        (13, 6_957_100, 16_777_000),
        (2, 1_344, 8_389_000),
    ]
    assert problems(trace) == []


def test_sizes_alone_have_no_time(tmp_path: Path, run: Run) -> None:
    trace = written(tmp_path / "a.csv", SIZES)
    assert trace.tables.summary.select("kind", "calls", "total_ns", "bytes").rows() == [
        ("memcpy", 13, None, 16_777_000),
        ("memset", 2, None, 8_389_000),
    ]
    assert problems(trace) == []
    assert trace.transfers().frame.select("count", "bytes", "time_ns", "bytes_per_s").rows() == [
        (13, 16_777_000, None, None)
    ]
    for command in ("report", "transfers", "info"):
        shown = run(command, str(tmp_path / "a.csv"))
        assert shown.exit_code == 0
        assert " 0 ns" not in shown.stdout.split("GPU time by class")[0]


def test_kernels_of_two_tables_by_category_count_once(tmp_path: Path) -> None:
    kernels = """\
 Time (%)  Total Time (ns)  Instances   Avg (ns)   Category    Operation
     93.0       91,234,567        104      877,255  CUDA_KERNEL  void k<int=2>(float *)
      7.0        6,957,100         13      535,161  MEMORY_OPER  [CUDA memcpy HtoD]
"""
    for text in (kernels + OF_ALL, OF_ALL + kernels):
        trace = written(tmp_path / "a.txt", text)
        assert sorted(trace.tables.summary.select("kind", "calls").rows()) == [
            ("call", 3),
            ("kernel", 104),
            ("memcpy", 13),
        ]
        assert problems(trace) == []


OF_ALL = """\
 Time (%)  Total Time (ns)  Instances   Avg (ns)   Category    Operation
     93.9    1,500,000,001          3  500,000,000  CUDA_API     cudaFree
      5.7       91,234,567        104      877,255  CUDA_KERNEL  void k<int=2>(float *)
      0.4        6,957,100         13      535,161  MEMORY_OPER  [CUDA memcpy HtoD]
"""


def test_shares_of_calls_and_kernels_in_one_table_are_of_both(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.txt", OF_ALL)
    assert trace.tables.summary.select("kind", "calls").rows() == [
        ("call", 3),
        ("kernel", 104),
        ("memcpy", 13),
    ]
    assert problems(trace) == []
    cut = written(tmp_path / "b.txt", "".join(OF_ALL.splitlines(keepends=True)[:-2]))
    assert problems(cut) == []
    cut = written(tmp_path / "c.txt", OF_ALL.replace(OF_ALL.splitlines()[1] + "\n", ""))
    assert problems(cut) == [("cut_table", 1)]


def test_what_only_one_report_has_is_kept(tmp_path: Path) -> None:
    kernels = writing.nsys_2023([row for row in ROWS if row.kind == "kernel"])
    trace = written(tmp_path / "a.txt", kernels + OF_ALL)
    assert trace.tables.summary.select("name", "kind").rows() == [
        (ROWS[0].name, "kernel"),
        (ROWS[2].name, "kernel"),
        ("cudaFree", "call"),
        ("[CUDA memcpy HtoD]", "memcpy"),
    ]
    by_grid = """\
 Time (%)  Total Time (ns)  Instances  Avg (ns)     GridXYZ        BlockXYZ     Name
    100.0       91,234,567        104   877,255     8    1    1   128    1    1  gemm
"""
    trace = written(tmp_path / "b.txt", OF_ALL + by_grid)
    assert [one[1] for one in found(trace, "kernel")] == [104]


def test_old_tables_of_torch_have_no_time_of_operators_alone(tmp_path: Path, run: Run) -> None:
    text = """\
-----------------------  ---------------  ---------------  ---------------  ---------------  ---------------
Name                            CPU time        CUDA time            Calls        CPU total       CUDA total
-----------------------  ---------------  ---------------  ---------------  ---------------  ---------------
convolution                    120.355us        130.100us                4        481.420us        520.400us
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.select("name", "kind", "calls", "total_ns").rows() == [
        ("convolution", "op", 4, None)
    ]
    shown = run("report", str(tmp_path / "a.txt"))
    assert shown.exit_code == ExitCode.EMPTY_SELECTION
    assert "PyTorch 1.0 and older" in shown.stdout


def test_tables_of_torch_without_own_times_of_the_device_are_of_the_cpu(
    tmp_path: Path, run: Run
) -> None:
    text = """\
Name          Self CPU total %   Self CPU total      CPU total %        CPU total     CPU time avg     CUDA total %       CUDA total    CUDA time avg  Number of Calls
lstm                     0.44%          2.502ms            7.16%         40.790ms         40.790ms           50.00%         40.000ms         40.000ms                1
mm                       6.72%         38.288ms            6.72%         38.288ms         19.144ms           50.00%         40.000ms         20.000ms                2
Self CPU time total: 40.790ms
CUDA time total: 80.000ms
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    assert trace.on_cpu
    assert trace.tables.summary.select("name", "calls", "total_ns").rows() == [
        ("lstm", 1, 2_502_000),
        ("mm", 2, 38_288_000),
    ]
    assert problems(trace) == []
    assert trace.tables.ledger.filter(reason="lost_field")["count"].to_list() == [2]
    assert "include inner operators" in run("report", str(tmp_path / "a.txt")).stdout


@pytest.mark.parametrize("cut", range(2, 97))
def test_a_row_of_torch_that_is_cut_has_no_other_columns_numbers(tmp_path: Path, cut: int) -> None:
    text = """\
Name        Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg     Self CUDA   Self CUDA %    CUDA total  CUDA time avg    # of Calls
aten::mm        94.47%      65.799ms        95.46%      66.492ms      66.492ms     829.920us        95.24%     829.920us     829.920us             1
aten::add        5.53%       3.853ms         5.53%       3.853ms       1.927ms      41.440us         4.76%      41.440us      20.720us             2
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text[: -cut - 1])
    assert trace.tables.summary.select("name", "total_ns").rows() == [("aten::mm", 829_920)]
    assert problems(trace) == [("malformed", 1)]


@pytest.mark.parametrize("cut", range(2, 60))
def test_memory_of_a_cut_row_of_torch_is_no_number_of_calls(tmp_path: Path, cut: int) -> None:
    text = """\
Name        Self CPU %      Self CPU     Self CUDA   Self CUDA %    CUDA total  CUDA time avg       CPU Mem  Self CPU Mem      CUDA Mem  Self CUDA Mem    # of Calls
aten::mm        94.47%      65.799ms     829.920us        95.24%     829.920us     829.920us           0 b           0 b       2.74 Gb           0 b             1
aten::add        5.53%       3.853ms      41.440us         4.76%      41.440us      20.720us           0 b           0 b     128.00 Kb           0 b             2
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text[: -cut - 1])
    assert trace.tables.summary.select("name", "calls").rows() == [("aten::mm", 1)]
    assert problems(trace) == [("malformed", 1)]


@pytest.mark.parametrize("write", [writing.nvprof_text, writing.nvprof_csv, writing.nsys_2023])
def test_a_copy_whose_name_is_cut_is_no_kernel(
    tmp_path: Path, write: Callable[[Sequence[Row]], str]
) -> None:
    rows = [row for row in ROWS if row.kind != "call"]
    text = write(rows)
    whole = written(tmp_path / "a.txt", text)
    trace = written(tmp_path / "b.txt", text.replace("[CUDA memset]", "[CUDA mems"))
    assert trace.tables.summary.height == whole.tables.summary.height - 1
    assert ("malformed", 1) in problems(trace)


@pytest.mark.parametrize("share", ["Pct", "Percent"])
def test_the_kernels_of_rocm_compute_profiler_are_read(tmp_path: Path, share: str) -> None:
    """``pmc_kernel_top.csv`` of ``rocprof-compute`` (``omniperf``)."""
    text = f"""\
Kernel_Name,Count,Sum(ns),Mean(ns),Median(ns),{share}
"void k<int, 2>(float*, int) [clone .kd]",12,1200.0,100.0,99.5,75.0
gemm.kd,4,400.0,100.0,100.0,25.0
"""
    trace = written(tmp_path / "pmc_kernel_top.csv", text)
    assert trace.meta.format == "rocprof"
    assert trace.tables.summary.select("name", "kind", "calls", "total_ns", "mean_ns").rows() == [
        ("void k<int, 2>(float*, int)", "kernel", 12, 1200, 100),
        ("gemm", "kernel", 4, 400, 100),
    ]
    assert trace.tables.summary["share_percent"].to_list() == [75.0, 25.0]
    assert problems(trace) == []


def test_copies_of_xpu_have_their_direction(tmp_path: Path) -> None:
    text = """\
                                  Name    Self CPU %      Self CPU      Self XPU    Self XPU %    # of Calls
                           gemm_kernel         0.00%       0.000us     818.080us        95.00%             4
Memcpy M2D (MEMORY(Unknown) -> DEVICE)         0.00%       0.000us      41.440us         4.80%            13
                            Memcpy D2M         0.00%       0.000us       1.720us         0.20%             2
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    columns = ("kind", "copy_kind", "destination_memory", "calls")
    assert trace.tables.summary.select(columns).rows() == [
        ("kernel", None, None, 4),
        ("memcpy", "HtoD", "device", 13),
        ("memcpy", "DtoH", None, 2),
    ]


@pytest.mark.parametrize("mark", ["|", "\t"])
def test_a_type_that_stands_in_the_first_of_its_rows_alone(tmp_path: Path, mark: str) -> None:
    rows = [
        ["Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name"],
        [
            "GPU activities:",
            "60.00%",
            "6.0000ms",
            "3",
            "2.0000ms",
            "1.0000ms",
            "3.0000ms",
            "k(int)",
        ],
        ["", "40.00%", "4.0000ms", "2", "2.0000ms", "1.0000ms", "3.0000ms", "[CUDA memcpy HtoD]"],
        ["API calls:", "60.00%", "6.0000ms", "4", "1.5000ms", "1.0000ms", "3.0000ms", "cudaLaunch"],
        ["", "40.00%", "4.0000ms", "2", "2.0000ms", "1.0000ms", "3.0000ms", "cudaFree"],
    ]
    edge = mark if mark == "|" else ""
    text = "".join(f"{edge}{mark.join(cells)}{edge}\n" for cells in rows)
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.select("kind", "calls", "total_ns").rows() == [
        ("kernel", 3, 6_000_000),
        ("memcpy", 2, 4_000_000),
        ("call", 4, 6_000_000),
        ("call", 2, 4_000_000),
    ]
    assert problems(trace) == []


@pytest.mark.parametrize("write", [writing.torch_table, writing.rocpd_text])
def test_lines_of_the_program_between_rows_that_begin_with_the_name(
    tmp_path: Path, write: Callable[[Sequence[Row]], str]
) -> None:
    lines = ["iter 100  0.123  4.567", "GPU 0: 45C  98%  1200MB", "images/sec: 512.3  8.2"]
    rows = [row for row in ROWS if row.kind == "kernel"]
    text = write(rows)
    trace = written(tmp_path / "a.txt", text.replace("\n", "\n" + "\n".join(lines) + "\n"))
    whole = written(tmp_path / "b.txt", text)
    assert trace.tables.summary.equals(whole.tables.summary)
    assert problems(trace) == problems(whole)


@pytest.mark.parametrize(
    ("old", "new"), [("1.2345ms", "0e99ms"), ("==308==", "==" + 20 * "9" + "=="), ("104", "0e99")]
)
def test_numbers_that_no_column_holds_are_no_crash(tmp_path: Path, old: str, new: str) -> None:
    rows = [Row("gemm", 104, 1_234_500), *ROWS[1:]]
    text = writing.nvprof_text(rows)
    assert old in text
    trace = written(tmp_path / "a.txt", text.replace(old, new))
    assert "[CUDA memcpy HtoD]" in trace.tables.summary["name"].to_list()


@pytest.mark.parametrize("name", ["CUDA memcpy Unified", "CUDA Unified Memory memcpy"])
def test_migrations_of_unified_memory_have_their_direction(
    tmp_path: Path, run: Run, name: str
) -> None:
    sides = ("Host-to-Device", "HtoD"), ("Device-to-Host", "DtoH")
    rows = [Row(f"[{name} {side}]", 3, 9_000, "memcpy") for side, _ in sides]
    trace = written(tmp_path / "a.txt", writing.nsys_2023([*ROWS[:1], *rows]))
    copies = trace.tables.summary.filter(pl.col("kind") == "memcpy")
    columns = ("copy_kind", "source_memory", "destination_memory", "calls", "total_ns")
    assert copies.select(columns).rows() == [
        (direction, "managed", "managed", 3, 9_000) for _, direction in sides
    ]


@pytest.mark.parametrize("direction", ["DtoD", "PtoP"])
def test_copies_of_no_host_memory_have_their_time(tmp_path: Path, direction: str) -> None:
    rows = [Row(f"[CUDA memcpy {direction}]", 3, 9_000, "memcpy")]
    trace = written(tmp_path / "a.txt", writing.nsys_2023(rows))
    copies = trace.transfers().frame
    assert copies.select("direction", "count", "time_ns").rows() == [(direction, 3, 9_000)]


def test_calls_of_torch_have_the_time_of_the_host(tmp_path: Path) -> None:
    text = """\
                 Name    Self CPU %      Self CPU   CPU total %     CPU total     Self XPU    Self XPU %     XPU total    # of Calls
             aten::mm         1.00%       1.000ms         2.00%       2.000ms     30.000ms        75.00%      30.000ms             4
          gemm_kernel         0.00%       0.000us         0.00%       0.000us     30.000ms        75.00%      30.000ms             4
urEnqueueKernelLaunch        50.00%      50.000ms        50.00%      50.000ms     10.000ms        25.00%      10.000ms             7
       zeModuleCreate        40.00%      40.000ms        40.00%      40.000ms      0.000us         0.00%       0.000us             2
Self CPU time total: 100.000ms
Self XPU time total: 40.000ms
"""  # noqa: E501
    trace = written(tmp_path / "a.txt", text)
    calls = trace.tables.summary.filter(pl.col("kind") == "call")
    assert calls.select("name", "calls", "total_ns", "counted").rows() == [
        ("urEnqueueKernelLaunch", 7, 50_000_000, False),
        ("zeModuleCreate", 2, 40_000_000, False),
    ]


def of_operators(rows: Sequence[tuple[str, str, str, int]], *ends: str) -> str:
    """Return a table of torch of rows with name, times of the CPU and of CUDA, and calls."""
    lines = [
        f"{name:>20}         1.00%  {cpu:>12}     {cuda:>9}         1.00%  {calls:>12}"
        for name, cpu, cuda, calls in rows
    ]
    title = f"{'Name':>20}    Self CPU %      Self CPU     Self CUDA   Self CUDA %    # of Calls"
    return "\n".join([title, *lines, *ends, ""])


def test_operators_without_own_time_of_the_device_are_no_work(tmp_path: Path) -> None:
    text = of_operators(
        [("aten::linear", "5.000us", "0.000us", 4), ("aten::addmm", "9.000us", "8.000us", 4)]
    )
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary.filter("counted").select("name", "calls").rows() == [
        ("aten::addmm", 4)
    ]


ORDERS: list[tuple[str, str, str, int]] = [
    ("aten::addmm", "9.000us", "8.000us", 4),
    ("aten::mul", "7.000us", "6.125us", 4),
    ("aten::cat", "5.000us", "4.500us", 4),
    ("aten::add", "3.000us", "2.250us", 4),
]
SUMS = ("Self CPU time total: 24.000us", "Self CUDA time total: 20.875us")


@pytest.mark.parametrize("ends", [SUMS, SUMS[:1], ()])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_run_of_torch_in_two_orders_counts_once(
    tmp_path: Path, ends: tuple[str, ...], lost: int
) -> None:
    """``lost`` is the table whose sums were not pasted."""
    sums = [ends, ends]
    sums[lost] = ()
    first, second = of_operators(ORDERS[:3], *sums[0]), of_operators(ORDERS[:0:-1], *sums[1])
    trace = written(tmp_path / "a.txt", f"by CPU time\n{first}\nby CUDA time\n{second}")
    assert sorted(trace.tables.summary["name"]) == sorted(name for name, *_ in ORDERS)
    assert trace.tables.summary["total_ns"].sum() == 20_875
    repeated = trace.tables.ledger.filter(pl.col("reason") == "repeated")
    assert repeated.select("count", "detail").rows() == [(2, "the same run in another order")]
    assert trace.meta.events == trace.tables.summary.height + 2
    assert "several_reports" not in trace.tables.ledger["reason"].to_list()
    assert problems(trace) == []


def test_runs_of_torch_with_other_times_are_not_added_up(tmp_path: Path) -> None:
    other = [("aten::addmm", "9.000us", "8.125us", 4), *ORDERS[1:]]
    sums = (SUMS[0], "Self CUDA time total: 21.000us")
    text = of_operators(ORDERS, *SUMS) + of_operators(other, *sums)
    trace = written(tmp_path / "a.txt", text)
    assert trace.tables.summary["total_ns"].sum() == 20_875
    assert "other_run" in trace.tables.ledger["reason"].to_list()
    without = written(tmp_path / "b.txt", of_operators(ORDERS) + of_operators(other))
    assert without.tables.summary["total_ns"].sum() == 20_875


def test_pieces_of_a_table_of_torch_are_one_run(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.txt", of_operators(ORDERS[:2]) + of_operators(ORDERS[2:]))
    assert trace.tables.summary["total_ns"].sum() == 20_875
    assert "other_run" not in trace.tables.ledger["reason"].to_list()


@pytest.mark.parametrize("suffix", [" [clone .kd]", ".kd"])
def test_names_of_kernels_end_without_their_descriptor(tmp_path: Path, suffix: str) -> None:
    row = Row(f"void scale<float>(float*, int){suffix}", 3, 9_000)
    trace = written(tmp_path / "a.csv", writing.rocprof_csv([row]))
    assert trace.tables.summary["name"].to_list() == ["void scale<float>(float*, int)"]
    assert trace.tables.names["name"].to_list() == ["void scale<float>(float*, int)"]
