"""Files of other formats are refused before a reader opens them, without blocking."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from tests.support.manifest import FIXTURES
from traceana.errors import CorruptError, NotATraceError, NotFoundError, UnknownFormatError
from traceana.readers.detect import FORMATS, detect
from traceana.readers.folder_search import is_name_of_trace
from traceana.readers.inputs import resolve
from traceana.runs.layer_manifest import Layer, manifest
from traceana.runs.run_files import TIMING_FILE, Timing


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotFoundError, match="is a pipe or a device, not a file"):
        detect(tmp_path / "pipe")
    with pytest.raises(NotFoundError, match="is a pipe or a device, not a file"):
        detect(Path(os.devnull))


def test_a_pipe_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnknownFormatError):
        resolve(tmp_path)
    trace = tmp_path / "a.json"
    trace.write_text('{"traceEvents": []}')
    assert resolve(tmp_path).files == [trace]


@pytest.mark.parametrize("text", ['"text, \\" and more"', "12.5e3", " true ", "null\n"])
def test_a_value_alone_is_json_and_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(NotATraceError):
        detect(tmp_path / "a")


TRACE = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}]}'


def packed_by(name: str) -> bytes:
    """Return a trace that ``name`` packed; of formats without a module, how they begin."""
    file = io.BytesIO()
    if name == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.json", TRACE)
    elif name == "tar":
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            archive.addfile(tarfile.TarInfo("a.json"), io.BytesIO())
    else:
        begin = {
            "zstd": b"\x28\xb5\x2f\xfd\x04",
            "xz": lzma.compress(TRACE),
            "bzip2": bz2.compress(TRACE),
            "gzip, twice": gzip.compress(gzip.compress(TRACE)),
        }
        file.write(begin[name])
    return file.getvalue()


@pytest.mark.parametrize("name", ["zip", "tar", "zstd", "xz", "bzip2", "gzip, twice"])
def test_a_packed_file_is_refused_by_its_packing(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.json").write_bytes(packed_by(name))
    with pytest.raises(UnknownFormatError, match=f"packed by {name}, .*: unpack it"):
        detect(tmp_path / "a.json")


@pytest.mark.parametrize("begin", [b"SQLite format 3\0", b"NVIDIA Tegra Profiler Report "])
def test_what_a_library_opens_by_its_path_is_to_be_unpacked(tmp_path: Path, begin: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(begin + bytes(100)))
    with pytest.raises(UnknownFormatError, match=r"packed by gzip, .*: unpack it"):
        detect(tmp_path / "a.gz")


def test_each_format_has_a_reader_or_what_to_do_instead() -> None:
    for one in FORMATS:
        module, _, function = one.reader.partition(":")
        assert bool(one.reader) != bool(one.instead), one.name
        if one.reader:
            assert callable(getattr(import_module(f"traceana.readers.{module}"), function))


def test_a_report_of_nsight_compute_is_refused_with_the_way_to_its_table(tmp_path: Path) -> None:
    (tmp_path / "a.ncu-rep").write_bytes(b"NVR\0\x03\0\0\0")
    with pytest.raises(UnknownFormatError, match=r"ncu --import a\.ncu-rep --csv --page raw"):
        detect(tmp_path / "a.ncu-rep")


@pytest.mark.parametrize(
    "text",
    [
        '[\n  {"Time (%)": 93.0, "Total Time (ns)": 91, "Instances": 4, "Name": "k(int)"}\n]\n',
        "Start (ns),Duration (ns),Name,PID,TID,T-Pri,Thread Name\n1,2,poll,3,4,20,python\n",
        " Start (ns)  Duration (ns)  Name\n ----------  -------------  ----\n   1  2  k\n",
        'NVTX Range,Style,PID,TID,"Total Time (\u03bcs)",Kernel Name\n:x,PushPop,1,1,5.0,k\n',
    ],
    ids=["json", "osrt_trace", "osrt_trace in columns", "nvtx_kern_sum"],
)
def test_other_reports_of_nsys_stats_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(
        UnknownFormatError, match="another report of nsys stats, which is not supported"
    ):
        detect(tmp_path / "a")


def test_json_in_utf_16_is_refused_by_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "utf-16")
    with pytest.raises(UnknownFormatError, match="JSON in UTF-16, which is not supported"):
        detect(tmp_path / "a")


@pytest.mark.parametrize("begin", ["[05/20/2023-10:00:00] [I] step", "[rank0]: W0520", "[0] step"])
def test_a_log_that_begins_with_a_bracket_is_no_json(tmp_path: Path, begin: str) -> None:
    log = f"{begin}\n" * 5000
    (tmp_path / "a.txt").write_text(log)
    with pytest.raises(UnknownFormatError, match="unrecognized format"):
        detect(tmp_path / "a.txt")
    table = "Name    Self CPU %      Self CPU    # of Calls\naten::mm  100.00%  1.000ms  1\n"
    (tmp_path / "a.txt").write_text(log + table)
    assert detect(tmp_path / "a.txt").name == "summary"


@pytest.mark.parametrize("compress", [False, True])
def test_a_document_without_events_is_no_trace(tmp_path: Path, compress: bool) -> None:
    write = gzip.compress if compress else bytes
    (tmp_path / "a").write_bytes(write(b'{"version": 1, "argv": ["a"]}\n'))
    with pytest.raises(NotATraceError, match="is JSON without traceEvents"):
        detect(tmp_path / "a")
    # The reader has the error of what is cut.
    (tmp_path / "a").write_bytes(write(b'{"version": 1, "argv": ["a"'))
    assert detect(tmp_path / "a").name == "kineto"


def test_a_layer_manifest_of_any_length_is_no_trace(tmp_path: Path) -> None:
    layers = tuple(
        Layer(path=f"layer{i}", type="Conv2d", framework_type="Conv2d", position=i)
        for i in range(2_000)
    )
    manifest(network="deep", framework=None, inputs=(), layers=layers).write(tmp_path / "a")
    assert (tmp_path / "a").stat().st_size > 100_000
    with pytest.raises(NotATraceError, match="is a file of traceana beside a trace: pass the"):
        detect(tmp_path / "a")


def test_what_lies_beside_a_trace_is_no_rank(tmp_path: Path) -> None:
    beside = [file for file in FIXTURES.glob("alexnet-cpu-ranges.*") if file.suffix == ".json"]
    assert len(beside) == 2
    for file in beside:
        shutil.copy(file, tmp_path)
    (tmp_path / TIMING_FILE).write_bytes(msgspec.json.encode(Timing()))
    with pytest.raises(NotATraceError):
        resolve(tmp_path)
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    assert resolve(tmp_path).files == [trace]
    # At a URL the names decide.
    names = [file.name for file in tmp_path.iterdir()]
    assert [name for name in names if is_name_of_trace(name)] == ["trace.json"]


@pytest.mark.parametrize("text", ['"ID","Kernel Name"\n', "1,2\n3,4\n", "nullified", "12 monkeys"])
def test_what_only_begins_like_a_value_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UnknownFormatError):
        detect(tmp_path / "a")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"data":["QnxKernelTrace","GpuMetrics"]}\n{"Type":27,"CommEvent":{}}\n'),
        ("json", '{"Type":48,"CudaEvent":{"startNs":"5"}}\n'),
        ("text", 'data: "QnxKernelTrace"\ndata: "GpuMetrics"\n'),
        ("text", "Type: 27\nCommEvent_ {\n  Timestamp: -5\n}\n"),
    ],
)
def test_other_exports_of_nsys_are_answered_with_the_one_to_make(
    tmp_path: Path, kind: str, text: str
) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(UnknownFormatError, match=rf"of type {kind}, .* --type sqlite"):
        detect(tmp_path / "a")


@pytest.mark.parametrize(
    "text",
    [
        "[I]              Layer   Time (ms)   Avg. Time (ms)   Time %\n[I]  conv1  1.2  0.1  9\n",
        "Rank,Kernel Name,Occurrences,Total Duration (us),Avg Duration (us)\n1,gemm,10,12.5,1.2\n",
        "\u2502 Time (%) \u2502     Time \u2502 Calls \u2502 Name \u2502\n"
        "\u2502 43.36% \u2502 211.0 \u00b5s \u2502 1 \u2502 k \u2502\n",
    ],
)
def test_tables_of_other_tools_are_not_those_of_nsys(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text * 2)
    with pytest.raises(UnknownFormatError, match="unrecognized format"):
        detect(path)


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)], ids=["plain", "gzip"])
def test_a_file_of_no_bytes_is_empty_also_compressed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(content)
    with pytest.raises(CorruptError, match="is empty: record it again"):
        detect(path)


def test_of_a_folder_of_printed_tables_one_is_to_be_given(tmp_path: Path) -> None:
    printed = tmp_path / "gpu.txt"
    printed.write_text("==7== Profiling result:\nNo kernels were profiled.\n")
    with pytest.raises(UnknownFormatError, match=r"pass one of the files, such as .*gpu\.txt$"):
        resolve(tmp_path)


def test_json_lines_are_no_trace(tmp_path: Path) -> None:
    line = '{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "name": "k"}\n'
    (tmp_path / "a.json").write_text(line * 3000)
    with pytest.raises(NotATraceError, match="has a JSON document a line"):
        detect(tmp_path / "a.json")
