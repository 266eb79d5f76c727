"""The labelled work: a row for each piece of work, with labels equal to those of the tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.table import names_of
from traceana.trace import Tables
from traceana.trace.work import COLUMNS, labels, layer_labels, work

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_every_label_of_a_kernel_copy_and_memset() -> None:
    builder = TraceBuilder()
    conv1 = builder.layer("features.0", "Conv2d")
    sgd = builder.layer("SGD", role="optimizer")
    operator = builder.row("ops", name="aten::conv2d", start=0, duration=5)
    step = builder.step(7, 0, 100)
    builder.name("dgrad_kernel", category="conv", algorithm="winograd", direction="dgrad")
    builder.kernel(
        "dgrad_kernel", 10, 30, layer=conv1, op=operator, step=step, direction="backward", stream=3
    )
    builder.copy("HtoD", 40, 5, bytes=64, source_memory="pinned")
    builder.memset(50, 1, layer=sgd, direction="optimizer")
    builder.sync(60, 9)
    kernel, copy, memset = builder.build().work.to_dicts()
    assert (
        kernel
        | {
            "name": "dgrad_kernel",
            "kind": "kernel",
            "start": 10,
            "duration": 30,
            "category": "conv",
            "part": "winograd",
            "kernel_direction": "dgrad",
            "pass": "dgrad",
            "direction": "backward",
            "layer": "features.0",
            "layer_type": "Conv2d",
            "role": "layer",
            "operator": "aten::conv2d",
            "step": 7,
            "stream": 3,
            "device": 0,
        }
        == kernel
    )
    assert (
        copy
        | {
            "category": "memcpy",
            "part": "HtoD",
            "layer": "(outside all layers)",
            "role": None,
            "step": None,
            "bytes": 64,
            "source_memory": "pinned",
        }
        == copy
    )
    assert memset | {"category": "memset", "part": None, "layer": "(optimizer)"} == memset
    assert memset["pass"] == "optimizer"


@pytest.mark.parametrize(
    "file",
    ["gpu/alexnet_b64.json.gz", "gpu/alexnet_jax.xplane.pb.gz", "gpu/streams_copies.json.gz"],
)
def test_the_labels_of_a_recording_are_those_of_its_tables(file: str) -> None:
    trace = opened(FIXTURES / file)
    rows, tables = trace.work, trace.tables
    activities = tables.activities.filter(pl.col("kind") != "sync")
    assert rows.columns == names_of(COLUMNS)
    assert rows.height == activities.height
    assert rows["duration"].sum() == activities["duration"].sum()
    for label, table, column, row in (
        ("name", "names", "name", "name_id"),
        ("operator", "ops", "name", "op"),
        ("call", "calls", "name", "call"),
        ("step", "steps", "number", "step"),
    ):
        expected = tables[table][column].cast(rows.schema[label]).gather(activities[row])
        assert rows[label].equals(expected.alias(label), null_equal=True), label
    by_class = rows.group_by("category", "part").agg(pl.col("duration").sum().alias("time_ns"))
    breakdown = trace.report().frame.select("category", "part", "time_ns")
    assert sorted(by_class.rows(), key=repr) == sorted(breakdown.rows(), key=repr)


def test_work_without_activities_has_all_columns() -> None:
    empty = TraceBuilder().build().work
    assert empty.columns == names_of(COLUMNS)
    assert empty.is_empty()


def test_labels_are_made_once_for_the_same_tables() -> None:
    tables = cnn_steps().tables
    assert layer_labels(tables) is layer_labels(tables)
    changed = Tables({"layers": tables.layers.with_columns(path=pl.lit("other"))}, tables)
    assert set(work(changed, "layer_path")["layer_path"].cast(pl.String)) >= {"other"}
    assert "other" not in set(work(tables, "layer_path")["layer_path"].cast(pl.String))


def test_labels_have_a_row_for_each_activity_and_work_none_for_waits() -> None:
    tables = cnn_steps().tables
    waits = (tables.activities["kind"] == "sync").sum()
    assert waits == 1
    assert labels(tables, "category").height == tables.activities.height
    assert work(tables, "category").height == tables.activities.height - waits
