"""Which data gradients of convolutions nothing uses: by the manifest, or what trains before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.forked import with_keras
from tests.support.frameworks import needs
from tests.support.traces import TraceBuilder, with_methods
from traceana import Trace
from traceana.analyze.convolutions import each_convolution
from traceana.enrich import with_classes
from traceana.errors import NoSuchSelectionError
from traceana.runs.layer_manifest import Layer, manifest

CONV = "volta_scudnn_128x64_relu_medium_nn_v1"
KERNELS = {
    "MatMul": "volta_sgemm_128x64_nn",
    "Relu": "EigenMetaKernel<scalar_max_op<float>>",
    "ReluGrad": "EigenMetaKernel<scalar_cmp_op<float>>",
    "ResourceGather": "GatherOpKernel<float, int>",
}
BEFORE: dict[str, list[tuple[str, str]]] = {
    "nothing": [],
    "dense": [("MatMul", "forward"), ("MatMul", "backward")],
    # The gradient of an embedding is no work of its own.
    "embedding": [("ResourceGather", "forward")],
    # No weight: an activation or a resized image.
    "pointwise": [("Relu", "forward"), ("ReluGrad", "backward")],
}


def trained(before: str, known: bool | None, *, described: bool) -> Trace:
    """Return two steps in which the layer ``before`` runs before a convolution."""
    run = TraceBuilder(framework="TensorFlow")
    first, conv = run.layer("net.first", None), run.layer("net.conv", "Conv2D")
    calls = [
        *((name, way, first) for name, way in BEFORE[before] if way == "forward"),
        ("Conv2D", "forward", conv),
        ("Conv2DBackpropInput", "backward", conv),
        ("Conv2DBackpropFilter", "backward", conv),
        *((name, way, first) for name, way in BEFORE[before] if way == "backward"),
    ]
    for step in range(2):
        run.step(step, 10_000 * step, 10_000)
        for number, (name, way, layer) in enumerate(calls):
            at = 10_000 * step + 1_000 * number
            columns = {"layer": layer, "direction": way}
            op = run.row("ops", name=name, start=at, duration=100, depth=0, **columns)
            kernel = KERNELS.get(name, CONV)
            run.kernel(kernel, at + 200, 500, op=op, step=step, stream=7, **columns)
    trace = run.build()
    if described:
        convolution = Layer(
            path="net/conv", type="Conv2d", framework_type="Conv2D", position=1,
            inputs=((4, 8, 8, 8),), outputs=((4, 8, 8, 8),), kernel=(3, 3), groups=1,
            parameters={"weight": (8, 8, 3, 3)}, input_gradient=known,
        )  # fmt: skip
        trace = trace.with_manifest(
            manifest(network="net", framework="Keras", inputs=(), layers=(convolution,))
        )
    return with_methods(with_classes(trace))


@pytest.mark.parametrize(
    ("before", "known", "described", "unused"),
    [
        ("nothing", None, False, True),
        ("pointwise", None, False, True),
        ("dense", None, False, False),
        ("embedding", None, False, False),
        ("nothing", None, True, True),
        ("dense", None, True, False),
        ("nothing", True, True, False),
        ("dense", False, True, True),
    ],
)
def test_a_gradient_is_used_by_what_is_trained_before(
    before: str, known: bool | None, described: bool, unused: bool
) -> None:
    trace = trained(before, known, described=described)
    found = each_convolution(trace)
    assert set(found.filter(pl.col("direction") == "dgrad")["unused"]) == {unused}
    assert not found.filter(pl.col("direction") != "dgrad")["unused"].any()
    if unused:
        assert trace.whatif("no-input-gradient").frame.height
    else:
        with pytest.raises(NoSuchSelectionError):
            trace.whatif("no-input-gradient")


def record(folder: Path) -> None:
    """Record an encoder and decoder behind an embedding, and a network with a watched image."""
    import keras
    import tensorflow as tf

    kl, profiler = keras.layers, tf.profiler.experimental
    texts = keras.Sequential(
        [
            keras.Input((16,), dtype="int32"),
            kl.Embedding(20, 8, name="embedding"),
            kl.Conv1D(8, 3, padding="same", name="encoder"),
            kl.Dense(16 * 16 * 3, name="dense"),
            kl.Reshape((16, 16, 16, 3), name="images"),
            kl.TimeDistributed(kl.Conv2D(4, 3, name="decoder"), name="each"),
        ],
        name="texts",
    )
    images = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            kl.Conv2D(4, 3, name="stem"),
            kl.Conv2D(4, 3, name="body"),
        ],
        name="images",
    )
    for net, x in (
        (texts, tf.zeros((4, 16), tf.int32)),
        (images, tf.random.normal((4, 16, 16, 3))),
    ):

        @tf.function  # type: ignore[untyped-decorator]
        def step(x: Any, net: Any = net) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_mean(net(x, training=True) ** 2)
            return tape.gradient(loss, [net.trainable_variables, x])

        step(x)
        profiler.start(str(folder / net.name))
        for number in range(2):
            with profiler.Trace("train", step_num=number, _r=1):
                step(x)
        profiler.stop()
        traceana.describe(net, tuple(x.shape), dtype=x.dtype.name).write(
            folder / f"{net.name}.layers.json"
        )


@pytest.mark.slow
@pytest.mark.frameworks
def test_an_encoder_and_a_decoder_behind_an_embedding(tmp_path: Path) -> None:
    needs("keras", "tensorflow")
    with_keras(tmp_path / "log", record, tmp_path)
    for name, unused in (("texts", set()), ("images", {"stem"})):
        for model in (None, tmp_path / f"{name}.layers.json"):
            found = each_convolution(traceana.open(tmp_path / name, model=model))
            gradients = found.filter(pl.col("direction") == "dgrad")
            layers = gradients.filter("unused")["layer"].str.split(".").list.last()
            assert gradients.height >= 2
            assert {one.removesuffix("_1") for one in layers} == unused
