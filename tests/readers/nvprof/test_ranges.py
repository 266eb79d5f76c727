"""Markers of nvprof, two records a range, and its overhead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.readers.nvprof.writing import (
    END,
    INSTANT,
    KERNEL,
    MARKER,
    NOW,
    OVERHEAD,
    PROCESS,
    RUNTIME,
    START,
    THREAD,
    Row,
    call,
    database,
    kernel,
    ledger_of,
    marker,
    packed,
    trace_of,
)
from traceana.trace import Trace


def read(path: Path, rows: list[Row], table: str = MARKER) -> Trace:
    tables = {table: rows, KERNEL: [kernel(1000, 1100)], RUNTIME: [call(0, 1)]}
    return trace_of(database(path / "a.nvvp", tables))


def spans(trace: Trace) -> list[tuple[Any, ...]]:
    columns = ["text", "kind", "domain", "process", "thread", "start", "duration"]
    return trace.tables.ranges.select(columns).rows()


def test_a_start_and_an_end_are_one_range(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        [
            marker(10, START, id=1),
            marker(20, START, id=2, domain=4, name=2),
            marker(30, END, id=2, domain=4),
            marker(40, END, id=1),
        ],
    )
    assert spans(trace) == [
        ("layer1", "nvtx", None, PROCESS, THREAD, 10, 30),
        ("volta_sgemm_32x128_tn", "nvtx", "cuDNN", PROCESS, THREAD, 20, 10),
    ]
    assert ledger_of(trace) == {("range_end", MARKER): 2}


def test_an_instant(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, INSTANT)])
    assert spans(trace) == [("layer1", "mark", None, PROCESS, THREAD, 10, 0)]


def test_an_id_that_is_given_again(tmp_path: Path) -> None:
    rows = [marker(t, flag) for t, flag in [(1, START), (3, END), (4, START), (9, END)]]
    assert [(row[-2], row[-1]) for row in spans(read(tmp_path, rows))] == [(1, 2), (4, 5)]


def test_a_range_of_two_threads_need_not_nest(tmp_path: Path) -> None:
    rows = [marker(1, START), marker(3, END, objectId=packed(tid=5))]
    assert spans(read(tmp_path, rows)) == [("layer1", "nvtx_start", None, PROCESS, None, 1, 2)]


def test_a_range_of_a_process_need_not_nest(tmp_path: Path) -> None:
    rows = [marker(1, START, objectKind=1), marker(3, END, objectKind=1)]
    assert spans(read(tmp_path, rows)) == [("layer1", "nvtx_start", None, PROCESS, None, 1, 2)]


def test_a_range_that_was_never_closed_ends_with_the_last_event(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, START)])
    assert spans(trace) == [("layer1", "nvtx", None, PROCESS, THREAD, 10, 1090)]
    why = "never closed: end set to the last event"
    assert ledger_of(trace) == {("missing_time", why): 1}


def test_an_end_whose_time_was_lost(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, START), marker(-NOW, END)])
    assert [row[-1] for row in spans(trace)] == [1090]


def test_an_end_without_a_start(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, END, id=9)])
    assert trace.tables.ranges.is_empty()
    assert ledger_of(trace) == {("missing_time", f"{MARKER}: ends without a start"): 1}


def test_marks_of_locks_are_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, 8), marker(11, 16)])
    assert trace.tables.ranges.is_empty()
    why = f"{MARKER}: synchronization markers"
    assert ledger_of(trace) == {("unknown_category", why): 2}


def test_a_truncated_or_missing_owner(tmp_path: Path) -> None:
    rows = [
        marker(10, INSTANT, objectId=b"\x01\x00"),
        marker(11, INSTANT, objectKind=5),
        marker(12, INSTANT, objectId=None),
    ]
    assert [row[3:5] for row in spans(read(tmp_path, rows))] == [(None, None)] * 3


def test_a_text_that_is_not_in_the_file(tmp_path: Path) -> None:
    trace = read(tmp_path, [marker(10, INSTANT, name=777), marker(11, INSTANT, name=0)])
    assert [row[0] for row in spans(trace)] == [None, None]
    assert ledger_of(trace) == {("unnamed", MARKER): 2}


def test_overhead(tmp_path: Path) -> None:
    times = {"start": NOW + 5, "end": NOW + 8, "objectId": packed()}
    rows = [
        {"overheadKind": 1, "objectKind": 2, **times},
        {"overheadKind": 3 << 16, "objectKind": 1, **times},
        {"overheadKind": 12345, "objectKind": 3, **times},
    ]
    assert spans(read(tmp_path, rows, OVERHEAD)) == [
        ("Driver Compiler", "overhead", None, PROCESS, THREAD, 5, 3),
        ("Resource", "overhead", None, PROCESS, None, 5, 3),
        ("Unknown", "overhead", None, None, None, 5, 3),
    ]
