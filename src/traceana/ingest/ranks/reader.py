"""Reads the files of one distributed run into one Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from traceana.errors import NotATraceError, TraceanaError
from traceana.ingest.progress import Progress
from traceana.ingest.ranks.numbering import ranks
from traceana.trace import Ledger, Trace, TraceMeta
from traceana.trace.merge import merge

Open = Callable[[Path, Progress], Trace]
"""Reads and attributes one file."""


def read_ranks(
    source: str,
    files: Sequence[Path],
    open_one: Open,
    progress: Progress,
    *,
    found_in_folder: bool,
) -> Trace:
    """Return one Trace of ``files``; ``source`` is what the user named.
    ``found_in_folder`` tells that the user did not name them one by one.

    A file that cannot be read is left out and counted in the ledger as ``skipped_file``; when none
    can, its error is raised. Times are aligned by each file's epoch.
    """
    sizes = [file.stat().st_size if file.is_file() else 0 for file in files]
    traces: list[Trace] = []
    read: list[Path] = []
    ledger = Ledger()
    first_error: TraceanaError | None = None
    for i, file in enumerate(files):
        before = sum(sizes[:i])

        def report(done: int, total: int, before: int = before, size: int = sizes[i]) -> None:
            progress(before + (size * done // total if total else size), sum(sizes))

        try:
            traces.append(open_one(file, report))
            read.append(file)
        except NotATraceError as error:
            # Any JSON may lie in a folder; in a list of files it was meant.
            if not found_in_folder:
                ledger.add("skipped_file", 1, table="-", kept=True, detail=str(error))
            first_error = first_error or error
        except TraceanaError as error:
            first_error = first_error or error
            ledger.add("skipped_file", 1, table="-", kept=True, detail=str(error))
    if first_error is not None and not traces:
        raise first_error
    if len(traces) == 1 and not ledger:
        return traces[0]
    numbers, how = ranks(read, [trace.meta.rank for trace in traces])
    unaligned = sum(trace.meta.epoch_ns is None for trace in traces)
    if len(traces) > 1:
        ledger.add(
            "no_epoch", unaligned, table="-", kept=True, detail="these begin with the earliest"
        )
    merged = merge(traces, numbers, _meta(source, read, traces, numbers, how))
    added = ledger.frame()
    return merged.with_tables(ledger=pl.concat([merged.ledger, added]))


def _meta(
    source: str, files: Sequence[Path], traces: Sequence[Trace], numbers: Sequence[int], how: str
) -> TraceMeta:
    metas = [trace.meta for trace in traces]
    epochs = [meta.epoch_ns for meta in metas if meta.epoch_ns is not None]

    hosts = {
        str(number): ", ".join(names)
        for number, meta in zip(numbers, metas, strict=True)
        if (names := meta.properties.get("hostnames"))
    }

    def common(values: set[str | None]) -> str | None:
        return values.pop() if len(values) == 1 else None

    return TraceMeta(
        source=source,
        format=common({meta.format for meta in metas}) or "mixed",
        format_version=common({meta.format_version for meta in metas}),
        producer=common({meta.producer for meta in metas}),
        framework=common({meta.framework for meta in metas}),
        epoch_ns=min(epochs, default=None),
        world_size=max((meta.world_size for meta in metas if meta.world_size), default=None),
        truncated=any(meta.truncated for meta in metas),
        bytes_read=sum(meta.bytes_read or 0 for meta in metas),
        bytes_total=sum(meta.bytes_total or 0 for meta in metas),
        events=sum(meta.events or 0 for meta in metas),
        properties={
            "ranks": dict(zip((str(n) for n in numbers), (str(f) for f in files), strict=True)),
            "ranks_known": how,
            **({"hosts": hosts} if hosts else {}),
        },
    )
