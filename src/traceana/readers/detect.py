"""Detects the format of a file from its content, never from its name: every format is asked."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from traceana.errors import CorruptError, NotATraceError, NotFoundError, UnknownFormatError
from traceana.files import UNDECODABLE, check_regular
from traceana.readers import (
    chrome,
    job_operations,
    kineto,
    nsys,
    nvprof,
    perfetto,
    printed,
    rocprof,
    torch_snapshot,
    xplane,
)
from traceana.readers.format import Confidence, Format, Head, known
from traceana.readers.printed.text import BOM, UTF_16, plain_text
from traceana.readers.source import ByteSource

_HEAD: Final = 1 << 16
_LONGEST_LOG: Final = 1 << 30
"""Bytes of a program's output, inflated, in which a printed table is searched."""
_MOST_NULS: Final = 0.01
"""A text has no null characters; a file of bytes has many."""
_GZIP: Final = b"\x1f\x8b"
_SQLITE: Final = b"SQLite format 3\x00"
_PACKED: Final = {
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"7z\xbc\xaf\x27\x1c": "7z",
    _GZIP: "gzip, twice",
}
_OPENED_BY_PATH: Final = (_SQLITE, b"NVIDIA ")
"""What SQLite and nsys open themselves, and cannot inflate."""
_TAR: Final = slice(257, 262)
"""Where the name of the format is in a tar archive."""
_LONGEST_HEADER: Final = 1 << 10
_JSON_START: Final = re.compile(
    rb"\s*(?:\{|\[(?!\d+,\d+\]<)\s*(?:[\[{\],\"]|(?:-?\d[\d.eE+-]*|true|false|null)\s*(?:,|\]\s*$)|$)|$)"
)
"""Of JSON that may have events; a log may begin with ``[12:00:01]``, ``[0]`` or
``[I]``."""
_JSON_SCALAR: Final = re.compile(
    rb'\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null)\s*$', re.DOTALL
)
_EVENT: Final = re.compile(rb'(?:^\s*\[|"traceEvents"\s*:\s*\[).*"ph"\s*:\s*"', re.DOTALL)
_OWN: Final = {
    # A layer manifest or a table of algorithms; the other files of traceana are short.
    re.compile(rb'\A\s*\{\s*"format"\s*:\s*"traceana-'): "a file of traceana beside a trace: pass "
    "the trace, or its folder",
    re.compile(rb'"otherData"\s*:\s*\{\s*"exporter"\s*:\s*"traceana '): "an export of traceana for "
    "Perfetto: pass the trace that it was made of",
}

FORMATS: Final[tuple[Format, ...]] = (
    Format(
        "packed by gzip",
        lambda head: known(head.is_inflated and head.content.startswith(_OPENED_BY_PATH)),
        instead="unpack it",
    ),
    *(
        Format(
            f"packed by {name}",
            lambda head, magic=magic: known(head.content.startswith(magic)),  # type: ignore[misc]
            instead="unpack it",
        )
        for magic, name in _PACKED.items()
    ),
    Format(
        "packed by tar", lambda head: known(head.content[_TAR] == b"ustar"), instead="unpack it"
    ),
    Format(
        "JSON in UTF-16",
        lambda head: known(head.is_json and head.is_utf_16),
        instead="convert it to UTF-8",
    ),
    *xplane.FORMATS,
    # nvprof's databases have the names of nsys's tables.
    *nvprof.FORMATS,
    *nsys.FORMATS,
    *rocprof.FORMATS,
    *perfetto.FORMATS,
    Format(
        "an SQLite database, but not one of nsys, nvprof or rocprof",
        lambda head: known(head.content.startswith(_SQLITE)),
        instead="pass the output of 'nsys export --type sqlite', 'nvprof -o' or 'rocprofv3'",
    ),
    *torch_snapshot.FORMATS,
    *job_operations.FORMATS,
    *kineto.FORMATS,
    *chrome.FORMATS,
    *printed.FORMATS,
)
"""Every format that is known. A run is often stored twice, as a report and its export or as an
xplane.pb and its trace.json: of a folder, the first of these is read."""


