"""Reads Kineto traces (torch.profiler's Chrome JSON) into the canonical tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceana.errors import NotATraceError
from traceana.ingest.chrome.compiled import COMPILED
from traceana.ingest.chrome.stream import Document, extent, ledger_of, read_stream
from traceana.ingest.integrity import rebase, screen
from traceana.ingest.kineto import properties
from traceana.ingest.kineto.events import Columns
from traceana.ingest.kineto.scan import DECODER
from traceana.ingest.kineto.tables import (
    activities,
    links,
    memory,
    process_groups,
    ranges,
    split_ops,
    with_launches,
)
from traceana.ingest.names import NameTable
from traceana.ingest.source import ByteSource, Progress
from traceana.trace import Trace, TraceMeta


def read(path: Path, progress: Progress) -> Trace:
    """Return the Trace of a Kineto file, plain or gzip.

    A truncated file is read up to its end; ``meta.truncated`` is set. Raises ``NotATraceError`` on
    JSON without ``traceEvents`` and ``CorruptError`` where the file ends before the first event.
    """
    source = ByteSource(path, progress)
    columns = Columns()
    end = read_stream(source, DECODER, columns.take)
    malformed = columns.left_out.get(("malformed", ""), 0)
    if malformed == columns.events and (end.bare or malformed):
        raise NotATraceError(
            f"{path} is JSON without a valid trace event: "
            "pass the file that torch.profiler exported"
        )
    return _assemble(columns, source, end)


def _assemble(columns: Columns, source: ByteSource, end: Document) -> Trace:
    keys = end.keys
    ledger = ledger_of(columns, source, end)
    calls = columns.frame("call")
    ops, annotations = split_ops(columns.frame("op"))
    annotated = pl.concat(
        [columns.frame("range"), annotations.select(columns.frame("range").columns)]
    )
    timed = {
        "activities": activities(
            with_launches(columns.frame("device"), columns.frame("launch")), calls
        ),
        "calls": _renamed(calls).drop("bytes"),
        "ops": pl.concat(
            [_renamed(ops), _renamed(columns.frame("host_collective"))], how="diagonal"
        ),
        "ranges": ranges(annotated),
    }
    tables = {name: screen(frame, name, ledger) for name, frame in timed.items()}
    tables["links"] = links(columns.frame("flow"), ledger)
    tables["memory"] = memory(columns.frame("memory"), ledger)
    tables, first_ns = rebase(tables, ledger)
    names = NameTable(ledger)
    named, tables["process_groups"] = process_groups(
        tables["activities"], properties.process_groups(keys)
    )
    tables["activities"] = named.with_columns(names.ids(named["name"]).alias("name_id")).drop(
        "name"
    )
    tables["names"] = names.frame()
    tables["devices"] = properties.devices(keys, tables["activities"]["device"])
    tables["ledger"] = ledger.frame()
    base = properties.base_ns(keys, first_ns)
    rank, world_size = properties.rank(keys)
    return Trace(
        TraceMeta(
            format="kineto",
            format_version=_text(keys.get("schemaVersion")),
            producer="torch.profiler",
            framework="PyTorch" if ops.height else None,
            epoch_ns=None if base is None else base + first_ns,
            rank=rank,
            world_size=world_size,
            properties={
                **properties.facts(keys),
                "decoder": "compiled scanner" if COMPILED else "Python (msgspec)",
            },
            **extent(columns, source, end),
        ),
        tables,
    )


def _renamed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop("category").rename({"pid": "process", "tid": "thread"})


def _text(value: object) -> str | None:
    return None if value is None else str(value)
