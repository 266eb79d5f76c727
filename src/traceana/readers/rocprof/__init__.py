"""AMD's rocprof, rocprofv2 and rocprofv3: their databases, CSV, JSON and Perfetto traces."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from traceana.readers.format import Confidence, Format, Head, known
from traceana.readers.printed.text import ROCPROF_TITLES, rocprof_title

DISPATCHES: Final = "rocpd_kernel_dispatch"
"""How the name of rocprofv3's table of kernels begins; it ends with the process that wrote it."""
_TABLES: Final = ("OPS", "COPY", "HIP", "HSA", "rocTX")
JSON: Final = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_CHROME: Final = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"(?:\d+ )?(?:CPU (?:HIP|HSA|KFD) API|COPY)"\s*\}'
)
"""A process of rocprof's Chrome trace, which repeats its database."""
_CSV: Final = re.compile(
    b"|".join(
        f"^(?=[^\r\n]*?{rocprof_title(first)})[^\r\n]*?{rocprof_title(second)}".encode()
        for first, second in ROCPROF_TITLES
    ),
    re.MULTILINE | re.IGNORECASE,
)
_FILE: Final = (
    r"(?:kernel_trace|counter_collection|memory_copy_trace|memory_allocation_trace"
    r"|scratch_memory_trace|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg|ompt)_api_trace|agent_info"
    r"|pc_sampling_\w+)\.csv(?:\.gz)?"
)
"""How the name of each file of a run of rocprofv3 ends; statistics repeat the traces."""


def files(path: Path) -> list[Path]:
    """Return the CSV files that rocprofv3 wrote to the output ``path``; none for other paths.

    ``path`` is the prefix that ``--output-directory`` and ``--output-file`` give: ``DIR/NAME`` of
    ``DIR/NAME_kernel_trace.csv``, or the folder of ``kernel_trace.csv``.
    """
    folder, name = (path, "") if path.is_dir() else (path.parent, path.name.removesuffix("_"))
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entry.name for entry in entries)
    except OSError:
        return []
    names = re.compile(re.escape(name) + ("_" if name else "") + _FILE)
    matching = (folder / file for file in inside if names.fullmatch(file))
    return [file for file in matching if file.is_file()]


def run_of(file: Path) -> Path:
    """Return the prefix or folder of the run of rocprofv3 that ``file`` is part of, for
    :func:`files`; ``file`` itself if rocprofv3 names no file so."""
    named = re.fullmatch(f"(?:(.+)_)?{_FILE}", file.name)
    if named is None:
        return file
    return file.parent if named[1] is None else file.with_name(named[1])


def _is_csv(head: Head) -> Confidence:
    if not head.content:
        return known(not head.path.is_file() and files(head.path))
    if JSON.match(head.content):
        return Confidence.CERTAIN
    if head.is_trace:
        return Confidence.NONE
    # A search for both titles takes 20 ms of JSON's first 64 KiB, and one of these is in each pair.
    lower = head.text.lower()
    begins = (b"_timestamp", b"gpu-id", b"gpu_id", b"agent_")
    has_title = any(word in lower for word in begins) and _CSV.search(head.text)
    return known(has_title, Confidence.TIMELINE)


FORMATS: Final = (
    Format(
        "rocpd",
        lambda head: known(any(name.startswith(DISPATCHES) for name in head.tables)),
        "rocprof.rocpd:read",
        is_database=True,
        has_counters=True,
    ),
    Format(
        "rocprof",
        lambda head: known(
            any({"BeginNs", "EndNs", "Name"} <= {*head.tables.get(name, ())} for name in _TABLES)
        ),
        "rocprof.database:read",
        is_database=True,
        has_counters=True,
    ),
    Format(
        "rocprof-csv",
        _is_csv,
        "rocprof.reader:read",
        has_counters=True,
        is_printed=True,
        run_of=run_of,
    ),
    Format(
        "rocprof's results.json",
        lambda head: known(head.is_json and _CHROME.search(head.content)),
        instead="pass results.db beside it",
    ),
)
