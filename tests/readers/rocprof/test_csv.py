"""CSV of rocprof, rocprofv2 and rocprofv3: timelines, calls, markers, agents."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.rocprof import writing
from tests.readers.rocprof.writing import KERNELS, Kernel
from tests.support import manifest
from tests.support.command_line import Run
from traceana import open as open_trace
from traceana.errors import NotATraceError, UsageError
from traceana.readers import read
from traceana.readers.source import silent
from traceana.trace import Trace


def written(path: Path, text: str) -> Trace:
    path.write_text(text)
    return read(path, silent)


def rows(trace: Trace) -> list[dict[str, Any]]:
    """Return the activities with their names instead of numbers."""
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"].to_list())
    return trace.tables.activities.drop("name_id").with_columns(names).to_dicts()


def problems(trace: Trace) -> list[tuple[str, int]]:
    found = trace.tables.ledger.filter(pl.col("severity") == "problem")
    return found.select("reason", "count").rows()


def run_of(folder: Path, prefix: str = "12_", *, kernels: str | None = None) -> Path:
    """Write the files of a run of rocprofv3 with this prefix and return it."""
    folder.mkdir(exist_ok=True)
    measured = [
        Kernel(**{**_fields(kernel), "counters": {"FETCH_SIZE": 4.0 * kernel.dispatch}})
        for kernel in KERNELS
    ]
    for name, text in (
        ("kernel_trace", writing.kernel_trace() if kernels is None else kernels),
        ("memory_copy_trace", writing.memory_copy_trace(writing.COPIES)),
        ("hip_api_trace", writing.api_trace(writing.HIP_CALLS)),
        ("marker_api_trace", writing.api_trace(writing.MARKERS, "MARKER_CORE_API")),
        ("counter_collection", writing.counter_collection(measured)),
        ("agent_info", writing.agent_info()),
        ("kernel_stats", '"Name","Calls","TotalDurationNs"\n"k",3,12000\n'),
    ):
        (folder / f"{prefix}{name}.csv").write_text(text)
    return folder / prefix.removesuffix("_") if prefix else folder


def _fields(kernel: Kernel) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in kernel.__dataclass_fields__}


def test_a_kernel_has_its_times_sizes_and_place(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.csv", writing.kernel_trace())
    first, second, third = rows(trace)
    assert [one["start"] for one in (first, second, third)] == [0, 10_000, 20_000]
    assert [one["duration"] for one in (first, second, third)] == [4_000, 1_000, 7_000]
    assert (first["name"], first["correlation"]) == ("void k<int, 2>(float*)", 5)
    assert (first["device"], first["stream"]) == (1, 2)
    # 1000 work-items in groups of 256 are 4 blocks, the last one not full.
    assert [first[f"grid_{axis}"] for axis in "xyz"] == [4, 2, 1]
    assert [first[f"block_{axis}"] for axis in "xyz"] == [256, 2, 1]
    assert (first["registers"], first["shared_memory"]) == (24, 512)
    assert trace.meta.producer == "AMD rocprofv3"
    assert problems(trace) == []


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (writing.kernel_trace(all_quoted=True), ()),
        (writing.kernel_trace_rocpd(), ()),
        (writing.kernel_trace().replace('"', "").replace("<int, 2>", "<int>"), ("name",)),
        (writing.kernel_trace_6_2(), ("stream", "registers")),
        (writing.kernel_trace_v2(), ("stream", "process", "grid", "block")),
        (writing.results_v1(), ("stream", "process", "correlation", "grid", "block")),
    ],
    ids=["quoted", "rocpd", "unquoted", "rocm-6.2", "rocprofv2", "rocprof"],
)
def test_all_versions_have_the_same_kernels(
    tmp_path: Path, text: str, lacks: tuple[str, ...]
) -> None:
    want = rows(written(tmp_path / "a.csv", writing.kernel_trace()))
    found = rows(written(tmp_path / "b.csv", text))
    for one, other in zip(want, found, strict=True):
        differing = {key for key in one if one[key] != other[key]}
        assert {key.partition("_")[0] for key in differing} <= {*lacks}


def test_columns_may_have_any_order_and_others_between(tmp_path: Path) -> None:
    want = rows(written(tmp_path / "a.csv", writing.kernel_trace()))
    table = list(csv.reader(writing.kernel_trace().splitlines()))
    turned = [
        ["of the future" if number else "New", *row[::-1]] for number, row in enumerate(table)
    ]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in turned)
    assert rows(written(tmp_path / "b.csv", text)) == want


def test_copies_have_their_direction_and_device(tmp_path: Path) -> None:
    copies = (
        *writing.COPIES,
        ("DEVICE_TO_DEVICE", 1, 1, 60_000, 61_000),
        ("DEVICE_TO_DEVICE", 1, 2, 62_000, 63_000),
    )
    for old in (False, True):
        text = writing.memory_copy_trace(copies, old=old)
        work = written(tmp_path / "a.csv", text).tables.activities
        assert work["copy_kind"].to_list() == ["HtoD", "DtoH", "DtoD", "PtoP"]
        assert work["device"].to_list() == [1, 1, 1, 1]
        assert work["duration"].to_list() == [4_000, 5_000, 1_000, 1_000]
        assert work["kind"].unique().to_list() == ["memcpy"]


def test_calls_and_ranges(tmp_path: Path) -> None:
    calls = written(tmp_path / "a.csv", writing.api_trace(writing.HIP_CALLS)).tables.calls
    assert calls.select("name", "process", "thread", "duration", "correlation").rows()[1] == (
        "hipLaunchKernel", 800, 801, 1_000, 5,
    )  # fmt: skip
    text = writing.api_trace(writing.MARKERS, "MARKER_CORE_RANGE_API") + writing.api_trace(
        [("between threads", 40, 700, 900)], "MARKER_CORE_API", thread=0
    )
    trace = written(tmp_path / "b.csv", text)
    assert trace.tables.ranges.select("text", "kind", "thread", "duration").rows() == [
        ("before", "mark", 801, 0),
        ("step 0", "nvtx", 801, 59_400),
        ("between threads", "nvtx_start", None, 200),
    ]
    # A function of ROCTx is a call.
    assert trace.tables.calls["name"].to_list() == ["roctxGetThreadId"]


def test_the_files_of_a_run_are_one_trace(tmp_path: Path) -> None:
    prefix = run_of(tmp_path / "run")
    for path in (prefix, tmp_path / "run"):
        trace = open_trace(path)
        work = trace.tables.activities
        assert work["kind"].cast(pl.String).to_list() == ["kernel"] * 3 + ["memcpy"] * 2
        launched = trace.tables.calls["name"].gather(work["call"]).to_list()
        assert launched == ["hipLaunchKernel"] * 3 + ["hipMemcpy", None]
        assert work["process"].unique().to_list() == [800]
        assert trace.tables.ranges["text"].to_list() == ["before", "step 0"]
        gpu = trace.tables.devices.row(0, named=True)
        assert (gpu["device"], gpu["name"]) == (1, "AMD Instinct MI300X")
        assert (gpu["compute_capability"], gpu["multiprocessors"]) == ("9.4", 304)
        assert (gpu["clock_khz"], gpu["memory_bytes"]) == (2_100_000, 206141652992)
        # The counters are those of the dispatches of the same run.
        assert trace.tables.counters.select("activity", "dram_read_bytes").rows() == [
            (0, 4096), (1, 8192), (2, 12288),
        ]  # fmt: skip
        assert trace.tables.summary.is_empty()
        assert "not_recorded" not in trace.meta.properties


def test_files_without_a_prefix_are_those_of_their_folder(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", prefix="")
    trace = open_trace(folder)
    assert (
        trace.tables.activities.height,
        trace.tables.calls.height,
        trace.tables.counters.height,
    ) == (5, 6, 3)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "12_kernel_trace.csv.gz").write_bytes(
        gzip.compress(writing.kernel_trace().encode())
    )
    assert open_trace(tmp_path / "12").tables.activities.height == 3
    assert open_trace(tmp_path / "12_kernel_trace.csv.gz").tables.activities.height == 3


def test_each_prefix_of_a_folder_is_a_rank(tmp_path: Path) -> None:
    run_of(tmp_path / "host", "12_")
    run_of(tmp_path / "host", "13_")
    trace = open_trace(tmp_path)
    assert trace.tables.activities.group_by("rank").len().sort("rank").rows() == [(0, 5), (1, 5)]


def test_passes_for_more_counters_are_no_ranks(tmp_path: Path) -> None:
    for number in (1, 2):
        run_of(tmp_path / f"pmc_{number}", "12_")
    with pytest.raises(UsageError, match=r"2 runs of rocprofv3.*pmc_1"):
        open_trace(tmp_path)


def test_the_processes_of_a_merged_database_stay_apart(tmp_path: Path) -> None:
    calls = writing.api_trace(writing.HIP_CALLS).splitlines()
    api = [f'"Guid",{calls[0]}', *(f'"a",{row}' for row in calls[1:])]
    api += [f'"b",{row.replace(",800,", ",900,")}' for row in calls[1:]]
    kernels = writing.kernel_trace_rocpd(guid="a")
    kernels += "".join(f"{row}\n" for row in writing.kernel_trace_rocpd(guid="b").splitlines()[1:])
    (tmp_path / "out_hip_api_trace.csv").write_text("\n".join([*api, ""]))
    (tmp_path / "out_kernel_trace.csv").write_text(kernels)
    trace = open_trace(tmp_path / "out")
    assert trace.tables.activities["process"].to_list() == [800] * 3 + [900] * 3
    callers = trace.tables.calls["process"].gather(trace.tables.activities["call"])
    assert callers.to_list() == [800] * 3 + [900] * 3


@pytest.mark.parametrize(
    ("agent", "device"), [("Agent 1", 1), ("GPU 0", 0), ("5", 5)], ids=["relative", "type", "node"]
)
def test_agents_are_described_however_they_are_numbered(
    tmp_path: Path, agent: str, device: int
) -> None:
    (tmp_path / "a_kernel_trace.csv").write_text(writing.kernel_trace().replace("Agent 1", agent))
    (tmp_path / "a_agent_info.csv").write_text(writing.agent_info())
    trace = open_trace(tmp_path / "a")
    assert trace.tables.devices.select("device", "name", "vendor").rows() == [
        (device, "AMD Instinct MI300X", "AMD")
    ]


def test_agents_alone_are_devices_without_work(tmp_path: Path) -> None:
    trace = written(tmp_path / "a.csv", writing.agent_info())
    assert trace.tables.devices["device"].to_list() == [1, 2]
    assert trace.tables.activities.is_empty()


def test_other_tables_are_counted(tmp_path: Path) -> None:
    text = writing.text(
        "Kind Operation Agent_Id Allocation_Size Address Correlation_Id Start_Timestamp "
        "End_Timestamp",
        [["MEMORY_ALLOCATION", "ALLOCATE", "Agent 1", 4096, "0x10", 1, 100, 200]],
    )
    trace = written(tmp_path / "a.csv", writing.kernel_trace() + text)
    assert trace.tables.activities.height == 3
    assert trace.tables.ledger.select("reason", "count", "kept").rows() == [
        ("unknown_category", 1, False)
    ]


def test_a_paste_is_read(tmp_path: Path) -> None:
    text = "$ cat 12_kernel_trace.csv\n\n```\n" + writing.kernel_trace() + "```\nIt is slow, why?\n"
    assert rows(written(tmp_path / "a.md", text)) == rows(
        written(tmp_path / "a.csv", writing.kernel_trace())
    )
    assert problems(read(tmp_path / "a.md", silent)) == []


def test_a_summary_beside_a_timeline_is_left_out(tmp_path: Path) -> None:
    trace = writing.kernel_trace()
    summary = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"k",3,12000,4000.0,100\n'
    for number, text in enumerate((trace + summary, summary + trace, trace + summary + trace)):
        found = written(tmp_path / f"{number}.md", text)
        assert found.tables.activities.height == 3
        assert found.tables.summary.is_empty()
        assert [why for why, _ in problems(found)] == (["duplicate"] if number == 2 else [])


def test_rows_that_are_cut_or_damaged_are_problems(tmp_path: Path) -> None:
    text = writing.kernel_trace()
    *whole, last = text.splitlines(keepends=True)
    cut = written(tmp_path / "a.csv", "".join(whole) + last[:60])
    assert cut.tables.activities.height == 2
    assert cut.meta.truncated
    assert problems(cut) == [("truncated", 1)]
    within = written(tmp_path / "b.csv", "".join([whole[0], last[:60] + "\n", *whole[1:], last]))
    assert within.tables.activities.height == 3
    assert problems(within) == [("malformed", 1)]
    for old, new, reason in (
        (",30000,", ",x0000,", "missing_time"),
        (",37000,", ",17000,", "negative_duration"),
        ("Agent 1", "Agent x", "no_device"),
        ("<int", "<\0nt", "damaged"),
        (last, last + last, "duplicate"),
    ):
        damaged = written(tmp_path / "c.csv", text.replace(old, new))
        assert [why for why, _ in problems(damaged)] == [reason]
    (tmp_path / "d.csv").write_bytes(text.replace("<int", "<\xff").encode("latin-1"))
    assert [why for why, _ in problems(read(tmp_path / "d.csv", silent))] == ["damaged"]


def test_a_file_of_a_run_without_its_header_is_a_problem(tmp_path: Path) -> None:
    prefix = run_of(tmp_path / "run")
    markers = tmp_path / "run" / "12_marker_api_trace.csv"
    markers.write_text(markers.read_text().replace("Function", "F"))
    trace = read(prefix, silent)
    assert trace.tables.ranges.is_empty()
    damaged = trace.tables.ledger.filter(pl.col("reason") == "damaged")
    assert damaged["detail"].to_list() == ["12_marker_api_trace.csv: no table"]


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="without rows"):
        written(tmp_path / "a.csv", writing.kernel_trace(()))


def test_its_json_does_not_count_beside_the_csv_of_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "12_results.json"
    path.write_text(
        '{\n  "rocprofiler-sdk-tool": [{"metadata": {"pid": 1}, "buffer_records": {}}]}'
    )
    with pytest.raises(NotATraceError, match="without rows"):
        open_trace(path)
    run_of(tmp_path, "12_")
    assert problems(open_trace(tmp_path)) == [("no_launch", 1)]


def test_commands_show_a_run(tmp_path: Path, run: Run) -> None:
    prefix = run_of(tmp_path / "run")
    for command in ("report", "kernels", "transfers", "idle", "info", "advise"):
        done = run(command, prefix)
        assert done.exit_code == 0, (command, done.stderr)
    assert "AMD Instinct MI300X" in run("info", prefix).stdout
    alone = run("info", tmp_path / "run" / "12_kernel_trace.csv")
    assert "--hip-trace" in alone.stdout


def listed(ending: str) -> list[dict[str, str]]:
    return [row for row in manifest.printed("rocprof") if row["file"].endswith(ending)]


@manifest.NEEDS_PRINTED
@pytest.mark.parametrize("row", listed("_kernel_trace.csv"), ids=lambda row: row["file"])
def test_a_published_trace_has_its_counts(row: dict[str, str]) -> None:
    trace = open_trace(manifest.PRINTED / row["file"])
    assert trace.tables.activities.height == int(row["rows"]) == int(row["gpu_calls"])
    assert trace.tables.activities["duration"].sum() == int(row["gpu_time_text_sum_ns"])
    assert problems(trace) == []
    # Kernels of llama.cpp.
    category = trace.tables.names["category"].gather(trace.tables.activities["name_id"])
    unclassified = int(trace.tables.activities.filter(category == "other")["duration"].sum())
    assert unclassified <= 0.01 * int(row["gpu_time_text_sum_ns"])


@manifest.NEEDS_PRINTED
@pytest.mark.parametrize("row", listed("rocpd_readme.txt"), ids=lambda row: row["file"])
def test_a_published_paste_has_its_counts(row: dict[str, str]) -> None:
    trace = open_trace(manifest.PRINTED / row["file"])
    assert trace.tables.activities.height == int(row["rows"]) == int(row["gpu_calls"])
    assert trace.tables.activities["duration"].sum() == int(row["gpu_time_text_sum_ns"])


@manifest.NEEDS_PRINTED
@pytest.mark.parametrize("row", listed("_counter_collection.csv"), ids=lambda row: row["file"])
def test_published_counters_have_their_counts(row: dict[str, str]) -> None:
    trace = read(manifest.PRINTED / row["file"], silent)
    assert trace.meta.properties["metric_rows"] == int(row["rows"])
    with (manifest.PRINTED / row["file"]).open() as lines:
        of_dispatch = [line["Dispatch_Id"] for line in csv.DictReader(lines)]
    assert trace.tables.counters.height == len({*of_dispatch})
    repeats = (
        trace.tables.counters["launch"]
        .cast(pl.String)
        .replace_strict(
            {number: of_dispatch.count(number) for number in {*of_dispatch}}, return_dtype=pl.Int64
        )
    )
    # The manifest has the time of a dispatch once for each of its counters.
    assert (trace.tables.counters["duration"] * repeats).sum() == int(row["gpu_time_text_sum_ns"])
    assert problems(trace) == []


@manifest.NEEDS_PRINTED
@pytest.mark.parametrize("row", listed("output_vec_add_gpu.csv"), ids=lambda row: row["file"])
def test_published_counters_without_times_have_their_counts(row: dict[str, str]) -> None:
    trace = read(manifest.PRINTED / row["file"], silent)
    assert trace.tables.counters.height == int(row["rows"]) == int(row["gpu_calls"])
    assert trace.tables.counters["name"].to_list() == ["vector_add(float*, float*, float*, int)"]
    assert trace.tables.counters["duration"].null_count() == 1
