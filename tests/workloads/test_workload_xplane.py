"""One network trained in Keras, JAX and PyTorch, recorded here: the same layers with their time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.once import once
from tests.support.recorded import FRAMEWORKS, tiny, unnumbered
from traceana.trace import Trace
from workloads.network import Conv, Linear
from workloads.networks import NETWORKS

pytestmark = pytest.mark.frameworks

# The others are in fixtures/networks/.
TRAINED = ("alexnet", "alexnet_2012")
WEIGHTED = {
    name: {layer.name for layer in NETWORKS[name]().layers if isinstance(layer, Conv | Linear)}
    for name in TRAINED
}
Recorded = Callable[[str, str], Trace]


@pytest.fixture(scope="session")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sweep of AlexNet with groups in three frameworks."""
    return once(tmp_path_factory, "grouped", lambda folder: tiny(folder, "alexnet_2012"))


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Return a function that opens the run of a network in a framework."""

    def opened(framework: str, network: str) -> Trace:
        sweep: Path = request.getfixturevalue({"alexnet": "alexnets"}.get(network, "grouped"))
        return traceana.open(sweep / f"framework={framework}")

    return opened


def time_of_layers(trace: Trace, network: str) -> dict[tuple[str, str], int]:
    """Return the time by name of the layer and direction; scopes begin with the network's name."""
    named = unnumbered(trace.layers["path"]).str.strip_prefix(f"{network}.")
    paths = named.gather(trace.activities["layer"])
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
    assert trace.steps.height == 2
    spent = time_of_layers(trace, network)
    for layer in WEIGHTED[network]:
        for direction in ("forward", "backward"):
            assert spent.get((layer, direction), 0) > 0, (layer, direction)


def multiplied(trace: Trace, network: str) -> set[str]:
    """Return the layers in which convolutions or matrix products ran: those with weights.

    XLA hands some of them to YNNPACK, in fusions whose name does not say which of the two.
    """
    product = pl.col("category").is_in(["conv", "gemm"]) | pl.col("name").str.contains("ynn_fusion")
    ids = trace.names.with_row_index("name_id").filter(product)
    rows = trace.activities.filter(pl.col("name_id").is_in(ids["name_id"].implode()))
    paths = trace.layers["path"].gather(rows["layer"].drop_nulls()).unique()
    return set(unnumbered(paths).str.strip_prefix(f"{network}."))


def test_three_frameworks_name_the_same_weighted_layers(recorded: Recorded) -> None:
    found = {each: multiplied(recorded(each, "alexnet"), "alexnet") for each in FRAMEWORKS}
    assert found == dict.fromkeys(FRAMEWORKS, WEIGHTED["alexnet"])


def test_groups_are_named_alike_where_the_framework_runs_them_itself(recorded: Recorded) -> None:
    """Keras has XLA compile grouped convolutions on the CPU, outside the scopes of the layers."""
    network = "alexnet_2012"
    for framework in ("jax", "pytorch"):
        assert multiplied(recorded(framework, network), network) == WEIGHTED[network]
