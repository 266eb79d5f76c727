"""Annotations of nsys exports: NVTX of both schemas, domains, library calls, overhead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.nsys.writing import (
    RUNTIME,
    Row,
    Tables,
    call,
    export,
    gid,
    ledger_of,
    nvtx,
    trace_of,
    write,
)
from traceana.trace import Trace

NVTX = "NVTX_EVENTS"
TYPES = [
    {"id": 34, "name": "NvtxMark", "label": ""},
    {"id": 59, "name": "NvtxPushPopRange", "label": ""},
    {"id": 60, "name": "NvtxStartEndRange", "label": ""},
    {"id": 75, "name": "NvtxDomainCreate", "label": ""},
    {"id": 200, "name": "NvtxOfTomorrow", "label": ""},
]


def ranges(tmp_path: Path, rows: list[dict[str, Any]], **tables: Any) -> Trace:
    return trace_of(export(tmp_path / "a.sqlite", {NVTX: rows, **tables}))


@pytest.mark.parametrize("enumerated", [False, True])
def test_kinds_of_events_with_and_without_the_enumeration(tmp_path: Path, enumerated: bool) -> None:
    rows = [
        nvtx(10, 90),
        nvtx(20, 80, eventType=60, rangeId=3),
        nvtx(30, None, eventType=34),
        nvtx(5, None, eventType=75, text="mine", textId=None, domainId=4),
        nvtx(40, 50, domainId=4),
        nvtx(40, 51, domainId=6),
        nvtx(41, None, eventType=39, text="a thread", textId=None),
        nvtx(42, 43, eventType=200),
    ]
    for row in rows:
        row.setdefault("rangeId", None)
    enumeration = {"ENUM_NSYS_EVENT_TYPE": TYPES} if enumerated else {}
    trace = ranges(tmp_path, rows, **enumeration)
    assert trace.tables.ranges.select("text", "kind", "domain", "start", "duration").rows() == [
        ("layer1", "nvtx", None, 0, 80),
        ("layer1", "nvtx_start", None, 10, 60),
        ("layer1", "mark", None, 20, 0),
        ("layer1", "nvtx", "mine", 30, 10),
        ("layer1", "nvtx", "domain 6", 30, 11),
    ]
    unknown = "NvtxOfTomorrow" if enumerated else "type 200"
    assert ledger_of(trace) == {
        ("metadata", f"{NVTX}: NvtxThread"): 1,
        ("metadata", f"{NVTX}: NvtxDomainCreate"): 1,
        ("unknown_category", f"{NVTX}: {unknown}"): 1,
    }


@pytest.mark.parametrize(
    ("text", "text_id", "read"),
    [
        ("in place", None, "in place"),
        ("in place", 5, "in place"),
        (None, 5, "layer1"),
        ("", 5, "layer1"),
        ("", None, ""),
        (None, None, ""),
        (None, 0, ""),  # the first exports have no nulls
        (None, 999, None),
    ],
)
def test_text_is_inline_or_registered(
    tmp_path: Path, text: str | None, text_id: int | None, read: str | None
) -> None:
    trace = ranges(tmp_path, [nvtx(1, 2, text=text, textId=text_id)])
    assert trace.tables.ranges["text"].to_list() == [read]
    assert ledger_of(trace) == ({} if read is not None else {("unnamed", NVTX): 1})


def test_text_whose_first_rows_are_null_and_many_pages_later_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceana.readers.sqlite.PAGE_ROWS", 4)
    rows = [nvtx(i, i + 1, text=None if i < 40 else f"t{i}") for i in range(1, 60)]
    texts = ranges(tmp_path, rows).tables.ranges["text"].to_list()
    assert texts == ["layer1"] * 39 + [f"t{i}" for i in range(40, 60)]


def test_a_range_that_was_never_closed_ends_with_the_last_event(tmp_path: Path) -> None:
    rows = [nvtx(10, None), nvtx(20, 0, eventType=60), nvtx(30, 40)]
    trace = ranges(tmp_path, rows, **{RUNTIME: [call(50, 110)]})
    assert trace.tables.ranges["duration"].to_list() == [100, 90, 10]
    entry = trace.tables.ledger.row(0, named=True)
    assert (entry["reason"], entry["count"], entry["kept"]) == ("missing_time", 2, True)


def test_threads_and_processes(tmp_path: Path) -> None:
    rows = [
        nvtx(1, 2),
        nvtx(1, 3, globalTid=gid(9, 4)),
        nvtx(1, 4, eventType=60, endGlobalTid=gid(7, 8)),
        nvtx(1, 5, eventType=60, endGlobalTid=gid(7, 11)),
        nvtx(1, 6, eventType=60, endGlobalTid=0),
    ]
    trace = ranges(tmp_path, rows)
    assert trace.tables.ranges.select("process", "thread").rows() == [
        (7, 8),
        (9, 4),
        (7, 8),
        (7, None),  # began on one thread, ended on another: of no thread
        (7, 8),
    ]


def test_a_domain_is_of_its_process(tmp_path: Path) -> None:
    created = {"eventType": 75, "textId": None, "domainId": 1}
    rows = [
        nvtx(1, None, text="NCCL", **created),
        nvtx(1, None, text="cuBLAS", globalTid=gid(9), **created),
        nvtx(2, 3, domainId=1),
        nvtx(2, 3, domainId=1, globalTid=gid(9, 9)),
    ]
    assert ranges(tmp_path, rows).tables.ranges["domain"].to_list() == ["NCCL", "cuBLAS"]


def test_an_export_with_times_and_texts_alone(tmp_path: Path) -> None:
    rows: list[Row] = [{"start": 5, "end": 9, "text": "a"}, {"start": 6, "end": None, "text": "b"}]
    trace = trace_of(
        write(tmp_path / "a.sqlite", {NVTX: rows, "StringIds": [{"id": 1, "value": ""}]})
    )
    assert trace.tables.ranges.select("text", "kind", "duration").rows() == [
        ("a", "nvtx", 4),
        ("b", "mark", 0),
    ]


def test_library_and_system_calls_and_overhead_are_ranges(tmp_path: Path) -> None:
    row: Row = {"start": 1, "end": 5, "globalTid": gid(7, 8), "nameId": 2}
    tables: Tables = {
        "CUDNN_EVENTS": [row],
        "CUBLAS_EVENTS": [row],
        "OSRT_API": [row],
        "PROFILER_OVERHEAD": [row],
        "CUPTI_ACTIVITY_KIND_OVERHEAD": [
            {**row, "nameId": None, "start": kind, "end": 9, "overheadType": kind}
            for kind in range(2, 9)
        ],
    }
    trace = trace_of(export(tmp_path / "a.sqlite", tables))
    assert trace.tables.ranges.select(pl.col("text", "kind", "domain").cast(pl.String)).rows() == [
        ("conv", "nvtx", "cuDNN"),
        ("conv", "nvtx", "cuBLAS"),
        ("conv", "osrt", None),
        ("conv", "overhead", None),
        ("Driver Compiler", "overhead", None),
        ("Buffer Flush", "overhead", None),
        ("Instrumentation", "overhead", None),
        ("Resource", "overhead", None),
        ("Runtime Triggered Module Loading", "overhead", None),
        ("Lazy Function Loading", "overhead", None),
        ("Command Buffer Full", "overhead", None),
    ]
    assert trace.tables.ledger.is_empty()
