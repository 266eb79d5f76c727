"""One network trained in Keras, JAX and PyTorch, recorded here: the same layers with their time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import polars as pl
import pytest

import traceana
from traceana.trace import Trace
from workloads.network import Conv, Linear
from workloads.networks import NETWORKS

# With one image XLA makes the matrix products anew and says no more whose they are.
TINY = {"batch": 4, "steps": 2, "warm-up": 1, "image-size": 67, "width-divisor": 16, "classes": 10}
ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("keras", "jax", "pytorch")
# The others are in fixtures/networks/.
TRAINED = ("alexnet", "alexnet_2012")
WEIGHTED = {
    name: {layer.name for layer in NETWORKS[name]().layers if isinstance(layer, Conv | Linear)}
    for name in TRAINED
}
Recorded = Callable[[str, str], Trace]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return what trains a network in a framework under its own profiler, once, and opens it."""

    @cache
    def record(framework: str, network: str) -> Trace:
        folder = tmp_path_factory.mktemp(f"{framework}-{network}")
        own = ["--log", str(folder)]
        if framework == "pytorch":
            own = ["--threads", "1", "--ranges", "record-function"]
            own += ["--trace", str(folder / "run.json.gz")]
        command = [sys.executable, "-m", f"workloads.{framework}", "--network", network, *own]
        command += [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return traceana.open(folder)

    return record


def time_of_layers(trace: Trace, network: str) -> dict[tuple[str, str], int]:
    """Return the time by name of the layer and direction; scopes begin with the network's name."""
    paths = trace.layers["path"].str.strip_prefix(f"{network}.").gather(trace.activities["layer"])
    rows = trace.activities.select(
        paths.alias("layer"), pl.col("direction").cast(pl.String), "duration"
    )
    time = rows.drop_nulls().group_by("layer", "direction").agg(pl.col("duration").sum())
    return {(layer, direction): spent for layer, direction, spent in time.iter_rows()}


@pytest.mark.parametrize("network", TRAINED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_weighted_layer_has_its_time(
    framework: str, network: str, recorded: Recorded
) -> None:
    trace = recorded(framework, network)
    assert trace.on_cpu
    assert trace.steps.height == TINY["steps"]
    spent = time_of_layers(trace, network)
    for layer in WEIGHTED[network]:
        for direction in ("forward", "backward"):
            assert spent.get((layer, direction), 0) > 0, (layer, direction)


def test_what_jax_itself_exports_tells_the_same_work(recorded: Recorded) -> None:
    planes = recorded("jax", "alexnet")
    (exported,) = Path(planes.meta.source).parent.glob("*.trace.json.gz")
    as_json = traceana.open(exported)
    columns = ["name", "kind", "start", "duration"]
    one, other = (
        trace.activities.with_columns(trace.names["name"].gather(trace.activities["name_id"]))
        .select(columns)
        .sort(columns)
        for trace in (planes, as_json)
    )
    assert one.height > 100
    assert one.equals(other)


def multiplied(trace: Trace, network: str) -> set[str]:
    """Return the layers in which convolutions or matrix products ran: those with weights.

    XLA hands some of them to YNNPACK, in fusions whose name does not say which of the two.
    """
    product = pl.col("category").is_in(["conv", "gemm"]) | pl.col("name").str.contains("ynn_fusion")
    ids = trace.names.with_row_index("name_id").filter(product)
    rows = trace.activities.filter(pl.col("name_id").is_in(ids["name_id"].implode()))
    paths = trace.layers["path"].gather(rows["layer"].drop_nulls()).unique()
    return set(paths.str.strip_prefix(f"{network}."))


def test_three_frameworks_name_the_same_weighted_layers(recorded: Recorded) -> None:
    found = {each: multiplied(recorded(each, "alexnet"), "alexnet") for each in FRAMEWORKS}
    assert found == dict.fromkeys(FRAMEWORKS, WEIGHTED["alexnet"])


def test_groups_are_named_alike_where_the_framework_runs_them_itself(recorded: Recorded) -> None:
    """Keras has XLA compile grouped convolutions on the CPU, outside the scopes of the layers."""
    network = "alexnet_2012"
    for framework in ("jax", "pytorch"):
        assert multiplied(recorded(framework, network), network) == WEIGHTED[network]
