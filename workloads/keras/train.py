"""The training loop, and its recording by TensorFlow's profiler."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns

import keras
import tensorflow as tf

from workloads.data import synthetic_batch
from workloads.keras.build import build
from workloads.options import Device, OptionError, Precision, RunOptions


def train(options: RunOptions, log: Path | None) -> list[int]:
    """Train by SGD with momentum on one batch over and over; returns each step's time in ns.

    The steps after the warm-up are recorded into the folder ``log``, each marked ``train`` with
    its number. Raises :class:`OptionError` for what this workload does not do.
    """
    if options.device is not Device.CPU or options.precision is not Precision.FP32:
        raise OptionError("the Keras workload runs on the CPU in float32 only")
    if options.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    # Operators one after the other: then their times add up.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # A convolution fused with the activation behind it is traced under the activation's name.
    tf.config.optimizer.set_experimental_options({"remapping": False})
    keras.utils.set_random_seed(options.seed)
    network = options.describe_network()
    model = build(network, options.seed)
    batch = synthetic_batch(network, options.batch, options.seed)
    images = tf.constant(batch.images.transpose(0, 2, 3, 1))
    labels = tf.constant(batch.labels)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss")
    optimizer = keras.optimizers.SGD(1e-3, momentum=0.9, name="optimizer")

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    compiled = tf.function(step)
    times: list[int] = []
    for number in range(-options.warm_up, options.steps):
        if number == 0 and log is not None:
            tf.profiler.experimental.start(str(log))
        warm = number < 0
        mark = nullcontext() if warm else tf.profiler.experimental.Trace("train", step_num=number)
        start = perf_counter_ns()
        with mark:
            compiled().numpy()
        if not warm:
            times.append(perf_counter_ns() - start)
    if log is not None:
        tf.profiler.experimental.stop()
    return times
