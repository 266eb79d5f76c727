"""Programs in Keras on TensorFlow: a step on the CPU, with one thing or another changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from traceana.record.recorder import StepRecorder


class KerasProgram(msgspec.Struct, frozen=True, kw_only=True, tag="keras"):
    """A training loop. Times are in milliseconds."""

    network: Literal["cnn", "mlp"] = "mlp"
    batch: int = 96
    layers: int = 3
    width: int = 768
    activation: str = "relu"
    dropout: bool = False
    normalization: bool = False
    optimizer: str = "sgd"
    jit: bool = False
    """XLA compiles the step."""
    load_ms: float = 0
    """Sleep for each batch in the input pipeline."""
    prefetch: bool = False
    """The input pipeline runs ahead."""
    logging_ms: float = 0
    """Sleep after each step, within the annotation ``logging``."""


def network(program: KerasProgram) -> Any:
    """Return the model; its layers have the names of their kind and number: ``conv1``, ``fc2``."""
    import keras

    layers, width = keras.layers, program.width
    convolution = program.network == "cnn"
    stack: list[Any] = [layers.Input((32, 32, 3) if convolution else (width,))]
    for number in range(1, program.layers + 1):
        if convolution:
            stack.append(layers.Conv2D(width, 3, padding="same", name=f"conv{number}"))
        else:
            stack.append(layers.Dense(width, name=f"fc{number}"))
        if program.normalization:
            stack.append(layers.BatchNormalization(name=f"norm{number}"))
        stack.append(layers.Activation(program.activation, name=f"act{number}"))
        if program.dropout:
            stack.append(layers.Dropout(0.5, name=f"drop{number}"))
    if convolution:
        stack.append(layers.GlobalAveragePooling2D(name="pool"))
    model = keras.Sequential([*stack, layers.Dense(10, name="head")])
    model.compile(program.optimizer, "mse", jit_compile=program.jit)
    return model


def training(program: KerasProgram) -> tuple[None, Callable[[StepRecorder, int], None]]:
    """Return a function that trains for some recorded steps; traceana finds the model itself."""
    import keras
    import numpy as np
    import tensorflow as tf

    if not tf.config.threading.get_intra_op_parallelism_threads():
        # One thread computes: two would share this machine's cores with others.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    model = network(program)
    shape = (32, 32, 3) if program.network == "cnn" else (program.width,)
    x = np.random.default_rng(0).standard_normal((program.batch, *shape)).astype("f")
    y = np.zeros((program.batch, 10), "f")

    def batches() -> Iterator[Any]:
        while True:
            time.sleep(program.load_ms / 1000)
            yield x, y

    signature = tuple(tf.TensorSpec(one.shape, tf.float32) for one in (x, y))
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    if program.prefetch:
        data = data.prefetch(2)

    class Logging(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            named = tf.profiler.experimental.Trace
            with named("logging") if program.logging_ms else nullcontext():
                time.sleep(program.logging_ms / 1000)

    def run(recorder: StepRecorder, steps: int) -> None:
        callbacks = [Logging(), recorder.keras_callback()]
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)

    return None, run
