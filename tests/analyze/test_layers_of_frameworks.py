"""The same AlexNet in three frameworks: the same layers, and the same FLOPs by layer and step."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.layers import layers
from traceana.runs.layer_manifest import Manifest, find, read
from traceana.trace import Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TRACES = {
    "pytorch": "alexnet-cpu-ranges.json.gz",
    "keras": "xplane/alexnet-cpu-keras.xplane.pb",
    "jax": "xplane/alexnet-cpu-jax.xplane.pb",
}
WEIGHTED = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")


def with_manifest(framework: str) -> tuple[Trace, Manifest]:
    """Return the recording and the manifest beside it."""
    path = FIXTURES / TRACES[framework]
    beside = find(path)
    assert beside is not None
    return opened(path), read(beside)


def by_layer(frame: pl.DataFrame) -> dict[str, int]:
    """Return the FLOPs of the weighted layers by the last part of their path."""
    named = frame.with_columns(pl.col("layer").str.split(".").list.last())
    rows = named.filter(pl.col("layer").is_in(WEIGHTED)).select("layer", "flops")
    return dict(rows.iter_rows())


@pytest.mark.parametrize("framework", TRACES)
def test_flops_of_a_step_are_those_of_the_shapes(framework: str) -> None:
    """Of each weighted layer 3 times the forward product, of the first 2: its input needs none."""
    trace, model = with_manifest(framework)
    steps = trace.tables.steps.height
    found = by_layer(layers(trace, model=model).frame)
    assert set(found) == set(WEIGHTED)
    for layer in model.layers:
        if layer.path not in WEIGHTED:
            continue
        assert layer.flops is not None
        passes = 2 if layer.path == "conv1" else 3
        # Beside the products the sum that is the gradient of the bias, which XLA's count leaves.
        bias = 0 if framework == "jax" else prod(layer.outputs[0])
        assert found[layer.path] == (passes * layer.flops + bias) * steps


def test_the_frameworks_have_the_same_layers_types_and_shapes() -> None:
    tables = []
    for framework in TRACES:
        trace, model = with_manifest(framework)
        frame = layers(trace, model=model).frame
        named = frame.with_columns(pl.col("layer").str.split(".").list.last())
        rows = named.filter(pl.col("layer").is_in(WEIGHTED)).sort("layer")
        # The batches differ: all but the first extent.
        per_image = pl.col("input_shape", "output_shape").str.replace(r"^\[\d+, ", "[")
        tables.append(rows.select("layer", "type", per_image).rows())
    assert len(tables[0]) == len(WEIGHTED)
    assert tables[0] == tables[1] == tables[2]


def test_directions_add_up_to_the_layers() -> None:
    for framework in TRACES:
        trace, model = with_manifest(framework)
        whole = layers(trace, model=model)
        apart = layers(trace, model=model, direction=True)
        for column in ("flops", "time_ns", "calls"):
            assert apart.totals[column] == whole.totals[column]
        sums = apart.frame.group_by("layer").agg(pl.col("time_ns", "flops").sum())
        both = whole.frame.join(sums, on="layer", suffix="_apart")
        assert (both["time_ns"] == both["time_ns_apart"]).all()
        assert (both["flops"].fill_null(0) == both["flops_apart"]).all()


def test_folding_loses_nothing() -> None:
    trace, model = with_manifest("pytorch")
    whole = layers(trace, model=model)
    for folded in (layers(trace, model=model, by="type"), layers(trace, model=model, depth=1)):
        for column in ("flops", "time_ns", "calls", "forward_ns", "backward_ns"):
            assert folded.totals[column] == whole.totals[column]
    by_type = layers(trace, by="type", model=model).frame
    convolutions = by_type.filter(pl.col("layer") == "Conv2d").row(0, named=True)
    assert convolutions["time_ns"] == (
        whole.frame.filter(pl.col("type") == "Conv2d")["time_ns"].sum()
    )
    assert by_type["layer"].is_unique().all()


def test_a_depth_folds_modules_into_those_around_them() -> None:
    trace = opened(FIXTURES / "alexnet-cpu-stack.json.gz")
    whole, folded = layers(trace), layers(trace, depth=1)
    assert folded.totals["time_ns"] == whole.totals["time_ns"]
    assert folded.frame.height < whole.frame.height
    named = folded.frame.filter(pl.col("role") == "layer")["layer"]
    assert not named.str.contains(".", literal=True).any()


@pytest.mark.parametrize("network", ["googlenet", "resnet50"])
def test_with_a_manifest_layers_stand_in_the_model_s_order(network: str) -> None:
    """TensorFlow reads weights ahead and runs branches as they come."""
    file = FIXTURES / "networks" / f"{network}-cpu-keras.xplane.pb.gz"
    beside = find(file)
    assert beside is not None
    model, trace = read(beside), opened(file)
    table = layers(trace, model=model).frame.filter(pl.col("role") == "layer")
    paths = [path.removeprefix(f"{network}.") for path in table["layer"]]
    paths.remove("loss")
    assert paths == [layer.path for layer in model.layers]
    without = layers(trace).frame.filter(pl.col("role") == "layer")
    assert without["layer"].to_list() != table["layer"].to_list()
    plain = {re.sub(r"_1(?=\.|$)", "", path) for path in without["layer"]}
    # The model was built a second time: without a manifest its scopes are shown as recorded.
    assert plain == {re.sub(r"_1(?=\.|$)", "", path) for path in table["layer"]}


@pytest.mark.parametrize(
    ("framework", "advice"),
    [("PyTorch", "emit_nvtx"), ("JAX", "jax.named_scope"), ("TensorFlow", "tf.name_scope")],
)
def test_how_to_link_backward_kernels_is_of_the_framework(framework: str, advice: str) -> None:
    build = TraceBuilder(framework=framework, format="nsys")
    build.name("gemm", category="gemm")
    build.kernel("gemm", 0, 100, layer=build.layer("linear"), direction="forward")
    lost = build.layer("(no layer)", role="unattributed")
    build.kernel("gemm", 100, 100, layer=lost, direction="backward")
    (note,) = (one for one in layers(build.build()).notes if "backward kernels not linked" in one)
    assert advice in note
    assert ("torch" in note) is (framework == "PyTorch")
