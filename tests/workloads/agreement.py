"""What a framework computes of every network, for test_workload_agreement.py.

Nothing is trained: scores, loss and the gradient of each parameter are written, all in float64 and
shaped as PyTorch has them. ``python agreement.py OUTPUT`` writes those of JAX.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workloads.data import Batch, synthetic_batch
from workloads.network import Network
from workloads.networks import NETWORKS

# Small, but with several pixels left at the end: statistics of a few numbers amplify rounding.
SIZES: dict[str, dict[str, Any]] = {
    "alexnet": {"image_size": 67, "width_divisor": 16},
    "alexnet_2012": {"image_size": 67, "width_divisor": 16},
    "vgg16": {"image_size": 32, "width_divisor": 16},
    "googlenet": {"image_size": 64, "width_divisor": 8},
    "resnet18": {"image_size": 64, "width_divisor": 16},
    "resnet50": {"image_size": 64, "width_divisor": 16},
    "lenet5": {"image_size": 32, "width_divisor": 2},
    "cifar10_quick": {"image_size": 32, "width_divisor": 8},
    "mlp": {"image_size": 28, "width_divisor": 16},
}
BATCH = 4
Arrays = dict[str, np.ndarray[Any, Any]]


def networks() -> Iterator[tuple[Network, Batch]]:
    for name, sizes in SIZES.items():
        network = NETWORKS[name](**sizes, classes=7).without_dropout()
        yield network, synthetic_batch(network, BATCH, seed=1)


def in_pytorch(network: Network, batch: Batch) -> Arrays:
    import torch

    from workloads.pytorch.build import build

    torch.set_num_threads(1)
    model = build(network, seed=2).double()
    scores = model(torch.from_numpy(batch.images).double())
    loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(batch.labels))
    loss.backward()
    found = {"scores": scores.detach().numpy(), "loss": loss.detach().numpy()}
    return found | {name: p.grad.numpy() for name, p in model.named_parameters()}


def in_keras(network: Network, batch: Batch) -> Arrays:
    import keras
    import tensorflow as tf

    from workloads.keras.build import build

    keras.config.set_floatx("float64")
    single = tf.nn.local_response_normalization

    def local_response(images: Any, *options: Any) -> Any:
        # TensorFlow has it in single precision at most.
        return tf.cast(single(tf.cast(images, "float32"), *options), "float64")

    tf.nn.local_response_normalization = local_response
    model = build(network, seed=2)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        scores = model(tf.constant(batch.images.transpose(0, 2, 3, 1), "float64"), training=True)
        loss = loss_function(batch.labels, scores)
    gradients = tape.gradient(loss, model.trainable_variables)
    found = {"scores": scores.numpy(), "loss": loss.numpy()}
    names = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias"}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        layer, name = variable.path.split("/")[-2:]
        found[f"{layer}.{names[name]}"] = as_pytorch(gradient.numpy())
    return found


def in_jax(network: Network, batch: Batch) -> Arrays:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    from workloads.jax.build import apply, initial_parameters

    def loss_of(parameters: Any) -> Any:
        images = jnp.asarray(batch.images.transpose(0, 2, 3, 1), "float64")
        scores = apply(network, parameters, images, jax.random.key(0))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), batch.labels[:, None], axis=1)
        return -chosen.mean(), scores

    # Widened by numpy: JAX compiles a program for each shape.
    wide = jax.tree.map(lambda value: np.asarray(value, "float64"), initial_parameters(network, 2))
    # XLA's older way compiles in half the time, and in one piece, for one thread, in less.
    quick = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    compiled = jax.jit(jax.value_and_grad(loss_of, has_aux=True), compiler_options=quick)
    (loss, scores), gradients = compiled(wide)
    found = {"scores": np.asarray(scores), "loss": np.asarray(loss)}
    for layer, own in gradients.items():
        for name, gradient in own.items():
            kind = "bias" if name == "bias" else "weight"
            found[f"{layer}.{kind}"] = as_pytorch(np.asarray(gradient))
    return found


def as_pytorch(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if values.ndim == 4:
        return values.transpose(3, 2, 0, 1)
    return values.T if values.ndim == 2 else values


def write(framework: str, output: Path) -> None:
    """Write what ``framework`` computes; Keras and JAX get options that hold for the process."""
    run = {"pytorch": in_pytorch, "keras": in_keras, "jax": in_jax}[framework]
    everything: Arrays = {}
    for network, batch in networks():
        for key, values in run(network, batch).items():
            everything[f"{network.name}/{key}"] = values
    np.savez(output, **everything)  # type: ignore[arg-type]


if __name__ == "__main__":
    write("jax", Path(sys.argv[1]))
