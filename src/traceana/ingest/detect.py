"""Which format a file is of, told from its content and never from its name."""

from __future__ import annotations

import gzip
import re
import zlib
from enum import Enum
from pathlib import Path

from traceana.errors import (
    EmptyFileError,
    IsDirectoryError,
    NotATraceError,
    NotFoundError,
    UnknownFormatError,
    UnreadableError,
)
from traceana.ingest.chrome.sniff import is_other, is_xplane_json
from traceana.ingest.mxnet.sniff import is_mxnet
from traceana.ingest.ncu.sniff import is_counters
from traceana.ingest.nsys_tables.sniff import is_export
from traceana.ingest.xplane.sniff import is_xspace

_HEAD = 1 << 16
_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\x00"
_NSYS_REPORT = b"NVIDIA Tegra Profiler Report "
_NSYS_STREAM = b"NVIDIA Nsight Systems Stream "
_BOM = b"\xef\xbb\xbf"
# Exports that begin with the report's strings, or with an event, by the numbers of their types.
_NSYS_JSON = re.compile(rb'\s*\{"(?:data":\s*\[|Type":\s*\d+\s*,)')
_NSYS_TEXT = re.compile(rb'data: "|Type: \d+\s+\w+ \{')
_JSON_START = re.compile(rb"\s*(?:[\[{]|$)")
_JSON_SCALAR = re.compile(
    rb'\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)\s*$', re.DOTALL
)


class Format(Enum):
    """The formats that have a reader."""

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


def detect(path: Path) -> Format:
    """Return the format of ``path``.

    Raises the input errors of :mod:`traceana.errors`: missing, a directory, unreadable, empty, or
    of no format that traceana reads.
    """
    if path.is_dir() and is_export(path):
        return Format.NSYS_TABLES
    head = _head(path)
    if head.startswith(_SQLITE):
        return Format.SQLITE
    if head.startswith(_NSYS_REPORT):
        return Format.NSYS_REPORT
    if _NSYS_STREAM in head[:64]:
        return Format.NSYS_STREAM
    if head.startswith(_GZIP):
        head = _inflate_head(head)
    if is_counters(head):
        return Format.NCU_CSV
    if is_xspace(head):
        return Format.XPLANE
    head = head.removeprefix(_BOM)
    for kind, pattern in (("json", _NSYS_JSON), ("text", _NSYS_TEXT)):
        if pattern.match(head):
            raise UnknownFormatError(
                f"{path} is what nsys export --type {kind} writes: export the report as a "
                "database, nsys export --type sqlite REPORT.nsys-rep"
            )
    if _JSON_START.match(head):
        return _chrome(head)
    if _JSON_SCALAR.match(head) and head.isascii():
        raise NotATraceError(
            f"{path} is JSON and no trace: give the file that torch.profiler exported"
        )
    raise UnknownFormatError(
        f"{path} is of no format that traceana reads (Kineto and other Chrome JSON, XPlane, "
        "reports and exports of nsys, nvprof databases, CSV of Nsight Compute)"
    )


def _chrome(head: bytes) -> Format:
    if is_xplane_json(head):
        return Format.XPLANE_JSON
    if is_mxnet(head):
        return Format.MXNET
    # What cannot be told goes to the Kineto reader, which knows what to say of it.
    return Format.CHROME_JSON if is_other(head) else Format.KINETO


def _head(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise IsDirectoryError(
                f"{path} is a directory and no traceana bundle: name one trace file in it"
            )
        # Opening a pipe waits for whoever writes into it, and it can be read only once.
        if path.exists() and not path.is_file():
            raise UnreadableError(
                f"{path} is a pipe or a device and no file: write what it gives into a file"
            )
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    if not head:
        raise EmptyFileError(f"{path} is empty: record it again, or check how it was copied")
    return head


def _inflate_head(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    except (zlib.error, gzip.BadGzipFile):
        return b""
