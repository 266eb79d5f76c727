"""Small programs of JAX and TensorFlow that name their layers, recorded by a process of their own.

A function writes one folder a program; ``python -m tests.support.scope_programs FOLDER`` is JAX's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import traceana

STEPS: Final = 2
ROWS, WIDTH, TURNS = 64, 192, 3
"""Of JAX's programs: the batch, the width of every layer, and the turns of the loop."""
BATCH, SIZE = 8, 8
"""Of TensorFlow's: the images of one replica, and their edge. JAX's LSTM has the batch, too."""
REPLICA: Final = "replica.json"
"""The layers of one of TensorFlow's replicas, in the folder of its programs."""


def record_jax(folder: Path) -> None:
    """Record training steps of Flax and of functions on two devices of the CPU."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import linen, nnx
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    scope = jax.named_scope
    images = jnp.ones((ROWS, 8, 8, 3))

    class LinenNet(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            x = linen.relu(linen.Conv(4, (3, 3))(x))
            x = linen.relu(linen.Conv(8, (3, 3))(x))
            return linen.Dense(5)(x.reshape(len(x), -1))

    class Recurrent(linen.Module):  # type: ignore[misc]
        @linen.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return linen.Dense(3)(linen.RNN(linen.OptimizedLSTMCell(16))(x))

    class NnxNet(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.fc = nnx.Linear(8 * 8 * 4, 5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.fc(nnx.relu(self.conv(x)).reshape(len(x), -1))

    def layer(name: str, weight: Any, x: Any) -> Any:
        with scope(name):
            return jnp.tanh(x @ weight)

    def loop(w: Any, x: Any) -> Any:
        def turn(x: Any, _: object) -> tuple[Any, None]:
            return layer("while", w["c"], layer("body", w["b"], x)), None

        x, _ = jax.lax.scan(turn, layer("stem", w["a"], x), None, length=TURNS)
        x = jax.lax.cond(
            x.sum() > 1e9,
            lambda x: layer("rare", w["d"], x),
            lambda x: layer("cond", w["d"], x),
            x,
        )
        return (layer("body", w["a"], x) ** 2).sum()

    def again(w: Any, x: Any) -> Any:
        inner = jax.checkpoint(lambda b, x: layer("in2", b, layer("in1", b, x)))
        return (layer("head", w["c"], inner(w["b"], layer("stem", w["a"], x))) ** 2).sum()

    def mapped(w: Any, x: Any) -> Any:
        return jax.vmap(lambda x: layer("body", w["b"], layer("stem", w["a"], x)).sum())(x).sum()

    def two(w: Any, x: Any) -> Any:
        return layer("mid", w["b"], layer("stem", w["a"], x))

    def plain(w: Any, x: Any) -> Any:
        return (two(w, x) ** 2).sum()

    def trained(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def step(w: Any, x: Any) -> Any:
            gradient = jax.grad(loss)(w, x)
            with scope("optimizer"):
                return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

        return step

    def record(name: str, step: Callable[[Any, Any], Any], w: Any, x: Any) -> None:
        jax.block_until_ready(step(w, x))
        with jax.profiler.trace(str(folder / name)):
            for number in range(STEPS):
                with jax.profiler.StepTraceAnnotation("train", step_num=number):
                    jax.block_until_ready(step(w, x))

    rng = np.random.default_rng(1)
    w = {name: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / 8) for name in "abcd"}
    x = jnp.ones((ROWS, WIDTH))
    for name, loss in (("loop", loop), ("checkpoint", again), ("vmap", mapped)):
        record(name, jax.jit(trained(loss)), w, x)
    record("inference", jax.jit(two), w, x)
    mesh = Mesh(np.array(jax.devices()), ("device",))
    halves = jax.device_put(x, NamedSharding(mesh, PartitionSpec("device")))
    copies = jax.device_put(w, NamedSharding(mesh, PartitionSpec()))
    record("sharded", jax.jit(trained(plain)), copies, halves)
    both = {name: jnp.stack([each, each]) for name, each in w.items()}
    record("pmap", jax.pmap(trained(plain)), both, x.reshape(2, ROWS // 2, WIDTH))

    def loss_of(net: Any) -> Callable[[Any, Any], Any]:
        return lambda w, x: (net.apply(w, x) ** 2).sum()

    for name, net, inputs in (
        ("linen", LinenNet(), images),
        ("recurrent", Recurrent(), jnp.ones((BATCH, TURNS, 6))),
    ):
        # Else each operator of it is a program of its own to compile.
        weights = jax.jit(net.init)(jax.random.key(0), inputs)
        record(name, jax.jit(trained(loss_of(net))), weights, inputs)

    @nnx.jit  # type: ignore[untyped-decorator]
    def nnx_step(net: Any, x: Any) -> Any:
        return nnx.grad(lambda net: (net(x) ** 2).sum())(net)

    record("nnx", nnx_step, NnxNet(nnx.Rngs(0)), images)


def keras_network() -> Any:
    """Return the network of TensorFlow's programs."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(4, 3, padding="same", name="conv"),
            layers.BatchNormalization(name="bn"),
            layers.ReLU(name="relu"),
            layers.Flatten(name="flat"),
            layers.Dense(5, name="fc"),
        ],
        name="net",
    )


