"""Counters in Nsight Compute's output, with known values."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.readers.ncu.writing import BEFORE, BEHIND, FACTS, details, facts, line, raw
from traceana.errors import CorruptError, NotATraceError, TraceanaError, UnknownFormatError
from traceana.readers import read
from traceana.readers.detect import detect
from traceana.readers.printed.ncu import factor, metrics_by_column
from traceana.timeline.work import why_no_work
from traceana.trace import Trace

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
TIME = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
ACTIVE = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
UNITS = {TIME: "usecond", READ: "Mbyte", WRITTEN: "byte", FFMA: "inst", ACTIVE: "%"}
LAUNCHES = [
    ("_Z4convIfEvPT_", {TIME: "1,234.56", READ: "1.50", WRITTEN: "64", FFMA: "1,024", ACTIVE: "0"}),
    ('say "hi", kernel', {TIME: "10", READ: "n/a", WRITTEN: "nan", FFMA: "", ACTIVE: "47.5"}),
]
Write = Callable[[Path, dict[str, str], list[tuple[str, dict[str, str]]]], Path]


def entries(trace: Trace) -> list[tuple[str, int, str]]:
    return [
        (row[0], row[1], row[2])
        for row in trace.tables.ledger.select("reason", "count", "detail").rows()
    ]


@pytest.mark.parametrize("write", [raw, details])
def test_both_pages_have_equal_values(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    assert detect(path).name == "ncu-csv"
    trace = read(path)
    columns = [
        "launch",
        "name",
        "process",
        "device",
        "context",
        "stream",
        "grid_x",
        "grid_y",
        "block_x",
        "duration",
        "dram_read_bytes",
        "dram_write_bytes",
        "dram_bytes",
        "fp32_fma",
        "fp32_add",
        "tensor_active_percent",
    ]
    place = (7, 0, 1, 7, 4, 2, 256)
    first = (1_234_560, 1_500_000, 64, 1_500_064, 1024, None, 0.0)
    second = (10_000, None, None, None, None, None, 47.5)
    assert trace.tables.counters.select(columns).rows() == [
        (0, "void conv<float>(float*)", *place, *first),
        (1, 'say "hi", kernel', *place, *second),
    ]
    assert (trace.meta.format, trace.meta.events) == ("ncu", 2)
    assert trace.tables.activities.is_empty()
    assert trace.tables.ledger.is_empty()
    assert "2 kernel launches with counters" in why_no_work(trace)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_ends_of_lines(tmp_path: Path, end: str) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_bytes(path.read_text().replace("\n", end).encode())
    assert read(path).tables.counters["duration"].to_list() == [1_234_560, 10_000]
    assert read(path).tables.counters["tensor_active_percent"].to_list() == [0.0, 47.5]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("write", [raw, details])
def test_other_encodings_are_read(tmp_path: Path, write: Write, encoding: str) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    known = read(path)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    for text in (path.read_text(), path.read_text().removeprefix(BEFORE)):
        path.write_bytes((mark + text).encode(encoding))
        assert read(path).tables.counters.equals(known.tables.counters)


@pytest.mark.parametrize("write", [raw, details])
def test_each_table_of_a_log_has_its_own_units(tmp_path: Path, write: Write) -> None:
    first = write(tmp_path / "a.csv", UNITS, LAUNCHES).read_text()
    other = ("other", {TIME: "1,234", FFMA: "2.00"})
    second = write(tmp_path / "b.csv", {TIME: "ns", FFMA: "Kinst"}, [other]).read_text()
    both = tmp_path / "both.csv"
    both.write_text(first + second.removeprefix(BEFORE).replace('"7"', '"8"'))
    trace = read(both)
    assert trace.tables.counters.select("name", "duration", "fp32_fma", "dram_bytes").rows() == [
        ("void conv<float>(float*)", 1_234_560, 1024, 1_500_064),
        ('say "hi", kernel', 10_000, None, None),
        ("other", 1234, 2000, None),
    ]
    assert trace.meta.events == 3
    assert trace.tables.ledger.select("reason", "severity", "count").rows() == [
        ("several_reports", "note", 2)
    ]


def test_metrics_that_no_column_is_for_are_named(tmp_path: Path) -> None:
    rate = "dram__bytes.sum.per_second"
    path = raw(tmp_path / "a.csv", {TIME: "ns", rate: "Gbyte/s"}, [("k", {TIME: "5", rate: "9"})])
    trace = read(path)
    assert trace.tables.counters["duration"].to_list() == [5]
    assert trace.tables.counters["dram_bytes"].to_list() == [None]
    assert trace.meta.properties == {"metrics_not_read": (rate,)}


def test_a_metric_in_a_wrong_unit_is_not_read(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", {TIME: "furlong"}, [("k", {TIME: "5"})])
    trace = read(path)
    assert trace.tables.counters["duration"].to_list() == [None]
    assert trace.meta.properties == {"metrics_not_read": (TIME,)}
    assert entries(trace) == [("lost_field", 1, TIME)]


def test_a_label_of_the_details_page(tmp_path: Path) -> None:
    path = details(tmp_path / "a.csv", {"Duration": "us"}, [("k", {"Duration": "2.50"})])
    assert read(path).tables.counters["duration"].to_list() == [2500]


def test_tensor_operations_are_added_up_and_parts_are_not_twice(tmp_path: Path) -> None:
    stem = "sm__ops_path_tensor_src_"
    names = [f"{stem}{kind}.sum" for kind in ("fp16", "fp16_dst_fp32", "tf32_dst_fp32", "int8")]
    assert metrics_by_column(names) == {"tensor_ops": [names[0], names[2], names[3]]}
    values = dict(zip(names, ("100", "100", "20", "3"), strict=True))
    path = raw(tmp_path / "a.csv", dict.fromkeys(names, ""), [("k", values), ("k", {})])
    assert read(path).tables.counters["tensor_ops"].to_list() == [123, None]


def test_counts_by_instruction_where_there_are_none_by_type() -> None:
    by_instruction = "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32.sum"
    by_type = "sm__ops_path_tensor_src_fp16_dst_fp32.sum"
    assert metrics_by_column([by_instruction]) == {"tensor_ops": [by_instruction]}
    assert metrics_by_column([by_instruction, by_type]) == {"tensor_ops": [by_type]}


def test_what_chips_since_blackwell_call_the_memory(tmp_path: Path) -> None:
    read_, written = "dram__bytes_op_read.sum", "dram__bytes_op_write.sum"
    units = {read_: "byte", written: "Kbyte"}
    path = raw(tmp_path / "a.csv", units, [("k", {read_: "5", written: "2"})])
    assert read(path).tables.counters["dram_bytes"].to_list() == [2005]


@pytest.mark.parametrize("write", [raw, details])
def test_numbers_as_other_languages_write_them(tmp_path: Path, write: Write) -> None:
    units = {TIME: "ns", READ: "byte", ACTIVE: "%"}
    launches = [
        ("k", {TIME: "117.344", READ: "27.595.520", ACTIVE: "65,77"}),
        ("k", {TIME: "14.912", READ: "512", ACTIVE: "7,5"}),
    ]
    counters = read(write(tmp_path / "a.csv", units, launches)).tables.counters
    assert counters["duration"].to_list() == [117_344, 14_912]
    assert counters["dram_read_bytes"].to_list() == [27_595_520, 512]
    assert counters["tensor_active_percent"].to_list() == [65.77, 7.5]


def test_lines_shorter_than_the_title_and_longer(tmp_path: Path) -> None:
    """Rows of the details page end behind the value; some of advice hold a cell too many."""
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    whole = read(path).tables.counters
    lines = path.read_text().splitlines()
    lines = [line_ + "," if line_.endswith('"%","47.5"') else line_ for line_ in lines]
    lines = [f'{line_},""' if "of advice" in line_ else line_ for line_ in lines]
    path.write_text("\n".join(lines))
    assert read(path).tables.counters.equals(whole)


def test_columns_that_nvtx_adds_are_no_metrics(tmp_path: Path) -> None:
    title = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    path = raw(tmp_path / "a.csv", {TIME: "ns", title: ""}, [("k", {TIME: "5", title: "fwd"})])
    trace = read(path)
    assert trace.tables.counters["duration"].to_list() == [5]
    assert trace.meta.properties == {}


def test_a_cut_stream_is_in_the_ledger(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES * 200)
    path.write_bytes(gzip.compress(path.read_bytes())[:-30])
    assert "truncated" in read(path).tables.ledger["reason"]


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("", 1),
        ("byte", 1),
        ("Kbyte", 1e3),
        ("Gbyte", 1e9),
        ("inst", 1),
        ("Minst", 1e6),
        ("msecond", 1e6),
        ("s", 1e9),
        ("%", 1),
        ("byte/second", None),
        ("cycle", None),
        ("register/thread", None),
    ],
)
def test_units(unit: str, times: float | None) -> None:
    assert factor(unit) == times


def test_tables_without_sizes_or_device_as_old_versions_print_them(tmp_path: Path) -> None:
    head = [*FACTS[:5], "Kernel Time", *FACTS[5:7], "Section Name"]
    names = ["Metric Name", "Metric Unit", "Metric Value"]
    cells = ["3", "7", "p", "h", "k", "2021-Jan-01", "1", "9", "S", "dram__bytes.sum", "Kbyte", "2"]
    path = tmp_path / "a.csv"
    path.write_text(line([*head, *names]) + line(cells))
    row = read(path).tables.counters.row(0, named=True)
    reported = {key: value for key, value in row.items() if value is not None}
    assert reported == {
        "launch": 3,
        "name": "k",
        "process": 7,
        "context": 1,
        "stream": 9,
        "dram_bytes": 2000,
    }


def test_a_launch_without_a_number_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        line([*FACTS, TIME])
        + line([*[""] * len(FACTS), "ns"])
        + line([*facts(0, "k"), "5"])
        + line(["first", *facts(0, "k")[1:], "5"])
    )
    trace = read(path)
    assert trace.tables.counters.height == 1
    assert trace.tables.ledger.select("reason", "count").rows() == [("malformed", 1)]
    assert trace.meta.events == 2


def test_a_compressed_table(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_bytes(gzip.compress(path.read_bytes(), 1))
    assert read(path).tables.counters.height == 2


@pytest.mark.parametrize("write", [raw, details])
@pytest.mark.parametrize("behind", ["all done, good bye\n", "```\n\nWhy is it slow?\n"])
def test_lines_of_the_program_behind_the_table_are_no_events(
    tmp_path: Path, write: Write, behind: str
) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_text(path.read_text() + behind)
    trace = read(path)
    assert trace.tables.counters.height == trace.meta.events == 2
    assert trace.tables.ledger.is_empty()


@pytest.mark.parametrize("write", [raw, details])
def test_rows_before_the_header_are_counted(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    before, header, rows = path.read_text().partition(line(["ID"])[:-1])
    first, newline, rest = rows.partition("\n")
    path.write_text(before + rest + "\n" + header + first + newline)
    assert "malformed" in problems(read(path))


def test_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(BEFORE + line([*FACTS, TIME]))
    assert read(path).tables.counters.is_empty()


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n",
        '"ID","Name"\n"1","x"\n',
        '"Process ID","Kernel Name","Invocations"\n',
        BEFORE,
    ],
)
def test_other_tables(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises((UnknownFormatError, NotATraceError)):
        read(path)


def test_any_cut_is_read_or_refused(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    whole = path.read_bytes()
    for cut in range(len(whole.split(b"\n")[0]), len(whole), 5):
        path.write_bytes(whole[:cut])
        try:
            found: Trace | None = read(path)
        except TraceanaError as error:
            assert isinstance(error, CorruptError | UnknownFormatError)
            assert "\n" not in str(error)
            continue
        assert found is not None
        assert found.tables.counters.height <= 2
        assert found.tables.counters.select(pl.col("name").is_null().sum()).item() == 0


def problems(trace: Trace) -> list[str]:
    return trace.tables.ledger.filter(severity="problem")["reason"].to_list()


@pytest.mark.parametrize("write", [raw, details])
def test_a_cut_within_a_row_is_in_the_ledger(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    whole = path.read_bytes().removesuffix(BEHIND.encode())
    begin = whole.index(b'"0","7"')
    for cut in range(begin + 1, len(whole), max(4, (len(whole) - begin) // 200)):
        path.write_bytes(whole[:cut])
        complete = any(whole[cut:].startswith(end) for end in (b'\n"0",', b'\n"1",'))
        last = whole[:cut].split(b"\n")[-1]
        if complete or cut == len(whole) - 1 or last == b"":
            continue
        # What follows the value of a metric is empty.
        if write is details and any(f'"{value}"'.encode() in last for value in ("47.5", "0")):
            continue
        trace = read(path)
        assert problems(trace) == ["truncated"], last
        assert trace.meta.truncated


@pytest.mark.parametrize("write", [raw, details])
def test_a_hole_of_zero_bytes_is_in_the_ledger(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES * 3)
    whole = path.read_bytes().removesuffix(BEHIND.encode())
    begin = whole.index(b'"0","7"')
    values = ["launch", "name", "duration"]
    want = read(path).tables.counters.select(values)
    apart = max(61, (len(whole) - begin) // 15)
    for size in (1, 12, 150):
        for at in range(begin, len(whole) - size - 1, apart):
            path.write_bytes(whole[:at] + bytes(size) + whole[at + size :])
            trace = read(path)
            assert {*problems(trace)} & {"malformed", "truncated"}
            # No launch has another's values.
            found = trace.tables.counters.select(values).drop_nulls()
            assert set(found.rows()) <= set(want.rows())


@pytest.mark.parametrize("write", [raw, details])
def test_two_rows_in_one_line_are_in_the_ledger(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'\n"1","7"', b',"1","7"', 1))
    assert problems(read(path)) == ["malformed"]


def test_a_row_that_another_text_continues_is_in_the_ledger(tmp_path: Path) -> None:
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    whole = path.read_bytes()
    cut = whole.index(b'"', whole.rindex(b'"usecond"') + len('"usecond"'))
    path.write_bytes(whole[:cut] + b"  usecond       12.50\n    launch__block_size    1,024\n")
    assert problems(read(path)) == ["malformed"]


def test_values_without_their_units_are_not_read(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_bytes(path.read_bytes().replace(b'"usecond"', b'"usec\0nd"'))
    trace = read(path)
    assert problems(trace) == ["malformed"]
    assert ("lost_field", 2, TIME) in entries(trace)
    assert trace.tables.counters["duration"].to_list() == [None, None]
    assert TIME in trace.meta.properties["metrics_not_read"]


def test_names_that_are_not_utf8_are_kept_and_counted(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_bytes(path.read_bytes().replace(b"say ", b"s\xff\xfe "))
    trace = read(path)
    assert trace.tables.counters.height == 2
    assert trace.tables.counters["name"][1].startswith("s\ufffd")
    assert problems(trace) == ["damaged"]


def test_a_damaged_compressed_table_is_in_the_ledger(tmp_path: Path) -> None:
    names = random.Random(0)
    launches = [(f"k{names.getrandbits(128):x}", LAUNCHES[0][1]) for _ in range(20_000)]
    path = raw(tmp_path / "a.csv", UNITS, launches)
    content = bytearray(gzip.compress(path.read_bytes(), 1))
    content[-6] ^= 0xFF  # of its checksum
    path.write_bytes(content)
    assert {"damaged", "truncated"} <= {*problems(read(path))}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('(256, 1, 1)","(4, 2, 1)', '(25nd li 1)","(4, 2, 1)'),
        ('"say ""hi"", kernel","1"', '"another kernel","1"'),
        ('kernel","1","7"', 'kernel","1","x"'),
    ],
    ids=["size", "name", "number"],
)
def test_rows_of_a_launch_that_contradict_each_other_are_in_the_ledger(
    tmp_path: Path, old: str, new: str
) -> None:
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_text(path.read_text().replace(old, new, 1))
    assert problems(read(path)) == ["damaged"]


def test_two_values_of_one_metric_and_launch_are_in_the_ledger(tmp_path: Path) -> None:
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    row = next(text for text in path.read_text().splitlines() if text.endswith('"1,234.56"'))
    path.write_text(path.read_text().replace(row, f"{row}\n{row}", 1))
    assert read(path).tables.ledger.is_empty()
    path.write_text(path.read_text().replace("1,234.56", "1,234.57", 1))
    assert problems(read(path)) == ["damaged"]


@pytest.mark.parametrize("write", [raw, details])
def test_a_value_that_is_not_a_number_is_in_the_ledger(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_text(path.read_text().replace("1,234.56", "1,2x4.56"))
    assert [entry[:2] for entry in entries(read(path))] == [("lost_field", 1)]


def test_a_fact_that_is_not_a_number_is_in_the_ledger(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_text(path.read_text().replace("(256, 1, 1)", "(25nd li 1)", 1))
    trace = read(path)
    assert entries(trace) == [("lost_field", 1, "Block Size")]
    assert trace.tables.counters["block_x"].to_list() == [None, 256]


def test_a_launch_without_a_row_of_a_metric_is_in_the_ledger(tmp_path: Path) -> None:
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(row for row in rows if not row.endswith('"1,024"\n')))
    assert problems(read(path)) == ["damaged"]


def test_halves_of_two_rows_that_make_one_row_are_in_the_ledger(tmp_path: Path) -> None:
    path = details(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_text(path.read_text().replace('"47.5"\n', '"%","47.5"\n'))
    assert problems(read(path)) == ["damaged"]


@pytest.mark.parametrize("write", [raw, details])
def test_a_header_with_zero_bytes_is_in_the_ledger(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path / "a.csv", UNITS, LAUNCHES)
    path.write_bytes(path.read_bytes().replace(b"Block Size", b"Block\0Size"))
    trace = read(path)
    assert problems(trace) == ["damaged"]
    assert trace.tables.counters["block_x"].to_list() == [None, None]


@pytest.mark.parametrize("name", [",", ',","', '"', 'say "hi", kernel', "k\u00e9rnel"])
@pytest.mark.parametrize("write", [raw, details])
def test_names_of_quotes_and_commas_are_read_beside_a_damaged_row(
    tmp_path: Path, write: Write, name: str
) -> None:
    launches = [("before", LAUNCHES[0][1]), (name, LAUNCHES[0][1]), ("behind", LAUNCHES[0][1])]
    path = write(tmp_path / "a.csv", UNITS, launches)
    trace = read(path)
    assert trace.tables.counters["name"].to_list() == ["before", name, "behind"]
    assert trace.tables.ledger.is_empty()
    path.write_text(path.read_text().replace('"before","1"', '"before,"1"', 1))
    assert "malformed" in problems(read(path))


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("end", range(8))
def test_a_table_of_megabytes_is_read_whole(tmp_path: Path, end: int) -> None:
    launches = [("k" * (end + 1), LAUNCHES[0][1]), *[("kernel", LAUNCHES[0][1])] * 20_000]
    path = raw(tmp_path / "a.csv", UNITS, launches)
    trace = read(path)
    assert trace.tables.counters.height == 20_001
    assert trace.tables.ledger.is_empty()
    path.write_text(path.read_text().replace('"15000","7"', '"15000",7"', 1))
    assert entries(read(path)) == [("malformed", 1, "rows without all cells, or with zero bytes")]


def test_numbers_of_launches_of_any_length(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES * 30)
    path.write_text(path.read_text().replace('\n"7","7"', '\n"' + "7" * 40 + '","7"', 1))
    trace = read(path)
    assert trace.tables.counters.height == 59
    assert problems(trace) == ["malformed"]


def test_warnings_and_errors_of_the_profiler_are_kept(tmp_path: Path) -> None:
    path = raw(tmp_path / "a.csv", UNITS, LAUNCHES)
    lost = '==ERROR== Failed to profile "k" in process 7\n'
    path.write_text("==WARNING== Note: clocks not locked  \n" + path.read_text() + lost + lost)
    assert read(path).meta.properties["counters_messages"] == (
        "warning: Note: clocks not locked",
        'error: Failed to profile "k" in process 7',
    )
