"""The training loop, and its recording by JAX's profiler."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns

import jax
import jax.numpy as jnp

from workloads.data import synthetic_batch
from workloads.jax.build import Parameters, apply, initial_parameters
from workloads.options import Device, OptionError, Precision, RunOptions

_RATE, _MOMENTUM = 1e-3, 0.9


def train(options: RunOptions, log: Path | None) -> list[int]:
    """Train by SGD with momentum on one batch over and over; returns each step's time in ns.

    The steps after the warm-up are recorded into the folder ``log``, each marked ``train`` with
    its number. Raises :class:`OptionError` for what this workload does not do.
    """
    if options.device is not Device.CPU or options.precision is not Precision.FP32:
        raise OptionError("the JAX workload runs on the CPU in float32 only")
    if options.threads is not None:
        raise OptionError("JAX has no option for threads: leave --threads out")
    network = options.describe_network()
    batch = synthetic_batch(network, options.batch, options.seed)
    images = jnp.asarray(batch.images.transpose(0, 2, 3, 1))
    labels = jnp.asarray(batch.labels)

    def loss_of(
        parameters: Parameters, images: jax.Array, labels: jax.Array, key: jax.Array
    ) -> jax.Array:
        scores = apply(network, parameters, images, key)
        with jax.named_scope("loss"):
            likelihoods = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1)
            return -likelihoods.mean()

    def step(
        parameters: Parameters,
        velocity: Parameters,
        images: jax.Array,
        labels: jax.Array,
        key: jax.Array,
    ) -> tuple[Parameters, Parameters, jax.Array]:
        loss, gradient = jax.value_and_grad(loss_of)(parameters, images, labels, key)
        with jax.named_scope("optimizer"):
            velocity = jax.tree.map(lambda v, g: _MOMENTUM * v + g, velocity, gradient)
            parameters = jax.tree.map(lambda p, v: p - _RATE * v, parameters, velocity)
        return parameters, velocity, loss

    compiled = jax.jit(step)
    parameters = initial_parameters(network, options.seed)
    velocity = jax.tree.map(jnp.zeros_like, parameters)
    times: list[int] = []
    for number in range(-options.warm_up, options.steps):
        if number == 0 and log is not None:
            jax.profiler.start_trace(str(log))
        warm = number < 0
        mark = nullcontext() if warm else jax.profiler.StepTraceAnnotation("train", step_num=number)
        key = jax.random.key(number + options.warm_up)
        start = perf_counter_ns()
        with mark:
            parameters, velocity, loss = compiled(parameters, velocity, images, labels, key)
            jax.block_until_ready((parameters, loss))
        if not warm:
            times.append(perf_counter_ns() - start)
    if log is not None:
        jax.profiler.stop_trace()
    return times