def pointwise_network() -> Any:
    """Return a network with two layers of equal tensors that XLA computes as products."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(4, 3, padding="same", name="conv"),
            layers.Conv2D(4, 1, activation="relu", name="one"),
            layers.Conv2D(4, 1, name="two"),
            layers.Flatten(name="flat"),
            layers.Dense(5, name="fc"),
        ],
        name="net",
    )


def record_tensorflow(folder: Path) -> None:
    """Record training steps of Keras: under a tape, without a ``tf.function``, on two replicas, by
    ``fit``, compiled by XLA, of an LSTM."""
    import keras
    import tensorflow as tf

    profiler = tf.profiler.experimental
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def eager(net: Any, strategy: Any) -> Callable[[Any, Any], Any]:
        with strategy.scope():
            optimizer = keras.optimizers.SGD(0.01)
            optimizer.build(net.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, net(x, training=True))
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
            return loss

        return step

    def trained(net: Any, strategy: Any) -> Callable[[Any, Any], Any]:
        step = eager(net, strategy)
        compiled: Callable[[Any, Any], Any] = tf.function(
            lambda x, y: strategy.run(step, args=(x, y))
        )
        return compiled

    def record(name: str, step: Callable[[Any, Any], Any], x: Any, y: Any) -> None:
        step(x, y)
        profiler.start(str(folder / name))
        for number in range(STEPS):
            with profiler.Trace("train", step_num=number, _r=1):
                step(x, y)
        profiler.stop()

    x, y = tf.random.normal((BATCH, SIZE, SIZE, 3)), tf.zeros((BATCH,), tf.int32)
    alone = tf.distribute.get_strategy()
    record("tape", trained(keras_network(), alone), x, y)
    record("eager", eager(keras_network(), alone), x, y)
    cells = keras.Sequential(
        [keras.Input((5, 6)), keras.layers.LSTM(4, name="rnn"), keras.layers.Dense(5, name="fc")],
        name="net",
    )
    record("lstm", trained(cells, alone), tf.random.normal((BATCH, 5, 6)), y)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with mirrored.scope():
        net = keras_network()

    def each(value: Any) -> Any:
        return mirrored.experimental_distribute_values_from_function(lambda _: value)

    record("mirrored", trained(net, mirrored), each(x), each(y))

    def fit(name: str, net: Any, *, jit_compile: bool) -> None:
        net.compile("sgd", loss_of, jit_compile=jit_compile)
        net.fit(x, y, batch_size=BATCH, verbose=0)
        profiler.start(str(folder / name))
        net.fit(x, y, batch_size=BATCH, epochs=STEPS, verbose=0)
        profiler.stop()

    fit("fit", keras_network(), jit_compile=False)
    fit("compiled", pointwise_network(), jit_compile=True)
    # Here, where Keras is imported.
    traceana.describe(keras_network(), (BATCH, SIZE, SIZE, 3)).write(folder / REPLICA)


if __name__ == "__main__":
    record_jax(Path(sys.argv[1]))
