"""Roles of scopes outside the model's passes: optimizers, gradient clipping, input pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from tests.support.forked import with_keras
from tests.support.frameworks import needs
from traceana.analyze.layers import layers
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks

STEPS, BATCH, SIZE = 3, 4, 8
LOSS = "sparse_categorical_crossentropy"
PROGRAMS = {
    "rmsprop": ({"rm_sprop": "optimizer"}, {"net", f"compile_loss.{LOSS}"}),
    "own": ({"updates": "optimizer"}, {"net", f"compile_loss.{LOSS}"}),
    "clipped": (
        {
            "adafactor": "optimizer",
            "global_norm": "optimizer",
            "clip_by_global_norm": "optimizer",
            "random_flip": "data",
            "rescaling": "data",
        },
        {"net", "teacher", LOSS},
    ),
}
"""Program -> the role of each scope outside the passes, and the outermost layers."""


def record(folder: Path) -> None:
    """Record ``fit`` with two optimizers, and a step that clips gradients, with a frozen model and
    a pipeline of random flips."""
    import keras
    import tensorflow as tf

    kl, profiler = keras.layers, tf.profiler.experimental

    def network(name: str) -> Any:
        return keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 3)),
                kl.Conv2D(4, 3, padding="same", name="conv"),
                kl.BatchNormalization(name="bn"),
                kl.DepthwiseConv2D(3, padding="same", name="dw"),
                kl.GlobalAveragePooling2D(name="mean"),
                kl.Dense(5, name="fc"),
            ],
            name=name,
        )

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = tf.random.normal((BATCH, SIZE, SIZE, 3)), tf.zeros((BATCH,), tf.int32)
    optimizers = {
        "rmsprop": keras.optimizers.RMSprop(),
        "own": keras.optimizers.SGD(momentum=0.9, name="updates"),
    }
    for name, optimizer in optimizers.items():
        net = network("net")
        net.compile(optimizer, loss_of)
        net.fit(x, y, batch_size=BATCH, verbose=0)
        profiler.start(str(folder / name))
        net.fit(x, y, batch_size=BATCH, epochs=STEPS, verbose=0)
        profiler.stop()

    net, teacher, clipping = network("net"), network("teacher"), keras.optimizers.Adafactor()
    clipping.build(net.trainable_variables)
    flip, scale = kl.RandomFlip(name="random_flip"), kl.Rescaling(2.0, name="rescaling")
    images = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    images = images.map(lambda x, y: (scale(flip(x, training=True)), y)).batch(BATCH)
    batches = iter(images.prefetch(1))

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> Any:
        wanted = teacher(x, training=False)
        with tf.GradientTape() as tape:
            made = net(x, training=True)
            loss = loss_of(y, made) + tf.reduce_mean((made - wanted) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, net.trainable_variables), 1.0)
        clipping.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    step(*next(batches))
    profiler.start(str(folder / "clipped"))
    for number in range(STEPS):
        with profiler.Trace("train", step_num=number, _r=1):
            step(*next(batches))
    profiler.stop()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    needs("keras", "tensorflow")
    folder = tmp_path_factory.mktemp("roles")
    with_keras(folder / "log", record, folder)
    return {name: traceana.open(folder / name) for name in PROGRAMS}


def _unnumbered(paths: pl.Series) -> pl.Series:
    return paths.str.replace_all(r"_\d+(\.|$)", "$1")


@pytest.mark.parametrize("program", PROGRAMS)
def test_only_the_model_s_call_is_forward(program: str, traces: dict[str, Trace]) -> None:
    roles, models = PROGRAMS[program]
    frame = traces[program].tables.layers.filter(pl.col("role") != "unattributed")
    paths, is_layer = _unnumbered(frame["path"]), frame["role"] == "layer"
    outside = dict(zip(paths.filter(~is_layer), frame["role"].filter(~is_layer), strict=True))
    assert outside == roles
    within = paths.filter(is_layer)
    assert all(any(f"{one}.".startswith(f"{model}.") for model in models) for one in within)
    assert all(any(f"{one}.".startswith(f"{model}.") for one in within) for model in models)


@pytest.mark.parametrize("program", PROGRAMS)
def test_time_outside_the_passes_is_conserved(program: str, traces: dict[str, Trace]) -> None:
    trace = traces[program]
    result = layers(trace, costs=False)
    optimizer = result.frame.filter(pl.col("role") == "optimizer")
    assert optimizer["time_ns"].sum() == optimizer["optimizer_ns"].sum() > 0
    data = result.frame.filter(pl.col("role") == "data")
    assert data["time_ns"].sum() == data["other_ns"].sum()
    parts = pl.sum_horizontal("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
    assert result.frame.select(parts == pl.col("time_ns")).to_series().all()
    assert result.totals["time_ns"] == int(trace.tables.activities["duration"].sum())


def test_a_depthwise_convolution_is_one_layer(traces: dict[str, Trace]) -> None:
    assert not any(
        "depthwise" in path for trace in traces.values() for path in trace.tables.layers["path"]
    )
