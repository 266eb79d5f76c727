"""Waits for events: the stream and the call that recorded the event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.readers.nsys.writing import SYNC, export, gid, ledger_of, trace_of

EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NO_EVENT = 0xFFFFFFFF


def wait(start: int, correlation: int, event: int, *, kind: int = 2, **columns: Any) -> Any:
    return {
        "start": start, "end": start + 2, "contextId": 1, "streamId": 20, "globalPid": gid(7),
        "correlationId": correlation, "syncType": kind, "eventId": event, **columns,
    }  # fmt: skip


def record(correlation: int, stream: int, event: int, **columns: Any) -> Any:
    return {
        "deviceId": 0, "contextId": 1, "streamId": stream, "correlationId": correlation,
        "globalPid": gid(7), "eventId": event, **columns,
    }  # fmt: skip


def waits(path: Path, syncs: list[Any], records: list[Any]) -> list[tuple[int | None, int | None]]:
    tables = {SYNC: syncs, **({EVENT: records} if records else {})}
    trace = trace_of(export(path / "a.sqlite", tables))
    assert trace.meta.events == len(syncs) + len(records)
    assert ledger_of(trace).get(("event_record", EVENT), 0) == len(records)
    return trace.tables.activities.select("event_stream", "event_correlation").rows()


def test_an_event_is_the_last_of_its_number_before_the_wait(tmp_path: Path) -> None:
    syncs = [wait(50, 14, 3), wait(10, 12, 3), wait(70, 15, 4), wait(90, 17, NO_EVENT, kind=3)]
    records = [record(13, 9, 3), record(11, 8, 3), record(16, 7, 4), record(10, 6, 3)]
    assert waits(tmp_path, syncs, records) == [(9, 13), (8, 11), (None, None), (None, None)]


def test_the_number_of_the_wait_decides_where_there_is_one(tmp_path: Path) -> None:
    # Recorded again by another thread before the wait was asked for, but after it was numbered.
    syncs = [wait(50, 14, 3, eventSyncId=100), wait(60, 15, 3, eventSyncId=102)]
    records = [record(11, 8, 3, eventSyncId=100), record(13, 9, 3, eventSyncId=101)]
    assert waits(tmp_path, syncs, records) == [(8, 11), (None, None)]


@pytest.mark.parametrize("other", [{"contextId": 2}, {"globalPid": gid(8)}])
def test_streams_of_another_context_or_process_are_not_meant(
    tmp_path: Path, other: dict[str, int]
) -> None:
    assert waits(tmp_path, [wait(50, 14, 3)], [record(11, 8, 3, **other)]) == [(None, None)]


def test_a_record_without_a_stream(tmp_path: Path) -> None:
    assert waits(tmp_path, [wait(50, 14, 3)], [record(11, NO_EVENT, 3)]) == [(None, None)]


def test_without_records_events_are_null(tmp_path: Path) -> None:
    assert waits(tmp_path, [wait(50, 14, 3)], []) == [(None, None)]


def test_a_wait_without_a_correlation_has_no_record(tmp_path: Path) -> None:
    syncs = [wait(50, 0, 3)]
    assert waits(tmp_path, syncs, [record(11, 8, 3)]) == [(None, None)]


def test_records_are_no_activities(tmp_path: Path) -> None:
    trace = trace_of(export(tmp_path / "a.sqlite", {EVENT: [record(11, 8, 3)]}))
    assert trace.tables.activities.select(pl.len()).item() == 0
    assert ledger_of(trace)[("event_record", EVENT)] == 1
