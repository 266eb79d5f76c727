"""Detects the format of a file from its content, never from its name."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import CorruptError, NotATraceError, NotFoundError, UnknownFormatError
from traceana.files import UNDECODABLE, check_regular
from traceana.ingest.printed.text import (
    BOM,
    NCU_HEADER,
    NSYS_COLUMNS,
    NVPROF_METRICS_TITLES,
    NVPROF_TITLES,
    ROCPROF_TITLES,
    SUMMARY_TITLES,
    UTF_16,
    nsys_summaries,
    plain_text,
    rocprof_title,
)
from traceana.ingest.source import ByteSource

_HEAD = 1 << 16
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\x00"
_NSYS_REPORT = b"NVIDIA Tegra Profiler Report "
_NSYS_STREAM = b"NVIDIA Nsight Systems Stream "
_PACKED: Final = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    _GZIP: "gzip, twice",
}
_TAR: Final = (257, b"ustar")
"""Where the name of the format is in a tar archive."""
_NCU_REPORT: Final = b"NVR\0"
# nsys's JSON and text exports: they begin with the report's strings, or with an event.
_NSYS_JSON = re.compile(rb'\s*\{"(?:data":\s*\[|Type":\s*\d+\s*,)')
_NSYS_TEXT = re.compile(rb'data: "|Type: \d+\s+\w+ \{')
ROCPROF_JSON = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_ROCPROF_CHROME: Final = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"(?:\d+ )?(?:CPU (?:HIP|HSA|KFD) API|COPY)"\s*\}'
)
"""A process of rocprof's Chrome trace, which repeats its database."""
_NCU: Final = re.compile(
    f"^{NCU_HEADER}".encode() + rb"|^[ \t#>]+\S.*, Context \d+, Stream \d+(?:, Device.*)?\s*\n"
    rb"(?:.*\n){0,19}?[ \t#>]+Section: ",
    re.MULTILINE,
)
"""Nsight Compute's CSV, and a launch on the page that it prints as text."""
NSYS_EXPORT_TABLES: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The table in which nsys describes its export: schema 3, schema 2."""
_NSYS_TABLE_SUFFIXES: Final = (".parquet", ".arrow")
_NSYS_EVENTS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")
_NVPROF_HEADER: Final = re.compile(
    rb"^(?:[ \t#>|]|\x1b\[[\d;]*m)*(?:" + f"{NVPROF_TITLES}|{NSYS_COLUMNS}".encode() + rb")",
    re.MULTILINE,
)
_NVPROF_LOG: Final = re.compile(
    rb"^(?:[ \t#>]|\x1b\[[\d;]*m)*(?:==\d+==|={8}) "
    rb"(?:NVPROF|Profiling|Error|Warning|CPU profiling|Generated result)|"
    rb"^No (?:kernels|API activities|events/metrics) were profiled|\A\s*\"?Err:5\d\d\b",
    re.MULTILINE,
)
"""nvprof's messages before its tables, also without a table. A spreadsheet that opens its CSV
takes ``========`` for a formula, and saves Err:510."""
_NVPROF_METRICS: Final = re.compile(
    rb"^(?:[ \t#>|]|\x1b\[[\d;]*m)*(?:" + NVPROF_METRICS_TITLES.encode() + rb")", re.MULTILINE
)
_ROCPROF: Final = re.compile(
    b"|".join(
        f"^(?=[^\r\n]*?{rocprof_title(one)})[^\r\n]*?{rocprof_title(other)}".encode()
        for one, other in ROCPROF_TITLES
    ),
    re.MULTILINE | re.IGNORECASE,
)
ROCPROF_FILE: Final = (
    r"(?:kernel_trace|counter_collection|memory_copy_trace|memory_allocation_trace"
    r"|scratch_memory_trace|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg|ompt)_api_trace|agent_info"
    r"|pc_sampling_\w+)\.csv(?:\.gz)?"
)
"""How the name of each file of a run of rocprofv3 ends; statistics repeat the traces."""
ROCPD_DISPATCHES: Final = "rocpd_kernel_dispatch"
"""How the name of rocprofv3's table of kernels begins; it ends with the process that wrote it."""
_ROCPROF_TABLES: Final = ("OPS", "COPY", "HIP", "HSA", "rocTX")
_SUMMARY: Final = re.compile(
    rb"^(?:[ \t#>|*`]|\x1b\[[\d;]*m)*(?:"
    + SUMMARY_TITLES.encode()
    + rb"|(?:Self [A-Z]\w{1,30}|CPU|CUDA|XPU|HPU|MTIA|PrivateUse1) time total: )",
    re.MULTILINE,
)
_LONGEST_HEADER: Final = 1 << 10
_FIRST_PACKETS: Final = 200
_PERFETTO: Final = {11, 12, 60}
"""Fields of a Perfetto packet: an event, names, a track."""
_SEQUENCE: Final = 10
_NSYS_STATS: Final = re.compile(
    rb'(?:^|[,:;|\t{]|  )[ \n]*"?'
    rb"(?:Time \(%\)|(?:Start|Duration|Total Time|Total Proj Time|[A-Z]?Avg) "
    rb'\((?:[num]|\xc2\xb5|\xce\xbc)?s(?:ec)?\))"?\s*(?:[,:|\t]|  )',
    re.MULTILINE,
)
"""A title of ``nsys stats``, in a report or a form without a reader."""
_JSON_START = re.compile(
    rb"\s*(?:\{|\[(?!\d+,\d+\]<)\s*(?:[\[{\],\"]|(?:-?\d[\d.eE+-]*|true|false|null)\s*(?:,|\]\s*$)|$)|$)"
)
"""Of JSON that may have events; a log may begin with ``[12:00:01]``, ``[0]`` or
``[I]``."""
_JSON_SCALAR = re.compile(
    rb'\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)\s*$', re.DOTALL
)
_OWN: Final = re.compile(rb'\s*\{\s*"format"\s*:\s*"traceana-')
"""A layer manifest or a table of algorithms. The other files of traceana are short."""
_OWN_EXPORT: Final = re.compile(rb'"otherData"\s*:\s*\{\s*"exporter"\s*:\s*"traceana ')
_CHROME_EVENT: Final = re.compile(rb'(?:^\s*\[|"traceEvents"\s*:\s*\[).*"ph"\s*:\s*"', re.DOTALL)
# TensorFlow's and JAX's trace.json: its processes are planes, /host:CPU.
_PLANE: Final = re.compile(rb'"name"\s*:\s*"/(?:host|device):')
# MXNet's profile begins with the names of its devices; no other profiler has these two.
_MXNET_DEVICE: Final = re.compile(rb'"name"\s*:\s*"cpu (?:pinned|shared)/"')
_ONNX: Final = re.compile(rb'"name"\s*:\s*"(?:model_loading_|session_initialization")')
"""The first events of ONNX Runtime, whose kernels have Kineto's category."""
_KINETO: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|External id|distributedInfo)"|'
    rb'"(?:ts|dur)"\s*:\s*"\s*-?[\d.]|'
    rb'"cat"\s*:\s*"(?:kernel|gpu_\w+|cuda_\w+|cpu_(?:op|instant_event)|operator|python_function|'
    rb"user_annotation|runtime|memcpy|memset|ac2g|async\w*|fwdbwd|forward_backward|overhead|trace|"
    rb'Trace|Kernel|Memcpy|Memset|Operator|Runtime)"',
    re.IGNORECASE,
)


