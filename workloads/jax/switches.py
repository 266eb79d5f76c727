"""JAX's and XLA's global switches, as the options say."""

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
    """Set them, before anything is computed: XLA reads its flags once."""
    flag = _FLAGS.get(options.algorithms)
    if flag is not None:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    if options.device is Device.CPU:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.processes)
    else:
        # On a GPU JAX takes TF32 for float32 unless told otherwise.
        exact = options.precision is not Precision.TF32
        jax.config.update("jax_default_matmul_precision", "highest" if exact else "tensorfloat32")


def devices(options: RunOptions) -> list[jax.Device]:
    """The devices to train on, one a process; raises :class:`OptionError` if there are fewer."""
    kind = "cpu" if options.device is Device.CPU else "gpu"
    try:
        found: list[jax.Device] = jax.devices(kind)
    except RuntimeError:
        raise OptionError("JAX finds no GPU here; use --device cpu") from None
    if len(found) < options.processes:
        raise OptionError(f"--processes {options.processes}: there are {len(found)} GPUs here")
    return found[: options.processes]
