"""The recordings of Keras and JAX on the CPU: one run by two files, and its layers."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.readers.xplane.writing import accounted
from tests.support.opened import opened
from tests.support.recorded import unnumbered
from traceana.readers import read
from traceana.trace import Trace

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "xplane"
FRAMEWORKS = ("keras", "jax")
WEIGHTED = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.pb")) + sorted(FOLDER.glob("*.gz")), ids=str)
def test_every_event_is_accounted_for(file: Path) -> None:
    trace = read(file)
    assert accounted(trace) == trace.meta.events
    assert trace.tables.ledger.filter(pl.col("severity") == "problem").is_empty()
    assert not trace.meta.truncated


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_xplane_and_trace_json_of_one_run_agree(framework: str) -> None:
    planes = read(FOLDER / f"alexnet-cpu-{framework}.xplane.pb")
    as_json = read(FOLDER / f"alexnet-cpu-{framework}.trace.json.gz")
    assert (planes.meta.format, as_json.meta.format) == ("xplane", "xplane-json")
    assert planes.meta.framework == as_json.meta.framework
    for table, columns in (
        ("ops", ["name", "start", "duration"]),
        ("ranges", ["text", "kind", "start", "duration"]),
    ):
        one, other = (
            trace.tables[table].select(pl.col(c).cast(pl.String) for c in columns).sort(columns)
            for trace in (planes, as_json)
        )
        assert one.height > 100
        assert one.equals(other)
    if framework == "keras":
        scopes = [trace.tables.ops["scope"].cast(pl.String).sort() for trace in (planes, as_json)]
        assert scopes[0].equals(scopes[1])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_files_of_a_run_have_equal_work(framework: str) -> None:
    one, other = (
        worked(opened(FOLDER / f"alexnet-cpu-{framework}.{ending}"))
        for ending in ("xplane.pb", "trace.json.gz")
    )
    assert one.height > 500
    if framework == "jax":
        # A trace.json has no instructions: that a fusion has a product in it is not known there.
        missing = (one["duration"] - other["duration"]).to_list()
        assert min(missing) == 0 < sum(missing) < 0.01 * sum(one["duration"].to_list())
        one, other = one.drop("duration"), other.drop("duration")
    assert one.equals(other)


def worked(trace: Trace) -> pl.DataFrame:
    """Return names, starts and durations of the work, equal in every file of a run."""
    names = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).alias("name")
    rows = trace.tables.activities.select("kind", "device", "start", "duration").with_columns(names)
    return rows.sort("start", "duration", "name")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_layers_of_the_network_in_both_directions(framework: str) -> None:
    trace = opened(FOLDER / f"alexnet-cpu-{framework}.xplane.pb")
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    placed = trace.tables.activities.with_columns(
        unnumbered(trace.tables.layers["path"])
        .gather(trace.tables.activities["layer"])
        .alias("path")
    )
    time = placed.group_by("path", "direction").agg(pl.col("duration").sum())
    spent = {(path, direction): ns for path, direction, ns in time.iter_rows()}
    for layer in WEIGHTED:
        for direction in ("forward", "backward"):
            assert spent[f"alexnet.{layer}", direction] > 0, (layer, direction)
    manifest = json.loads((FOLDER / f"alexnet-cpu-{framework}.layers.json").read_text("utf-8"))
    known = {f"alexnet.{layer['path']}" for layer in manifest["layers"]}
    assert known - set(unnumbered(trace.tables.layers["path"])) == set()
    assert (trace.tables.layers["role"] == "optimizer").any()
    total = trace.tables.activities["duration"].sum()
    assert time["duration"].sum() == total


def test_a_convolution_costs_more_than_its_activation() -> None:
    trace = opened(FOLDER / "alexnet-cpu-keras.xplane.pb")
    paths = unnumbered(trace.tables.layers["path"]).gather(trace.tables.activities["layer"])
    spent = dict(
        pl.DataFrame({"path": paths, "ns": trace.tables.activities["duration"]})
        .group_by("path")
        .agg(pl.col("ns").sum())
        .iter_rows()
    )
    for i in range(1, 6):
        assert spent[f"alexnet.conv{i}"] > 5 * spent[f"alexnet.relu{i}"]
