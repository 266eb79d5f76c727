"""The titles by which the tables that profilers print are known."""

from __future__ import annotations

import re
from typing import Final

NCU_HEADER: Final = re.compile(rb'^"ID",(?="[^\r\n]*"Kernel Name",)', re.MULTILINE)
"""The header of Nsight Compute's table; the output of the profiled program may come before it."""
NVPROF_TITLES: Final = (
    r'(?:"?(?:Start"?(?:,"?Duration"?,| {2,}Duration {2,})|Name"?,"?Start Time\(ns\)"?,)'
    r"|Start \([num]?s\),Duration \([num]?s\),(?:CorrId,GrdX,|Name,Result,CorrID,))"
)
"""The beginning of a table: nvprof's in columns or CSV, the Visual Profiler's CSV, the CSV of
``cuda_gpu_trace`` and ``cuda_api_trace`` of Nsight Systems."""
NSYS_COLUMNS: Final = (
    r"Start \([num]?s\) {2,}Duration \([num]?s\) {2,}"
    r"(?:CorrId {2,}GrdX {2,}|Name {2,}Result {2,}CorrID {2,})"
)
"""The beginning of the same in columns."""
SUMMARY_TITLES: Final = "|".join(
    (
        # nvprof's, of both layouts, and those of Nsight Systems.
        r'(?:"?(?:Device|Type|Name)"?[",;| \t]+){0,2}"?Time ?\(%\).{1,30}\bTime\b.{1,30}'
        r"\b(?:Calls|Instances|Operations|Count)\b",
        r'"?Total(?: \(\w+\))?"?[ \t,|]+"?(?:Operations|Count)\b',
        # torch's key_averages(), rocprof's and rocpd's, MXNet's.
        r"Name[ \t|,]+(?:Overload Name[ \t|,]+)?(?:Self )?(?:CPU|CUDA|XPU|HPU|MTIA|PrivateUse1)\b",
        r'(?:ProcessID +Hostname +)?"?(?:Name|NAME)"?[ \t,|]+(?:"?DOMAIN"?[ \t,|]+)?"?'
        r'(?:Calls|CALLS)"?[ \t,|]+"?(?:TotalDuration|DURATION)',
        r"Name {2,}Total Count",
    )
)
"""The beginning of a table of a summary: names with calls and times."""
NVPROF_METRICS_TITLES: Final = (
    r'"?Device"?,"?Kernel"?,"?Invocations|Invocations {2,}(?:Metric|Event) Name'
)
"""The beginning of a table of ``nvprof --metrics`` or ``--events``: CSV, columns."""
ROCPROF_TITLES: Final = (
    # two titles of each table: kernels and counters, copies and calls, agents, samples
    ("Kernel_?Name", "Start_Timestamp|gpu[-_]id|Agent_Id"),
    ("Direction|Function|Operation", "Start_Timestamp"),
    ("Node_Id", "Agent_Type"),
    ("Sample_Timestamp", "Dispatch_Id"),
)
"""Titles by which the tables in rocprof's CSV are known, in either order."""


def rocprof_title(words: str) -> str:
    """Return the pattern of a title that is one of ``words``, in a header of CSV."""
    return rf'\b(?:{words})\b"?\s*(?:,|$)'
