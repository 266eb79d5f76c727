"""Nsight Systems: its reports, and its exports to SQLite, Parquet and Arrow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from traceana.readers.format import Confidence, Format, Head, known

EXPORT_TABLES: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The table in which nsys describes its export: schema 3, schema 2."""
EXPORT_FILES: Final = frozenset(
    table + suffix for table in EXPORT_TABLES for suffix in (".parquet", ".arrow")
)
"""The file of that table in an export to Parquet or Arrow."""
_EVENTS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")
# The JSON and text exports begin with the report's strings, or with an event.
_JSON: Final = re.compile(rb'\s*\{"(?:data":\s*\[|Type":\s*\d+\s*,)')
_TEXT: Final = re.compile(rb'data: "|Type: \d+\s+\w+ \{')
_STATS: Final = re.compile(
    rb'(?:^|[,:;|\t{]|  )[ \n]{0,8}"?'
    rb"(?:Time \(%\)|(?:Start|Duration|Total Time|Total Proj Time|[A-Z]?Avg) "
    rb'\((?:[num]|\xc2\xb5|\xce\xbc)?s(?:ec)?\))"?\s*(?:[,:|\t]|  )',
    re.MULTILINE,
)
"""A title of ``nsys stats``, in a report or a form without a reader."""


def _is_database(head: Head) -> Confidence:
    exported = any(name in head.tables for name in EXPORT_TABLES)
    return known(exported or any("start" in head.tables.get(name, ()) for name in _EVENTS))


def is_export(folder: Path) -> bool:
    """Return whether ``folder`` holds nsys's description of an export to Parquet or Arrow."""
    return any((folder / name).exists() for name in EXPORT_FILES)


def _other_report(head: Head) -> Confidence:
    if head.has_events or not _STATS.search(head.content):
        return Confidence.NONE
    return Confidence.SUMS if head.is_json else Confidence.TITLES


_TO_SQLITE: Final = "run nsys export --type sqlite REPORT.nsys-rep"
REPORTS: Final = (
    Format(
        "nsys-report",
        lambda head: known(head.content.startswith(b"NVIDIA Tegra Profiler Report ")),
        "nsys.nsys_rep:read",
    ),
    Format(
        "nsys-stream",
        lambda head: known(b"NVIDIA Nsight Systems Stream " in head.content[:64]),
        "nsys.nsys_rep:read_stream",
    ),
)
"""The formats that nsys itself exports first."""
FORMATS: Final = (
    Format("nsys", _is_database, "nsys.reader:read_tables", is_database=True),
    Format("nsys-tables", lambda head: known(is_export(head.path)), "nsys.directory:read"),
    *REPORTS,
    *(
        Format(
            f"an nsys export of type {kind}",
            lambda head, begin=begin: known(begin.match(head.content)),  # type: ignore[misc]
            instead=_TO_SQLITE,
        )
        for kind, begin in (("json", _JSON), ("text", _TEXT))
    ),
    Format(
        "another report of nsys stats",
        _other_report,
        instead="write a summary or a trace (cuda_gpu_kern_sum, cuda_gpu_trace) with --format csv, "
        f"or {_TO_SQLITE}",
    ),
)
