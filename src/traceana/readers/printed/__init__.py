"""What profilers print: timelines, summaries and counters, as text, CSV and in other tables."""

from __future__ import annotations

import re
from typing import Final

from traceana.readers.format import Confidence, Format, Head, known
from traceana.readers.printed.text import (
    NCU_HEADER,
    NSYS_COLUMNS,
    NVPROF_METRICS_TITLES,
    NVPROF_TITLES,
    SUMMARY_TITLES,
    nsys_summaries,
)

_BEGIN: Final = rb"^(?:[ \t#>|*`]|\x1b\[[\d;]*m)*"
_NCU: Final = re.compile(
    f"^{NCU_HEADER}".encode() + rb"|^[ \t#>]+\S.*, Context \d+, Stream \d+(?:, Device.*)?\s*\n"
    rb"(?:.*\n){0,19}?[ \t#>]+Section: ",
    re.MULTILINE,
)
"""Nsight Compute's CSV, and a launch on the page that it prints as text."""
_TIMELINE: Final = re.compile(_BEGIN + f"(?:{NVPROF_TITLES}|{NSYS_COLUMNS})".encode(), re.MULTILINE)
_NVPROF_LOG: Final = re.compile(
    _BEGIN + rb"(?:==\d+==|={8}) "
    rb"(?:NVPROF|Profiling|Error|Warning|CPU profiling|Generated result)|"
    rb"^No (?:kernels|API activities|events/metrics) were profiled|\A\s*\"?Err:5\d\d\b",
    re.MULTILINE,
)
"""nvprof's messages before its tables, also without a table. A spreadsheet that opens its CSV
takes ``========`` for a formula, and saves Err:510."""
_METRICS: Final = re.compile(_BEGIN + f"(?:{NVPROF_METRICS_TITLES})".encode(), re.MULTILINE)
_SUMMARY: Final = re.compile(
    _BEGIN + rb"(?:" + SUMMARY_TITLES.encode()
    + rb"|(?:Self [A-Z]\w{1,30}|CPU|CUDA|XPU|HPU|MTIA|PrivateUse1) time total: )",
    re.MULTILINE,
)  # fmt: skip


def _is_timeline(head: Head) -> Confidence:
    if head.is_trace:
        return Confidence.NONE
    if _TIMELINE.search(head.text):
        return Confidence.TIMELINE
    return known(_NVPROF_LOG.search(head.text), Confidence.LOG)


def _is_summary(head: Head) -> Confidence:
    if not head.content:
        return known(nsys_summaries(head.path))
    return known(not head.is_trace and _SUMMARY.search(head.text), Confidence.SUMS)


FORMATS: Final = (
    Format(
        "a report of Nsight Compute",
        lambda head: known(head.content.startswith(b"NVR\0")),
        instead="write its table with ncu --import {file} --csv --page raw",
    ),
    Format(
        "ncu-csv",
        lambda head: known(not head.is_trace and _NCU.search(head.text)),
        "printed.ncu:read",
        has_counters=True,
        is_printed=True,
        in_folders=False,
    ),
    Format(
        "nvprof-printed",
        _is_timeline,
        "printed.timelines:read",
        is_printed=True,
        in_folders=False,
    ),
    Format("summary", _is_summary, "printed.summaries:read", is_printed=True, in_folders=False),
    Format(
        "nvprof-metrics",
        lambda head: known(not head.is_trace and _METRICS.search(head.text), Confidence.COUNTERS),
        "printed.metrics:read",
        has_counters=True,
        is_printed=True,
        in_folders=False,
    ),
)
