"""The Trace as a notebook sees it."""

from __future__ import annotations

import pickle
import re
import sys
from copy import deepcopy
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.traces import TraceBuilder, cnn_steps
from traceana.errors import MissingDependencyError, how_to_install
from traceana.trace import Tables, Trace, TraceMeta
from traceana.trace.schema import TABLES, conform

META = TraceMeta(source="x", format="kineto")


def test_tables_that_were_not_given_are_empty_with_their_columns() -> None:
    trace = Trace(META)
    for name, schema in TABLES.items():
        assert trace.tables[name].is_empty()
        assert trace.tables[name].columns == list(schema)


def test_unknown_tables_and_columns_are_refused() -> None:
    with pytest.raises(KeyError, match="kernels"):
        Trace(META, Tables({"kernels": pl.DataFrame()}))
    with pytest.raises(KeyError, match="begin"):
        conform("activities", pl.DataFrame({"begin": [1]}))
    with pytest.raises(KeyError):
        Trace(META).tables["kernels"]


def test_a_frame_without_columns_conforms_to_no_rows() -> None:
    assert conform("steps", pl.DataFrame()).height == 0


def test_with_tables_leaves_the_original_alone() -> None:
    trace = cnn_steps()
    changed = trace.with_tables(steps=pl.DataFrame())
    assert changed.tables.steps.is_empty()
    assert trace.tables.steps.height == 3
    assert changed.tables.activities.equals(trace.tables.activities)


def test_a_trace_is_immutable() -> None:
    trace = cnn_steps()
    with pytest.raises(AttributeError, match="immutable"):
        trace.meta = META  # type: ignore[misc]
    with pytest.raises(AttributeError):
        trace.meta.source = "another"  # type: ignore[misc]
    changed = trace.with_meta(source="another")
    assert (changed.meta.source, trace.meta.source) == ("another", "built.json")
    assert changed.tables.activities.equals(trace.tables.activities)
    with pytest.raises(AttributeError, match="immutable"):
        del trace.meta


def test_what_a_trace_hands_out_does_not_change_it() -> None:
    trace = cnn_steps().with_meta(properties={"options": ["a"], "ranks": {"0": "file"}})
    before = trace.tables.activities
    trace.tables.activities[0, "duration"] = 1
    trace.tables.activities.insert_column(0, pl.Series("more", [0] * before.height))
    trace.tables.activities.drop_in_place("duration")
    assert trace.tables.activities.equals(before)
    properties: Any = trace.meta.properties
    with pytest.raises(TypeError, match="read-only"):
        properties["x"] = 1
    with pytest.raises(TypeError, match="read-only"):
        properties.update(x=1)
    with pytest.raises(TypeError, match="read-only"):
        properties["ranks"].clear()
    assert properties["options"] == ("a",)
    assert pickle.loads(pickle.dumps(trace.meta)) == trace.meta
    assert deepcopy(trace.meta) == trace.meta


def test_a_trace_keeps_the_tables_that_it_was_made_of() -> None:
    table = cnn_steps().tables.steps
    trace = cnn_steps().with_tables(steps=table)
    table.insert_column(0, pl.Series("more", [0] * table.height))
    assert "more" not in trace.tables.steps.columns


def test_repr_names_the_trace() -> None:
    b = TraceBuilder(source="<img src=x>.json")
    b.kernel("k", 0, 1_500_000)
    trace = b.build()
    assert repr(trace) == "Trace('<img src=x>.json', kineto, 1 kernels, 1.500 ms, 1 device)"
    html = trace._repr_html_()
    assert "<img" not in html
    assert "activities" in html


def test_on_cpu_is_about_the_activities() -> None:
    b = TraceBuilder()
    assert not b.build().on_cpu
    b.operator("aten::add", 0, 1)
    assert b.build().on_cpu
    b.kernel("k", 0, 1)
    assert not b.build().on_cpu


@pytest.mark.parametrize(("device", "on_cpu"), [(-1, True), (0, False)])
def test_a_summary_of_one_row_is_of_the_device_of_the_row(device: int, on_cpu: bool) -> None:
    b = TraceBuilder()
    b.row("summary", name="aten::add", kind="op", device=device, counted=True)
    assert b.build().on_cpu is on_cpu


def test_to_pandas() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frames = cnn_steps().to_pandas()
    assert list(frames) == list(TABLES)
    assert frames["activities"]["duration"].sum() == cnn_steps().tables.activities["duration"].sum()


def test_to_pandas_without_pandas_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=re.escape(how_to_install("pandas"))):
        cnn_steps().to_pandas()


def test_the_package_offers_what_it_documents() -> None:
    assert traceana.Trace is Trace
    assert callable(traceana.open)
    with pytest.raises(AttributeError):
        _ = traceana.nonsense


def test_a_misspelt_table_is_answered_with_those_that_there_are() -> None:
    trace = Trace(META)
    message = r"no table 'activites' \(did you mean activities\?\); tables: activities, names"
    with pytest.raises(KeyError, match=message):
        trace.tables["activites"]
    with pytest.raises(AttributeError, match=message):
        trace.tables.activites  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match="takes the path of a trace, or a list of paths"):
        traceana.open(None)  # type: ignore[arg-type]
