"""A depthwise CNN with equal names of layers in Keras, PyTorch and Flax, each recorded alone.

``python -m tests.support.depthwise FRAMEWORK FOLDER`` writes the recording.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

BATCH, SIZE, WIDTH, STEPS = 4, 16, 8, 4
BLOCKS: Final = (("conv1", 3), ("dw2", 3), ("pw3", 1))
"""Name and window of the convolutions; a normalization and an activation follow each."""
NAMES: Final = (
    *(f"{layer}" for number, (conv, _) in enumerate(BLOCKS, 1)
      for layer in (conv, f"bn{number}", f"relu{number}")),
    *("pool", "fc"),
)  # fmt: skip


def keras(folder: Path) -> None:
    """Record it as a functional model ``net``."""
    import keras
    import tensorflow as tf

    kl, profiler = keras.layers, tf.profiler.experimental
    x = images = keras.Input((SIZE, SIZE, 3))
    for number, (name, window) in enumerate(BLOCKS, 1):
        options: dict[str, Any] = {"padding": "same", "name": name}
        made = 2 * WIDTH if number == 3 else WIDTH
        depthwise = name.startswith("dw")
        conv = kl.DepthwiseConv2D(window, **options) if depthwise else None
        x = (conv or kl.Conv2D(made, window, **options))(x)
        x = kl.ReLU(name=f"relu{number}")(kl.BatchNormalization(name=f"bn{number}")(x))
    x = kl.Dense(10, name="fc")(kl.GlobalAveragePooling2D(name="pool")(x))
    net, optimizer = keras.Model(images, x, name="net"), keras.optimizers.SGD(0.01)
    optimizer.build(net.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    given, labels = tf.random.normal((BATCH, SIZE, SIZE, 3)), tf.zeros((BATCH,), tf.int32)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(given, training=True))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    step()
    profiler.start(str(folder))
    for number in range(STEPS):
        with profiler.Trace("train", step_num=number, _r=1):
            step()
    profiler.stop()


def torch(folder: Path) -> None:
    """Record it as a module ``Net`` whose calls are named ranges."""
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, record_function

    class Net(nn.Module):  # type: ignore[misc]  # torch is not followed
        def __init__(self) -> None:
            super().__init__()
            given = 3
            for number, (name, window) in enumerate(BLOCKS, 1):
                made = 2 * WIDTH if number == 3 else WIDTH
                groups = WIDTH if name.startswith("dw") else 1
                conv = nn.Conv2d(given, made, window, padding=window // 2, groups=groups)
                self.add_module(name, conv)
                self.add_module(f"bn{number}", nn.BatchNorm2d(made))
                self.add_module(f"relu{number}", nn.ReLU())
                given = made
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.fc = nn.Linear(given, 10)

        def forward(self, x: Any) -> Any:
            with record_function("Net"):
                for name in NAMES:
                    with record_function(name):
                        x = getattr(self, name)(x)
            return x

    net, labels = Net(), torch.zeros(BATCH).long()
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for number in range(STEPS):
            with record_function(f"ProfilerStep#{number}"):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(images), labels).backward()
                optimizer.step()
    recorded.export_chrome_trace(str(folder / "trace.json"))


def flax(folder: Path, *, named: bool = True) -> None:
    """Record it as a module ``Net``; unless ``named``, its functions are outside all scopes."""
    import contextlib

    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    scope: Any = jax.named_scope if named else lambda _: contextlib.nullcontext()

    class Net(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            for number, (name, window) in enumerate(BLOCKS, 1):
                made = 2 * WIDTH if number == 3 else WIDTH
                groups = WIDTH if name.startswith("dw") else 1
                conv = nn.Conv(made, (window, window), feature_group_count=groups, name=name)
                x = nn.BatchNorm(use_running_average=False, name=f"bn{number}")(conv(x))
                with scope(f"relu{number}"):
                    x = nn.relu(x)
            with scope("pool"):
                x = x.mean((1, 2))
            return nn.Dense(10, name="fc")(x)

    net, x = Net(), jnp.ones((BATCH, SIZE, SIZE, 3))
    labels = jnp.zeros(BATCH, int)
    state = jax.jit(net.init)(jax.random.key(0), x)

    def loss_of(weights: Any, statistics: Any) -> Any:
        variables = {"params": weights, "batch_stats": statistics}
        found, updated = net.apply(variables, x, mutable=["batch_stats"])
        chosen = jax.nn.log_softmax(found)[jnp.arange(BATCH), labels]
        return -chosen.mean(), updated

    @jax.jit  # type: ignore[untyped-decorator]
    def train_step(state: Any) -> Any:
        weights = state["params"]
        gradient, updated = jax.grad(loss_of, has_aux=True)(weights, state["batch_stats"])
        with jax.named_scope("optimizer"):
            weights = jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradient)
        return {"params": weights, **updated}

    state = jax.block_until_ready(train_step(state))
    with jax.profiler.trace(str(folder)):
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                state = jax.block_until_ready(train_step(state))


if __name__ == "__main__":
    framework, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True)
    if framework == "torch":
        torch(folder)
    else:
        flax(folder, named=framework == "flax")
