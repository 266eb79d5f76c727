"""Tables and timelines of a training job's operations as canonical tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traceana
from tests.job.operations import Job
from traceana.errors import CorruptError, NotATraceError, TraceanaError, UnknownFormatError
from traceana.readers import read
from traceana.readers.detect import detect
from traceana.readers.job_operations import COLUMNS


def test_every_operation_is_work_of_its_rank(tmp_path: Path) -> None:
    job = Job(dp=2, pp=3, steps=4)
    trace = traceana.open(job.write(tmp_path / "job.parquet"))
    table = job.operations()
    activities = trace.tables.activities
    assert trace.meta.format == "job-table"
    assert trace.meta.world_size == 6
    assert activities.height == table.height == trace.meta.events == trace.tables.operations.height
    assert sorted(activities["rank"].unique()) == list(range(6))
    assert set(trace.work["category"].cast(pl.String)) == {"collective", "optimizer", "pass"}
    seconds = table.group_by("rank", "optype").agg(pl.col("duration").sum()).sort("rank", "optype")
    work = trace.work.with_columns(pl.col("name").cast(pl.String))
    summed = work.group_by("rank", "name").agg(pl.col("duration").sum()).sort("rank", "name")
    assert summed["name"].to_list() == seconds["optype"].to_list()
    assert summed["duration"].to_list() == pytest.approx((seconds["duration"] * 1e9).to_list())


def test_steps_that_begin_anew_are_laid_end_to_end(tmp_path: Path) -> None:
    trace = traceana.open(Job(dp=2, pp=2, steps=5).write(tmp_path / "job.parquet"))
    steps = trace.tables.steps.filter(rank=0).sort("start")
    assert steps["number"].to_list() == [5, 8, 11, 14, 17]
    assert (steps["start"] + steps["duration"])[:-1].equals(steps["start"][1:], check_names=False)
    step = trace.tables.steps["number"].gather(trace.tables.activities["step"])
    assert step.equals(trace.tables.operations["step"], check_names=False)


def test_groups_and_neighbours(tmp_path: Path) -> None:
    trace = traceana.open(Job(dp=2, pp=3, steps=2).write(tmp_path / "job.parquet"))
    groups = trace.tables.process_groups.with_row_index("process_group")
    work = trace.tables.activities.select(
        trace.tables.names["name"].gather(trace.tables.activities["name_id"]),
        pl.col("collective").cast(pl.String),
        "peer",
        "rank",
    )
    sends = work.filter(name="forward-send", rank=2)
    assert sends["peer"].unique().to_list() == [4]
    assert sends["collective"].unique().to_list() == ["send"]
    receives = work.filter(name="backward-recv", rank=2)
    assert receives["peer"].unique().to_list() == [4]
    group_of = trace.tables.activities.with_columns(work["name"]).join(groups, on="process_group")
    ranks = dict(group_of.filter(rank=4).select("name", "ranks").unique().rows())
    assert ranks["grads-reduce-scatter"] == "[4, 5]"
    assert ranks["embedding-grads-all-reduce"] == "[0, 4]"
    assert ranks["forward-recv"] == "[0, 2, 4]"
    assert ranks["optimizer-clip-main-grad"] is None


def test_the_timeline_has_the_same_operations(tmp_path: Path) -> None:
    job = Job(dp=2, pp=2, steps=3)
    table = read(job.write(tmp_path / "job.parquet"))
    timeline = read(job.write_timeline(tmp_path / "job.json"))
    assert timeline.meta.format == "job-timeline"
    both = []
    for trace in (table, timeline):
        names = trace.tables.names["name"]
        rows = trace.tables.operations.with_columns(
            names.gather(trace.tables.activities["name_id"]).alias("name"),
            trace.tables.activities["rank"],
            trace.tables.activities["duration"],
        ).drop("activity")
        both.append(rows.sort("name", "rank", "step", "sequence"))
    assert both[0].drop("duration").equals(both[1].drop("duration"))
    assert (both[0]["duration"] - both[1]["duration"]).abs().max() <= 2  # type: ignore[operator]


def test_a_small_negative_duration_is_an_error_of_the_clock(tmp_path: Path) -> None:
    table = Job(dp=2, pp=1, steps=2).operations()
    row = pl.int_range(pl.len())
    late = pl.when(row == 3).then(-3e-5).when(row == 4).then(-1.0).otherwise("duration")
    table.with_columns(late.alias("duration")).write_parquet(tmp_path / "job.parquet")
    trace = read(tmp_path / "job.parquet")
    assert trace.tables.activities.height == table.height - 1
    counted = dict(trace.tables.ledger.select("reason", "count").rows())
    assert counted["lost_field"] == counted["negative_duration"] == 1


def test_rows_without_a_rank_are_counted(tmp_path: Path) -> None:
    table = Job(dp=2, pp=1, steps=2).operations()
    gaps = {name: pl.when(pl.int_range(pl.len()) % 7 != 0).then(name) for name in ("rank", "step")}
    table.with_columns(**gaps).write_parquet(tmp_path / "job.parquet")
    trace = read(tmp_path / "job.parquet")
    ledger = dict(trace.tables.ledger.select("reason", "count").rows())
    assert trace.tables.activities.height + ledger["malformed"] == table.height
    table.with_columns(pl.lit(None, pl.Int64).alias("rank")).write_parquet(tmp_path / "no.parquet")
    with pytest.raises(NotATraceError, match="no operation"):
        read(tmp_path / "no.parquet")


def test_other_parquet_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(other)
    with pytest.raises(UnknownFormatError, match="not a table of a job's operations"):
        detect(other)
    content = Job(dp=2, pp=1, steps=2).write(tmp_path / "job.parquet").read_bytes()
    other.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptError, match="damaged"):
        read(other)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_table_with_these_columns_is_a_trace_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(0, 6))
    numbers = st.one_of(
        st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-1, 5), st.integers(0, 3)
    )
    texts = st.one_of(st.none(), st.sampled_from(["forward-compute", "optimizer", "a-send", ""]))
    floats = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.just(1.5))
    columns = {
        name: pl.Series(
            data.draw(
                st.lists(
                    texts if name == "optype" else floats if name in _SECONDS else numbers,
                    min_size=rows,
                    max_size=rows,
                )
            ),
            dtype=pl.String if name == "optype" else pl.Float64 if name in _SECONDS else pl.Int64,
        )
        for name in COLUMNS
    }
    path = tmp_path_factory.mktemp("table") / "job.parquet"
    pl.DataFrame(columns).write_parquet(path)
    try:
        trace = traceana.open(path)
    except TraceanaError:
        return
    lost = trace.tables.ledger.filter(~pl.col("kept"), pl.col("table") == "activities")
    assert trace.tables.activities.height + lost["count"].sum() == rows
    assert trace.tables.operations.height == trace.tables.activities.height


_SECONDS = ("start_ts", "duration")