def detect(path: Path) -> Format:
    """Return the format of ``path``: a file, a folder or the prefix of several files.

    Raises the input errors of :mod:`traceana.errors`: missing, a directory, unreadable, empty, or
    of a format that has no reader.
    """
    if not path.is_file() and (of_folder := _surest(Head(path), FORMATS)[1]):
        return of_folder
    head = _head(path)
    confidence, surest = _surest(head, FORMATS)
    for pattern, description in _OWN.items():
        if head.is_json and pattern.search(head.content):
            raise NotATraceError(f"{path} is {description}")
    if confidence <= Confidence.EVENTS:
        _refuse_documents(head)
    if confidence < Confidence.JSON:
        # The first printed table may be behind long output of the program.
        printed_formats = tuple(format_ for format_ in FORMATS if format_.is_printed)
        before = b""
        searched = 0
        is_wide = head.content.startswith(UTF_16)
        for block in ByteSource(path).blocks():
            searched += len(block)
            is_binary = not is_wide and block.count(0) > _MOST_NULS * len(block)
            if is_binary or searched > _LONGEST_LOG:
                break
            content = before + block
            printed = Head(path, content, plain_text(content))
            confidence, table_format = _surest(printed, printed_formats)
            if confidence > Confidence.LOG:
                surest = table_format
                break
            before = block[-_LONGEST_HEADER:]
    if surest is None:
        raise UnknownFormatError(
            f"{path}: unrecognized format; supported: Kineto and other Chrome traces, XPlane, "
            "Nsight Systems reports and exports, nvprof databases and printed traces, rocprof CSV "
            "and databases, Perfetto traces (pftrace), printed summaries, Nsight Compute CSV, "
            "PyTorch memory snapshots"
        )
    if surest.instead:
        instead = surest.instead.replace("{file}", path.name)
        raise UnknownFormatError(f"{path} is {surest.name}, which is not supported: {instead}")
    return surest


def _surest(head: Head, formats: tuple[Format, ...]) -> tuple[Confidence, Format | None]:
    """Return the format that is surest to read the file, the first of several, and how sure."""
    surest: tuple[Confidence, Format | None] = (Confidence.NONE, None)
    for format_ in formats:
        confidence = format_.sniff(head)
        if confidence > surest[0]:
            surest = (confidence, format_)
        if confidence is Confidence.CERTAIN:
            break
    return surest


def _refuse_documents(head: Head) -> None:
    """Raise ``NotATraceError`` on JSON lines, an object or a list without events (a run's timing,
    labels of a data set), and a scalar."""
    first, _, rest = head.content.lstrip().partition(b"\n")
    if rest.lstrip().startswith(b"{") and _is_object(first):
        raise NotATraceError(
            f"{head.path} has a JSON document a line, which is not supported: pass the file that a "
            "profiler exported, or make a list of events of the lines"
        )
    if head.is_whole and _is_object(head.content):
        raise NotATraceError(f"{head.path} {chrome.NO_EVENTS}")
    is_list = head.content.strip().startswith(b"[") and head.content.strip().endswith(b"]")
    if head.is_whole and is_list and b"{" in head.content and b'"ph"' not in head.content:
        raise NotATraceError(
            f"{head.path} is JSON without a valid trace event: "
            "pass the file that torch.profiler exported"
        )
    if head.is_whole and _JSON_SCALAR.match(head.content) and head.content.isascii():
        raise NotATraceError(
            f"{head.path} is JSON without trace events: pass the file that torch.profiler exported"
        )


def _is_object(content: bytes) -> bool:
    """Return whether ``content`` is a JSON object without a list of events."""
    if not content.lstrip().startswith(b"{") or b'"traceEvents"' in content:
        return False
    try:
        msgspec.json.decode(content)
    except UNDECODABLE:
        return False
    return True


def _head(path: Path) -> Head:
    """Return what formats look at; raises the errors of a file that cannot be read."""
    try:
        if path.is_dir():
            raise UnknownFormatError(
                f"{path} is a directory, not a traceana bundle: pass a trace file in it"
            )
        check_regular(path)
        with path.open("rb") as file:
            stored = file.read(_HEAD)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be read ({error.strerror}): check the file and its permissions"
        ) from error
    content = stored
    if stored.startswith(_GZIP):
        try:
            content = zlib.decompressobj(wbits=31).decompress(stored, _HEAD)
        except (zlib.error, gzip.BadGzipFile):
            content = b""
    if not content:
        source = ByteSource(path)
        if not any(source.blocks()) and not source.truncated:
            raise CorruptError(f"{path} is empty: record it again, or check the copy")
    tables: Mapping[str, tuple[str, ...]] = {}
    if stored.startswith(_SQLITE):
        from traceana.readers.sqlite import Database

        with Database(path) as database:
            tables = database.tables
    is_utf_16 = content.startswith(UTF_16)
    if is_utf_16:
        content = content[: len(content) // 2 * 2].decode("utf-16", "replace").encode()
    content = content.removeprefix(BOM)
    return Head(
        path,
        content,
        plain_text(content),
        tables=tables,
        is_json=_JSON_START.match(content) is not None,
        has_events=_EVENT.search(content) is not None,
        is_inflated=stored.startswith(_GZIP),
        is_utf_16=is_utf_16,
        is_whole=len(stored) < _HEAD,
    )
