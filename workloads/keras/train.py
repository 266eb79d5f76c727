"""The training loop, and its recording by TensorFlow's profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from workloads.data import synthetic_batch
from workloads.keras.build import build
from workloads.keras.switches import replicas, set_switches
from workloads.network import Network
from workloads.options import HostMemory, Layout, Precision, RunOptions
from workloads.profiled import Profiler, take_steps
from workloads.step_times import StepTimes


def train(options: RunOptions, log: Path | None) -> StepTimes:
    """Train by SGD with momentum on one batch over and over.

    Every step copies the images to the device. The steps after the warm-up are recorded into the
    folder ``log``, each marked ``train`` with its number. Raises :class:`OptionError` where
    this machine does not support the options.
    """
    traced = tf.profiler.experimental
    profiler = Profiler(
        traced.start, lambda number: traced.Trace("train", step_num=number), traced.stop
    )
    return take_steps(options, prepare(options), profiler, log)


def prepare(options: RunOptions) -> Callable[[], float]:
    """Return a function that trains one step on the whole batch and returns the loss."""
    set_switches(options)
    strategy = replicas(options)
    with nullcontext() if strategy is None else strategy.scope():
        return _prepared(options, options.describe_network(), strategy)


def _prepared(options: RunOptions, network: Network, strategy: Any) -> Callable[[], float]:
    channels_first = options.layout is Layout.NCHW
    model = build(
        network,
        options.seed,
        channels_first=channels_first,
        through_host=options.host_memory is HostMemory.PER_OPERATOR,
    )
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="loss")
    optimizer: Any = keras.optimizers.SGD(1e-3, momentum=0.9, name="optimizer")
    if options.precision is Precision.AMP_FP16:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="optimizer")
    optimizer.build(model.trainable_variables)

    def step(images: Any, labels: Any) -> Any:
        weights = list(model.trainable_variables)
        with tf.GradientTape() as tape:
            if options.first_data_gradient:
                tape.watch(images)
                weights.append(images)
            loss = loss_function(labels, model(images, training=True))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, weights)
        trained = len(model.trainable_variables)
        optimizer.apply_gradients(zip(gradients[:trained], model.trainable_variables, strict=True))
        # TensorFlow removes values that are not returned.
        return loss, gradients[trained:]

    batch = synthetic_batch(network, options.batch, options.seed)
    ordered = batch.images if channels_first else batch.images.transpose(0, 2, 3, 1)
    if strategy is None:
        compiled = tf.function(step, jit_compile=bool(options.compile))
        return lambda: float(compiled(tf.constant(ordered), tf.constant(batch.labels))[0])

    def share(values: Any) -> Any:
        size = options.local_batch

        def own(context: Any) -> Any:
            first = context.replica_id_in_sync_group * size
            return tf.constant(values[first : first + size])

        return strategy.experimental_distribute_values_from_function(own)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow is untyped
    def everywhere(images: Any, labels: Any) -> Any:
        losses, _ = strategy.run(step, args=(images, labels))
        return strategy.reduce("SUM", losses, axis=None)

    return lambda: float(everywhere(share(ordered), share(batch.labels)))
