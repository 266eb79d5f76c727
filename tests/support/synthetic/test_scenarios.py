"""Both formats' readers find the exact values of a scenario."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.support.synthetic import GPU, Scenario, both, overlapping, write_kineto
from traceana import Trace

ACTIVITY = (
    *("kind", "start", "duration", "process", "device", "context", "stream", "correlation"),
    *("bytes", "copy_kind", "source_memory", "destination_memory", "name", "step"),
)
CALL = ("name", "process", "thread", "start", "duration", "correlation")


def everything() -> Scenario:
    """Return a run that has each kind of record."""
    run = Scenario([GPU(), GPU()])
    run.step(1, 0, 50_000)
    run.data_loader(0, 4_000)
    run.operator("aten::copy_", 4_000, 9_000)
    run.copy("HtoD", 4096, at=4_100, begins=5_000, duration=2_000, memory="pageable")
    run.copy("DtoH", 16, at=9_000, begins=9_500, duration=300, synchronous=True)
    run.copy("DtoD", 2048, at=10_000, begins=10_500, duration=100)
    run.copy("PtoP", 512, at=10_200, begins=10_700, duration=100, stream=9)
    run.copy("HtoH", 64, at=10_400, begins=10_900, duration=50, memory="pinned")
    run.memset(1024, at=11_000, begins=11_500, duration=40)
    first = run.launch(at=12_000, begins=13_001, duration=5_003)
    ready = run.record_event(at=12_200, completed=first.end)
    run.wait_event(ready, 20, at=12_400)
    run.collective(20, at=12_600, begins=first.end, duration=3_000)
    run.launch(7, at=12_800, begins=15_000, duration=10, device=1, name="other")
    run.malloc(14_000, 16_000)
    run.free(16_000, 17_000)
    run.sync(17_000, 21_100, "stream", stream=20)
    run.sync(21_200, 21_300, "event", event=ready)
    run.sync(21_400, 21_500)
    run.overhead(22_000, 23_000)
    run.range("evaluate", 24_000, 30_000)
    return run


def rows(trace: Trace, table: str, columns: tuple[str, ...]) -> list[str]:
    frame = trace.tables[table]
    if table == "activities":
        # Kineto has the kind of memory of a memset only in the name.
        is_set = pl.col("kind") == "memset"
        frame = frame.with_columns(
            trace.tables.names["name"].gather(frame["name_id"]).alias("name"),
            pl.when(is_set.not_()).then("destination_memory").alias("destination_memory"),
        )
    return sorted(map(str, frame.select(columns).rows()))


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    return both(everything(), tmp_path_factory.mktemp("scenario"))


def test_both_formats_are_detected_by_content(traces: list[Trace]) -> None:
    assert [trace.meta.format for trace in traces] == ["nsys", "kineto"]


@pytest.mark.parametrize(("table", "columns"), [("activities", ACTIVITY), ("calls", CALL)])
def test_both_formats_have_equal_tables(
    traces: list[Trace], table: str, columns: tuple[str, ...]
) -> None:
    by_nsys, by_kineto = (rows(trace, table, columns) for trace in traces)
    assert by_nsys == by_kineto
    assert by_nsys


def test_the_readers_find_what_was_described(traces: list[Trace]) -> None:
    run = everything()
    for trace in traces:
        work = trace.tables.activities.filter(pl.col("kind") != "sync")
        assert sorted(work.select("start", "duration").rows()) == sorted(
            (work.start, work.duration) for work in run.work
        )
        syncs = trace.tables.activities.filter(pl.col("kind") == "sync")
        assert sorted(syncs.select("start", "duration", "stream").rows(), key=str) == sorted(
            ((sync.start, sync.duration, sync.stream) for sync in run.syncs), key=str
        )
        assert trace.tables.calls.height == len(run.calls)
        assert trace.tables.steps.select("number", "start", "duration").rows() == [(1, 0, 50_000)]
        assert trace.tables.ops["name"].to_list() == ["aten::copy_"]
        texts = (
            trace.tables.ranges.filter(pl.col("kind") == "overhead")
            .select("start", "duration")
            .rows()
        )
        assert texts == [(22_000, 1_000)]
        assert set(trace.tables.devices["name"]) == {"NVIDIA A100-SXM4-80GB"}
        assert trace.tables.activities.filter(pl.col("kind") != "sync")["call"].null_count() == 0


def test_work_is_refused_that_no_gpu_does() -> None:
    run = Scenario()
    run.launch(at=0, begins=10, duration=10)
    with pytest.raises(ValueError, match="busy from 10 to 20"):
        run.launch(at=0, begins=19, duration=1)
    with pytest.raises(ValueError, match="before it was asked for"):
        run.launch(8, at=5, begins=4, duration=1)
    run.launch(8, at=0, begins=19, duration=1)


def test_an_overlap_is_exact_or_refused() -> None:
    run = Scenario()
    kernel = run.launch(at=0, begins=100, duration=1_000)
    assert overlapping(kernel, 1_000, 37) == 1_100 - 370
    with pytest.raises(ValueError, match="cannot be hidden exactly"):
        overlapping(kernel, 101, 37)
    with pytest.raises(ValueError, match="cannot be hidden exactly"):
        overlapping(kernel, 10_000, 37)


def test_kineto_has_no_migrations(tmp_path: Path) -> None:
    run = Scenario()
    run.migrate("HtoD", 65_536, begins=0, duration=10)
    with pytest.raises(ValueError, match="no migrations"):
        write_kineto(run, tmp_path / "scenario.json")
