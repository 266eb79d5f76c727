"""Programs in JAX: a training step on the CPU, with one thing or another changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from traceana.record.recorder import StepRecorder


class JaxProgram(msgspec.Struct, frozen=True, kw_only=True, tag="jax"):
    """A training loop. Times are in milliseconds."""

    network: Literal["cnn", "mlp"] = "mlp"
    batch: int = 96
    layers: int = 3
    width: int = 768
    activation: str = "relu"
    normalization: bool = False
    adam: bool = False
    """Adam, else stochastic gradient descent."""
    remat: bool = False
    """The backward pass computes the layers again."""
    load_ms: float = 0
    """Sleep for each batch, within the annotation ``load_data``."""
    logging_ms: float = 0
    """Sleep in each step, within the annotation ``logging``."""
    metrics: int = 0
    """Passes of NumPy over a large array in each step, within the annotation ``metrics``."""
    beside: bool = False
    """The host loads, logs and computes metrics while the step is computed, as beside a GPU; else
    before and after it."""


def training(program: JaxProgram) -> tuple[None, Callable[[StepRecorder, int], None]]:
    """Return a function that trains for some recorded steps; there is no model."""
    # One thread computes: two would share this machine's cores with others.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import jax.numpy as jnp
    import numpy as np

    width, convolution = program.width, program.network == "cnn"
    rng = np.random.default_rng(0)
    sizes = [3 if convolution and number == 0 else width for number in range(program.layers)]
    kernel = (3, 3) if convolution else ()
    weights: Any = [
        jnp.asarray(rng.standard_normal((*kernel, size, width)) / size, jnp.float32)
        for size in sizes
    ]
    shape = (program.batch, 32, 32, 3) if convolution else (program.batch, width)
    x = rng.standard_normal(shape).astype(np.float32)
    activation = getattr(jax.nn, program.activation)

    def layer(number: int, weight: Any, x: Any) -> Any:
        with jax.named_scope(f"{'conv' if convolution else 'fc'}{number}"):
            if convolution:
                layout = ("NHWC", "HWIO", "NHWC")
                x = jax.lax.conv_general_dilated(
                    x, weight, (1, 1), "SAME", dimension_numbers=layout
                )
            else:
                x = x @ weight
        if program.normalization:
            with jax.named_scope(f"norm{number}"):
                x = jax.nn.standardize(x)
        with jax.named_scope(f"act{number}"):
            return activation(x)

    def loss(weights: Any, x: Any) -> Any:
        for number, weight in enumerate(weights, 1):
            called = jax.checkpoint(layer, static_argnums=0) if program.remat else layer
            x = called(number, weight, x)
        return jnp.mean(x**2)

    def updated(weight: Any, gradient: Any, mean: Any, square: Any) -> tuple[Any, Any, Any]:
        if not program.adam:
            return weight - 1e-3 * gradient, mean, square
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        return weight - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square

    @jax.jit  # type: ignore[untyped-decorator,unused-ignore]
    def step(state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)([weight for weight, _, _ in state], x)
        with jax.named_scope("optimizer"):
            state = [
                updated(weight, gradient, mean, square)
                for (weight, mean, square), gradient in zip(state, gradients, strict=True)
            ]
        return state, value

    kept = [[(one, jnp.zeros_like(one), jnp.zeros_like(one)) for one in weights]]
    named = jax.profiler.TraceAnnotation
    large = rng.standard_normal(1_000_000)

    def load() -> None:
        with named("load_data") if program.load_ms else nullcontext():
            time.sleep(program.load_ms / 1000)

    def run(recorder: StepRecorder, steps: int) -> None:
        for _ in range(steps):
            if not program.beside:
                load()
            kept[0], value = step(kept[0], x)
            if program.beside:
                load()
            else:
                value.block_until_ready()
            with named("logging") if program.logging_ms else nullcontext():
                time.sleep(program.logging_ms / 1000)
            with named("metrics") if program.metrics else nullcontext():
                for _ in range(program.metrics):
                    np.square(large).sum()
            value.block_until_ready()
            recorder.step(value)

    return None, run
