"""Sets TensorFlow's and Keras' global switches by the options."""

from __future__ import annotations

import os
from typing import Any

import keras
import tensorflow as tf

from workloads.options import (
    Algorithms,
    Device,
    Epilogue,
    OptionError,
    Precision,
    RunOptions,
)

_POLICIES = {Precision.AMP_BF16: "mixed_bfloat16", Precision.AMP_FP16: "mixed_float16"}


def set_switches(options: RunOptions) -> None:
    """Set the switches before the first computation.

    Raises :class:`OptionError` where the machine has too few GPUs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if options.device is Device.CPU:
        tf.config.set_visible_devices([], "GPU")
    elif not gpus:
        raise OptionError("TensorFlow found no GPU: use --device cpu")
    elif len(gpus) < options.processes:
        raise OptionError(f"--processes {options.processes}: this machine has {len(gpus)} GPUs")
    if options.device is Device.CPU and options.processes > 1:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * options.processes
        tf.config.set_logical_device_configuration(cpu, parts)
    if options.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    # Operators run one after the other, so that their times add up.
    tf.config.threading.set_inter_op_parallelism_threads(options.processes)
    # The trace has a convolution fused with its activation under the activation's name.
    fused = options.epilogue is Epilogue.FUSED
    tf.config.optimizer.set_experimental_options({"remapping": fused})
    match options.algorithms:
        case Algorithms.HEURISTIC:
            os.environ["TF_CUDNN_USE_AUTOTUNE"] = "0"
        case Algorithms.BENCHMARK:
            os.environ["TF_CUDNN_USE_AUTOTUNE"] = "1"
        case Algorithms.DETERMINISTIC:
            tf.config.experimental.enable_op_determinism()
        case Algorithms.DEFAULT:
            pass
    tf.config.experimental.enable_tensor_float_32_execution(options.precision is Precision.TF32)
    keras.config.set_dtype_policy(_POLICIES.get(options.precision, "float32"))
    keras.utils.set_random_seed(options.seed)


def replicas(options: RunOptions) -> Any:
    """Return TensorFlow's strategy for several replicas, None for one."""
    if options.processes == 1:
        return None
    kind = "CPU" if options.device is Device.CPU else "GPU"
    return tf.distribute.MirroredStrategy([f"{kind}:{n}" for n in range(options.processes)])
