"""The training loop, and its recording by JAX's profiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from workloads.data import synthetic_batch
from workloads.jax.build import Parameters, initial_averages, initial_parameters, train_apply
from workloads.jax.layers import Form
from workloads.jax.switches import devices, set_switches
from workloads.network import Network
from workloads.options import Epilogue, Layout, Precision, RunOptions
from workloads.profiled import Profiler, take_steps
from workloads.step_times import StepTimes

_RATE, _MOMENTUM = 1e-3, 0.9
_EVERYWHERE, _SPLIT = PartitionSpec(), PartitionSpec("replica")


def train(options: RunOptions, log: Path | None) -> StepTimes:
    """Train by SGD with momentum on one batch over and over.

    Every step copies the images to the device. The steps after the warm-up are recorded into the
    folder ``log``, each marked ``train`` with its number. Raises :class:`OptionError` where
    this machine does not support the options.
    """
    profiler = Profiler(
        lambda folder: jax.profiler.start_trace(folder, profiler_options=_without_python()),
        lambda number: jax.profiler.StepTraceAnnotation("train", step_num=number),
        jax.profiler.stop_trace,
    )
    return take_steps(options, prepare(options), profiler, log)


def prepare(options: RunOptions) -> Callable[[], jax.Array]:
    """Return a function that trains one step on the whole batch and returns the loss."""
    set_switches(options)
    own = devices(options)
    network = options.describe_network()
    batch = synthetic_batch(network, options.batch, options.seed)
    nchw = options.layout is Layout.NCHW
    images = batch.images if nchw else np.ascontiguousarray(batch.images.transpose(0, 2, 3, 1))
    mesh = jax.make_mesh((options.processes,), ("replica",), (AxisType.Auto,), devices=own)
    everywhere, split = NamedSharding(mesh, _EVERYWHERE), NamedSharding(mesh, _SPLIT)
    step = _step(options, network, mesh)
    parameters = initial_parameters(network, options.seed)
    state = parameters, jax.tree.map(jnp.zeros_like, parameters), initial_averages(network)
    state = jax.device_put(state, everywhere)
    numbers = range(options.warm_up + options.steps)
    keys = iter([jax.device_put(jax.random.key(number), everywhere) for number in numbers])

    def train_once() -> jax.Array:
        nonlocal state
        fed = jax.device_put((images, batch.labels), split)
        state, loss, of_images = step(state, *fed, next(keys))
        jax.block_until_ready((state, loss, of_images))
        return loss

    return train_once


def _without_python() -> jax.profiler.ProfileOptions:
    """Return options without Python events, which would mostly be JAX's own dispatch."""
    recorded = jax.profiler.ProfileOptions()
    recorded.python_tracer_level = 0
    return recorded


def _step(options: RunOptions, network: Network, mesh: Mesh) -> Callable[..., Any]:
    """Return the training step: (state, images, labels, key) to the next state and the loss.

    With ``first_data_gradient`` it also returns the gradient of the images: XLA removes values that
    are not returned.
    """
    form = Form(
        channels_first=options.layout is Layout.NCHW,
        separate=options.epilogue is Epilogue.SEPARATE,
    )
    half = options.precision is Precision.AMP_BF16
    parallel = options.processes > 1

    def loss_of(
        parameters: Parameters, images: jax.Array, averages: Any, labels: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        if half:
            parameters, images = jax.tree.map(partial(_cast, jnp.bfloat16), (parameters, images))
        scores, after = train_apply(network, parameters, averages, images, key, form)
        with jax.named_scope("loss"):
            likelihoods = jax.nn.log_softmax(scores.astype(jnp.float32))
            chosen = jnp.take_along_axis(likelihoods, labels[:, None], axis=1)
            return -chosen.mean(), after

    def step(state: Any, images: jax.Array, labels: jax.Array, key: jax.Array) -> Any:
        parameters, velocity, averages = state
        wanted = (0, 1) if options.first_data_gradient else (0,)
        gradients = jax.value_and_grad(loss_of, wanted, has_aux=True)
        (loss, averages), (gradient, *of_images) = gradients(
            parameters, images, averages, labels, key
        )
        if parallel:
            gradient, loss, averages = lax.pmean((gradient, loss, averages), "replica")
        with jax.named_scope("optimizer"):
            velocity = jax.tree.map(lambda v, g: _MOMENTUM * v + g, velocity, gradient)
            parameters = jax.tree.map(lambda p, v: p - _RATE * v, parameters, velocity)
        return (parameters, velocity, averages), loss, of_images

    if parallel:
        step = jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(_EVERYWHERE, _SPLIT, _SPLIT, _EVERYWHERE),
            out_specs=(_EVERYWHERE, _EVERYWHERE, _SPLIT),
            check_vma=False,
        )
    return jax.jit(step) if options.compile else step


def _cast(dtype: Any, values: jax.Array) -> jax.Array:
    return values.astype(dtype)
