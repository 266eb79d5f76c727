"""Tables of the operations of a training job: all ranks and steps in one file.

A Parquet file with a row for each operation, as ByteDance's straggler analysis publishes them, and
the Chrome trace that it writes of such a table.
"""

from __future__ import annotations

import re
from typing import Final

from traceana.errors import CorruptError
from traceana.readers.format import Confidence, Format, Head, known
from traceana.readers.parquet import MAGIC, ParquetFiles

COLUMNS: Final = (
    *("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id"),
    *("mc", "mb_id"),
)
"""The columns of the table that are read; times are seconds."""
_CATEGORY: Final = re.compile(rb'"cat"\s*:\s*"(?:forward|backward)-compute"')
_MICRO_BATCH: Final = re.compile(rb'"args"\s*:\s*\{[^{}]*"mb_id"\s*:')


def _is_parquet(head: Head) -> bool:
    return head.content.startswith(MAGIC)


def _is_table(head: Head) -> Confidence:
    if not _is_parquet(head):
        return Confidence.NONE
    try:
        columns = ParquetFiles().columns(head.path)
    except CorruptError:
        # Its reader has the error.
        return Confidence.CERTAIN
    return known({*COLUMNS} <= {*columns})


FORMATS: Final = (
    Format("job-table", _is_table, "job_operations.reader:read_table"),
    Format(
        "a Parquet file, but not a table of a job's operations "
        "(dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, mb_id)",
        lambda head: known(_is_parquet(head)),
        instead="pass the folder of an nsys export, or the trace",
    ),
    Format(
        "job-timeline",
        lambda head: known(
            head.is_json
            and head.has_events
            and _CATEGORY.search(head.content)
            and _MICRO_BATCH.search(head.content)
        ),
        "job_operations.reader:read_timeline",
    ),
)