NO_EVENTS: Final = "is JSON without traceEvents: pass the file that a profiler exported"


class Format(Enum):
    """The formats with a reader."""

    KINETO = "kineto"
    XPLANE_JSON = "xplane-json"
    CHROME_JSON = "chrome-json"
    MXNET = "mxnet"
    XPLANE = "xplane"
    SQLITE = "sqlite"
    NSYS_REPORT = "nsys-report"
    NSYS_STREAM = "nsys-stream"
    NSYS_TABLES = "nsys-tables"
    NCU_CSV = "ncu-csv"
    NVPROF_PRINTED = "nvprof-printed"
    NVPROF_METRICS = "nvprof-metrics"
    ROCPROF_CSV = "rocprof-csv"
    PFTRACE = "pftrace"
    SUMMARY = "summary"


def detect(path: Path) -> Format:
    """Return the format of ``path``.

    Raises the input errors of :mod:`traceana.errors`: missing, a directory, unreadable, empty, or
    of an unrecognized format.
    """
    if path.is_dir() and is_nsys_export(path):
        return Format.NSYS_TABLES
    if path.is_dir() and nsys_summaries(path):
        return Format.SUMMARY
    if not path.is_file() and rocprof_files(path):
        return Format.ROCPROF_CSV
    head = _head(path)
    is_whole = len(head) < _HEAD
    if head.startswith(_SQLITE):
        return Format.SQLITE
    if head.startswith(_NSYS_REPORT):
        return Format.NSYS_REPORT
    if _NSYS_STREAM in head[:64]:
        return Format.NSYS_STREAM
    if head.startswith(_GZIP):
        head = _inflate_head(head)
    if not head:
        _refuse_empty(path)
    _refuse_packed(path, head)
    in_utf_16 = head.startswith(UTF_16)
    if in_utf_16:
        head = head[: len(head) // 2 * 2].decode("utf-16", "replace").encode()
    head = head.removeprefix(BOM)
    text = plain_text(head)
    if _NCU.search(text):
        return Format.NCU_CSV
    if _is_xspace(head):
        return Format.XPLANE
    if _is_perfetto(head):
        return Format.PFTRACE
    for kind, pattern in (("json", _NSYS_JSON), ("text", _NSYS_TEXT)):
        if pattern.match(head):
            raise UnknownFormatError(
                f"{path} is an nsys export of type {kind}, which is not supported: run "
                "nsys export --type sqlite REPORT.nsys-rep"
            )
    if _NVPROF_HEADER.search(text):
        return Format.NVPROF_PRINTED
    if ROCPROF_JSON.match(head):
        return Format.ROCPROF_CSV
    # A timeline has more than the summaries of the same run beside it.
    if _has_rocprof(text):
        return Format.ROCPROF_CSV
    if _SUMMARY.search(text):
        return Format.SUMMARY
    if _NVPROF_METRICS.search(text):
        return Format.NVPROF_METRICS
    if _OWN.match(head):
        raise NotATraceError(
            f"{path} is a file of traceana beside a trace: pass the trace, or its folder"
        )
    if _OWN_EXPORT.search(head):
        raise NotATraceError(
            f"{path} is an export of traceana for Perfetto: pass the trace that it was made of"
        )
    if is_whole and _is_document(head):
        raise NotATraceError(f"{path} {NO_EVENTS}")
    if _JSON_START.match(head):
        if _NSYS_STATS.search(head) and not _CHROME_EVENT.search(head):
            raise _unsupported_report(path)
        if in_utf_16:
            raise UnknownFormatError(
                f"{path} is JSON in UTF-16, which is not supported: convert it to UTF-8"
            )
        return _chrome(path, head)
    if _JSON_SCALAR.match(head) and head.isascii():
        raise NotATraceError(
            f"{path} is JSON without trace events: pass the file that torch.profiler exported"
        )
    if found := _table_behind(path):
        return found
    if _NVPROF_LOG.search(text):
        return Format.NVPROF_PRINTED
    if _NSYS_STATS.search(head):
        raise _unsupported_report(path)
    raise UnknownFormatError(
        f"{path}: unrecognized format; supported: Kineto and other Chrome traces, XPlane, Nsight "
        "Systems reports and exports, nvprof databases and printed traces, rocprof CSV, databases "
        "and pftrace, printed summaries, Nsight Compute CSV"
    )


def _unsupported_report(path: Path) -> UnknownFormatError:
    return UnknownFormatError(
        f"{path} is a report of nsys stats that is not supported: write a summary or a trace "
        "(cuda_gpu_kern_sum, cuda_gpu_trace) with --format csv, or run nsys export --type sqlite "
        "REPORT.nsys-rep"
    )


def _refuse_packed(path: Path, head: bytes) -> None:
    """Raise ``UnknownFormatError`` on archives, on compression other than gzip, and on reports of
    Nsight Compute, which only that opens."""
    at, tar = _TAR
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    if packed is None and head[at : at + len(tar)] == tar:
        packed = "tar"
    if packed is not None:
        raise UnknownFormatError(f"{path} is packed by {packed}, which is not supported: unpack it")
    if head.startswith(_NCU_REPORT):
        raise UnknownFormatError(
            f"{path} is a report of Nsight Compute, which is not supported: write its table with "
            f"ncu --import {path.name} --csv --page raw"
        )


def _refuse_empty(path: Path) -> None:
    """Raise ``CorruptError`` where ``path`` is a compressed file of no bytes."""
    source = ByteSource(path)
    if not any(source.blocks()) and not source.truncated:
        raise CorruptError(f"{path} is empty: record it again, or check the copy")


def _is_document(text: bytes) -> bool:
    """Return whether ``text`` is a JSON object without events, such as a run's timing."""
    if not text.lstrip().startswith(b"{") or b'"traceEvents"' in text:
        return False
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return False
    return True


def _has_rocprof(text: bytes) -> bool:
    """Return whether ``text`` has the titles of one of rocprof's tables."""
    # A search for both titles takes 20 ms of JSON's first 64 KiB, and one of these is in each pair.
    lower = text.lower()
    if not any(word in lower for word in (b"_timestamp", b"gpu-id", b"gpu_id", b"agent_")):
        return False
    return _ROCPROF.search(text) is not None


def _table_behind(path: Path) -> Format | None:
    """Return the format of the first table behind long output of the program, None without one."""
    before = b""
    for block in ByteSource(path).blocks():
        text = plain_text(before + block)
        for found, has_table in (
            (Format.NVPROF_PRINTED, _NVPROF_HEADER.search),
            (Format.ROCPROF_CSV, _has_rocprof),
            (Format.SUMMARY, _SUMMARY.search),
            (Format.NVPROF_METRICS, _NVPROF_METRICS.search),
        ):
            if has_table(text):
                return found
        before = block[-_LONGEST_HEADER:]
    return None


def _is_xspace(head: bytes) -> bool:
    """Return whether ``head`` begins an XSpace: a plane that begins with its id, if any, and name.

    In other messages (GraphDef, pprof's profiles) the field after this tag is not a plane with a
    name. JSON that begins with an empty line has a letter after the first byte.
    """
    if not head.startswith(b"\x0a"):
        return False
    from traceana.ingest.xplane.wire import LENGTH, VARINT, Buffer, WireError, fields, text

    buffer = Buffer.of([head])
    try:
        plane = next(fields(buffer, 0, buffer.size))
        for part in fields(buffer, plane.start, plane.end):
            if part.number == 1 and part.wire == VARINT:
                continue
            name = text(buffer, part)
            return (
                part.number == 2
                and part.wire == LENGTH
                and not part.cut
                and name.isprintable()
                and "\ufffd" not in name
            )
    except WireError:
        pass
    return False


def _is_perfetto(head: bytes) -> bool:
    """Return whether ``head`` begins a Perfetto trace: packets, each with the number of its
    sequence, and one of them with a track or an event."""
    if not head.startswith(b"\x0a"):
        return False
    from traceana.ingest.xplane.wire import LENGTH, VARINT, Buffer, WireError, fields

    buffer = Buffer.of([head])
    try:
        for packet in islice(fields(buffer, 0, buffer.size), _FIRST_PACKETS):
            known = {(one.number, one.wire) for one in fields(buffer, packet.start, packet.end)}
            held = {number for number, wire in known if wire == LENGTH}
            if packet.number == 1 and (_SEQUENCE, VARINT) in known and held & _PERFETTO:
                return True
    except WireError:
        pass
    return False


def _chrome(path: Path, head: bytes) -> Format:
    if _ROCPROF_CHROME.search(head):
        raise UnknownFormatError(
            f"{path} is rocprof's results.json, which is not supported: pass results.db beside it"
        )
    if _PLANE.search(head):
        return Format.XPLANE_JSON
    if _MXNET_DEVICE.search(head):
        return Format.MXNET
    # Anything else goes to the Kineto reader, which has the clearer errors.
    other = _CHROME_EVENT.search(head) and (_ONNX.search(head) or not _KINETO.search(head))
    return Format.CHROME_JSON if other else Format.KINETO


def is_nsys_export(path: Path) -> bool:
    """Return whether the directory ``path`` holds nsys's description of an export."""
    return any(
        (path / f"{table}{suffix}").exists()
        for table in NSYS_EXPORT_TABLES
        for suffix in _NSYS_TABLE_SUFFIXES
    )


def rocprof_files(path: Path) -> list[Path]:
    """Return the CSV files of the run of rocprofv3 whose output is ``path``; none for other paths.

    ``path`` is the prefix that ``--output-directory`` and ``--output-file`` give: ``DIR/NAME`` of
    ``DIR/NAME_kernel_trace.csv``, or the folder of ``kernel_trace.csv``.
    """
    begin = path / "_" if path.is_dir() else path
    folder, name = begin.parent, begin.name.removesuffix("_")
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    names = re.compile(re.escape(name) + ("_" if name else "") + ROCPROF_FILE)
    return [file for file in found if names.fullmatch(file.name) and file.is_file()]


def rocprof_run(file: Path) -> Path:
    """Return the path of the run of rocprofv3 that ``file`` is part of, for :func:`rocprof_files`:
    its prefix or folder, ``file`` itself where its name is another."""
    named = re.fullmatch(f"(?:(.+)_)?{ROCPROF_FILE}", file.name)
    if named is None:
        return file
    return file.parent if named[1] is None else file.with_name(named[1])


class Dialect(Enum):
    """The profilers whose databases have a reader."""

    NSYS = "nsys"
    NVPROF = "nvprof"
    ROCPD = "rocpd"
    ROCPROF = "rocprof"


def dialect(tables: Mapping[str, tuple[str, ...]]) -> Dialect | None:
    """Return which profiler wrote a database with ``tables`` (columns by table), None for others.

    rocprofv3 prefixes its tables with ``rocpd_``; rocprof's are named after what they trace.
    nvprof and its Visual Profiler use CUPTI's names for their tables, as nsys does, but number
    their rows in a column ``_id_`` and keep their texts in ``StringTable``.
    """
    if any(
        name.startswith("CUPTI_ACTIVITY_KIND_") and "_id_" in columns
        for name, columns in tables.items()
    ):
        return Dialect.NVPROF
    if any(name.startswith(ROCPD_DISPATCHES) for name in tables):
        return Dialect.ROCPD
    if any({"BeginNs", "EndNs", "Name"} <= {*tables.get(name, ())} for name in _ROCPROF_TABLES):
        return Dialect.ROCPROF
    exported = any(name in tables for name in NSYS_EXPORT_TABLES)
    if exported or any("start" in tables.get(name, ()) for name in _NSYS_EVENTS):
        return Dialect.NSYS
    return None


def _head(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UnknownFormatError(
                f"{path} is a directory, not a traceana bundle: pass a trace file in it"
            )
        check_regular(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be read ({error.strerror}): check the file and its permissions"
        ) from error
    if not head:
        raise CorruptError(f"{path} is empty: record it again, or check the copy")
    return head


def _inflate_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    except (zlib.error, gzip.BadGzipFile):
        return b""
