"""The layers of a manifest found by name, and what speaks against one: a row's weight."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.traces import TraceBuilder
from traceana.analyze.layer_operands import Operands
from traceana.analyze.layers import _of_state, layers
from traceana.analyze.manifest_layers import Evidence, paired
from traceana.runs.layer_manifest import Layer, Manifest, manifest
from traceana.trace import Trace

GRU = Layer(
    path="functional/gru",
    type="GRU",
    framework_type="keras.layers.GRU",
    position=0,
    parameters={"weight": (48, 32), "recurrent_kernel": (48, 16), "bias": (2, 48)},
)


def test_a_recurrent_layer_has_two_weights() -> None:
    sizes = {0: 48 * 32, 1: 48 * 16, 2: 48}
    evidence = Evidence(frozenset(), frozenset(), frozenset(), sizes)
    assert [evidence.against_weight(row, GRU) for row in sizes] == [False, False, True]


def test_a_product_of_the_state_does_not_read_the_input() -> None:
    state = Operands((8, 16), (16, 48), (8, 48))
    of_input = Operands((96, 32), (32, 48), (96, 48))
    assert _of_state(state, GRU)
    assert not _of_state(of_input, GRU)


def model_of(*described: tuple[str, str], framework: str = "PyTorch") -> Manifest:
    """Return a manifest with layers of these paths and types."""
    return manifest(
        network="net",
        framework=framework,
        inputs=(),
        layers=tuple(
            Layer(path=path, type=kind, framework_type=kind, position=position)
            for position, (path, kind) in enumerate(described)
        ),
    )


def run_of(*rows: tuple[str, str | None]) -> Trace:
    """Return a run with a kernel in each of the layers of these paths and types."""
    b = TraceBuilder()
    b.name("kernel")
    for start, (path, kind) in enumerate(rows):
        b.kernel("kernel", 10 * start, 10, layer=b.layer(path, kind), direction="forward")
    return b.build()


def found_in(rows: Sequence[tuple[str, str | None]], *described: tuple[str, str]) -> dict[int, str]:
    """Return the paths of the manifest found in a run with layers of these paths and types."""
    found = paired(run_of(*rows), model_of(*described))
    return {row: layer.path for row, layer in found.layer_of.items()}


def test_a_layer_is_not_found_by_the_last_part_of_another_path() -> None:
    """A row of several layers, and a function outside the model."""
    rows = (("net.conv", "Conv2d"), ("net.bn+pool.act", "fused"), ("loss.out", None))
    described = ("conv", "Conv2d"), ("bn", "BatchNorm2d"), ("pool.act", "ReLU"), ("out", "Linear")
    assert found_in(rows, *described) == {0: "conv"}


def test_the_words_of_two_frameworks_are_one_type() -> None:
    """MXNet's operators have no names of layers; there are two convolutions and one product."""
    rows = [
        (f"{kind}_{number}", kind)
        for kind, number in (("Convolution", 0), ("Convolution", 1), ("FullyConnected", 0))
    ]
    described = ("conv1", "Conv2d"), ("conv2", "Conv2d"), ("fc", "Linear"), ("relu", "ReLU")
    assert found_in(rows, *described) == {0: "conv1", 1: "conv2", 2: "fc"}


def test_scopes_inside_a_layer_of_the_manifest_are_part_of_it() -> None:
    rows = ("net.conv", "Conv2d"), ("net.conv.pad", None), ("net.conv.product", None)
    model = model_of(("conv", "Conv2d"), ("relu", "ReLU"))
    frame = layers(run_of(*rows, ("net.relu", "ReLU")), model=model).frame
    assert dict(frame.select("layer", "time_ns").iter_rows()) == {"net.conv": 30, "net.relu": 10}


def test_a_scope_opened_once_has_the_name_of_its_layer() -> None:
    """Also where the run has the layers in another order."""
    model = model_of(("one", "Conv2D"), ("two", "Conv2D"), framework="TensorFlow")
    found = paired(run_of(("net.two", "Conv2D"), ("net.one", "Conv2D")), model)
    assert {row: layer.path for row, layer in found.layer_of.items()} == {0: "two", 1: "one"}
