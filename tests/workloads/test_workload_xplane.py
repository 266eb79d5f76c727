"""AlexNet trained in Keras, JAX and PyTorch: the same layers with their time."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.manifest import FIXTURES
from tests.support.opened import opened
from tests.support.recorded import FRAMEWORKS, unnumbered
from traceana.trace import Trace
from workloads.network import Conv, Linear
from workloads.networks import NETWORKS

pytestmark = pytest.mark.frameworks

WEIGHTED = {
    name: {layer.name for layer in NETWORKS[name]().layers if isinstance(layer, Conv | Linear)}
    for name in ("alexnet", "alexnet_2012")
}


@pytest.fixture(params=FRAMEWORKS)
def trace(request: pytest.FixtureRequest, alexnets: Path) -> Trace:
    """Return AlexNet as it is recorded here; other networks are in fixtures/."""
    return traceana.open(alexnets / f"framework={request.param}")


def time_of_layers(trace: Trace, network: str) -> dict[tuple[str, str], int]:
    """Return the time by name of the layer and direction; scopes begin with the network's name."""
    named = unnumbered(trace.tables.layers["path"]).str.strip_prefix(f"{network}.")
    paths = named.gather(trace.tables.activities["layer"])
    rows = trace.tables.activities.select(
        paths.alias("layer"), pl.col("direction").cast(pl.String), "duration"
    )
    time = rows.drop_nulls().group_by("layer", "direction").agg(pl.col("duration").sum())
    return {(layer, direction): spent for layer, direction, spent in time.iter_rows()}


def test_every_weighted_layer_has_its_time(trace: Trace) -> None:
    assert trace.on_cpu
    assert trace.tables.steps.height == 2
    spent = time_of_layers(trace, "alexnet")
    for layer in WEIGHTED["alexnet"]:
        for direction in ("forward", "backward"):
            assert spent.get((layer, direction), 0) > 0, (layer, direction)


def multiplied(trace: Trace, network: str) -> set[str]:
    """Return the layers in which convolutions or matrix products ran: those with weights.

    XLA hands some of them to YNNPACK, in fusions whose name does not say which of the two.
    """
    product = pl.col("category").is_in(["conv", "gemm"]) | pl.col("name").str.contains("ynn_fusion")
    ids = trace.tables.names.with_row_index("name_id").filter(product)
    rows = trace.tables.activities.filter(pl.col("name_id").is_in(ids["name_id"].implode()))
    paths = trace.tables.layers["path"].gather(rows["layer"].drop_nulls()).unique()
    return set(unnumbered(paths).str.strip_prefix(f"{network}."))


def test_three_frameworks_name_the_same_weighted_layers(trace: Trace) -> None:
    assert multiplied(trace, "alexnet") == WEIGHTED["alexnet"]


@pytest.mark.parametrize(
    "file", ["alexnet_2012-cpu-ranges.json.gz", "networks/alexnet_2012-cpu-jax.xplane.pb.gz"]
)
def test_groups_are_named_alike_where_the_framework_runs_them_itself(file: str) -> None:
    """Keras has XLA compile grouped convolutions on the CPU, outside the scopes of the layers."""
    assert multiplied(opened(FIXTURES / file), "alexnet_2012") == WEIGHTED["alexnet_2012"]
