"""Sets JAX's and XLA's global switches by the options."""

from __future__ import annotations

import os

import jax

from workloads.options import Algorithms, Device, OptionError, Precision, RunOptions

_FLAGS = {
    Algorithms.HEURISTIC: "--xla_gpu_autotune_level=0",
    Algorithms.BENCHMARK: "--xla_gpu_autotune_level=4",
    Algorithms.DETERMINISTIC: "--xla_gpu_deterministic_ops=true",
}


def set_switches(options: RunOptions) -> None:
    """Set the switches before the first computation: XLA reads its flags once."""
    flag = _FLAGS.get(options.algorithms)
    if flag is not None:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    if options.device is Device.CPU:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.processes)
    else:
        # On a GPU JAX uses TF32 for float32 by default.
        exact = options.precision is not Precision.TF32
        jax.config.update("jax_default_matmul_precision", "highest" if exact else "tensorfloat32")


def devices(options: RunOptions) -> list[jax.Device]:
    """Return the devices to train on, one per process; raises :class:`OptionError` if too few."""
    kind = "cpu" if options.device is Device.CPU else "gpu"
    try:
        found: list[jax.Device] = jax.devices(kind)
    except RuntimeError:
        raise OptionError("JAX found no GPU: use --device cpu") from None
    if len(found) < options.processes:
        raise OptionError(f"--processes {options.processes}: this machine has {len(found)} GPUs")
    return found[: options.processes]
