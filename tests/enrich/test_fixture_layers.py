"""Our own recordings of AlexNet: every way of naming layers finds the same network."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest

import traceana
from traceana.analyze.manifest_layers import with_names_of
from traceana.enrich import attribute
from traceana.readers import read
from traceana.runs.layer_manifest import find
from traceana.runs.layer_manifest import read as manifest

FIXTURES = Path(__file__).parents[2] / "fixtures"


def layers_of(name: str) -> list[str]:
    """Return the layer names of the network that the fixture's manifest lists."""
    described = msgspec.json.decode((FIXTURES / f"{name}.layers.json").read_bytes())
    return [layer["path"] for layer in described["layers"]]


@pytest.mark.parametrize("name", ["alexnet-cpu-ranges", "alexnet_2012-cpu-ranges"])
def test_record_function_ranges_name_every_layer_both_ways(name: str) -> None:
    trace = attribute(read(FIXTURES / f"{name}.json.gz"))
    placed = trace.tables.activities.join(trace.tables.layers.with_row_index("layer"), on="layer")
    for layer in layers_of(name):
        directions = set(placed.filter(pl.col("path") == layer)["direction"].cast(pl.String))
        assert directions == {"forward", "backward"} or layer == "flatten"
    assert trace.tables.steps["number"].to_list() == [2, 3, 4]
    assert placed["step"].null_count() == 0


def test_module_events_name_as_many_layers_of_each_type() -> None:
    trace = attribute(read(FIXTURES / "alexnet-cpu-stack.json.gz"))
    types = dict(
        trace.tables.layers.filter(pl.col("path").str.starts_with("Sequential_0."))["type"]
        .value_counts()
        .iter_rows()
    )
    assert types == {
        "Conv2d": 5, "ReLU": 7, "MaxPool2d": 3, "Flatten": 1, "Dropout": 2, "Linear": 3,
    }  # fmt: skip


def test_module_hierarchy_names_the_convolutions() -> None:
    trace = attribute(read(FIXTURES / "alexnet-cpu-torchscript.json.gz"))
    found = set(trace.tables.layers.filter(pl.col("type") == "Conv2d")["path"])
    assert found == {"conv1", "conv2", "conv3", "conv4", "conv5"}


@pytest.mark.parametrize("name", ["alexnet-cpu-nsys-2022.4", "alexnet-cpu-nsys-2024.2"])
def test_nsys_iterations_are_the_steps(name: str) -> None:
    trace = attribute(read(FIXTURES / f"{name}.sqlite"))
    assert trace.tables.steps["number"].to_list() == [0, 1, 2]
    # Without operators the ranges of the layers are what ran.
    placed = trace.tables.activities.join(trace.tables.layers.with_row_index("layer"), on="layer")
    for layer in ("conv1", "relu1", "pool5", "fc6", "fc8"):
        rows = placed.filter(pl.col("path") == layer, pl.col("step").is_not_null())
        assert sorted(rows["direction"].cast(pl.String)) == ["backward"] * 3 + ["forward"] * 3
    assert trace.on_cpu


@pytest.mark.parametrize("network", ["googlenet", "resnet50"])
def test_keras_scopes_name_the_network_s_layers_and_nothing_else(network: str) -> None:
    """Also where the graph optimizer rewrote sums, and the model's scopes are numbered."""
    file = FIXTURES / "networks" / f"{network}-cpu-keras.xplane.pb.gz"
    beside = find(file)
    assert beside is not None
    trace = with_names_of(attribute(read(file)), manifest(beside))
    found = trace.tables.layers.filter(pl.col("role") == "layer")["path"].to_list()
    named = layers_of(f"networks/{network}-cpu-keras")
    # The manifest has the layers' last names.
    assert {path.removeprefix(f"{network}.") for path in found} == {*named, "loss"}


def test_lightnings_ranges_name_the_layers_also_of_passes_cut_in_half() -> None:
    """The recording begins with a backward pass and ends with a forward pass."""
    trace = attribute(read(FIXTURES / "programs" / "lightning.json.gz"))
    layers = trace.tables.layers.with_row_index("layer")
    placed = trace.tables.activities.join(layers, on="layer", how="left")
    named = [f"network.{name}" for name in ("conv1", "conv2", "conv3", "ip1", "ip2")]
    assert set(named) < set(placed["path"])
    assert placed["path"].null_count() == 0
    assert not placed["path"].str.contains("[pl]", literal=True).any()
    nodes = trace.tables.ops.filter(pl.col("name") == "ConvolutionBackward0").sort("start")
    of_nodes = nodes.join(layers, on="layer", how="left")["path"].to_list()
    assert of_nodes == ["network.conv3", "network.conv2", "network.conv1"] * 5
    updates = placed.join(trace.tables.names.with_row_index("name_id"), on="name_id").filter(
        pl.col("direction") == "optimizer"
    )
    assert updates["name"].cast(pl.String).str.contains("multi_tensor_apply").all()
    assert updates.height == 15


@pytest.mark.slow
def test_replays_of_a_compiled_network_have_the_layers_of_the_network_without_graphs() -> None:
    """``mode="reduce-overhead"`` beside the default mode, of one network on one GPU."""
    graphs = FIXTURES / "programs" / "resnet18_b32_reduce-overhead.json.gz"
    default = FIXTURES / "programs" / "resnet18_b32_default.json.gz"
    shares = []
    for capture in (None, default):
        rows = traceana.open(graphs, capture=capture).layers().frame
        whole = pl.col("time_ns").filter(pl.col("layer").str.starts_with("Torch-Compiled Region"))
        shares.append(rows.select(whole.sum() / pl.col("time_ns").sum()).item())
    assert shares == pytest.approx([0.563, 0.037], abs=1e-3)
