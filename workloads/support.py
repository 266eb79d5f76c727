"""The options that each framework supports, and their defaults."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from workloads.options import (
    Device,
    Epilogue,
    HostMemory,
    Layout,
    OptionError,
    Precision,
    RunOptions,
)


class Framework(StrEnum):
    """Framework that trains the network."""

    PYTORCH = "PyTorch"
    KERAS = "Keras"
    JAX = "JAX"


def supported(options: RunOptions, framework: Framework) -> RunOptions:
    """Return ``options`` with the framework's default layout and compilation for None.

    Raises :class:`OptionError` for options that the framework does not support.
    """
    own = Layout.NCHW if framework is Framework.PYTORCH else Layout.NHWC
    full = replace(
        options,
        layout=options.layout or own,
        compile=framework is Framework.JAX if options.compile is None else options.compile,
    )
    reason = _REFUSALS[framework](full)
    if reason is not None:
        raise OptionError(f"{framework}: {reason}")
    return full


def _pytorch(options: RunOptions) -> str | None:
    if options.epilogue is Epilogue.FUSED and not options.compile:
        return "--epilogue fused needs torch.compile: add --compile"
    if options.epilogue is Epilogue.SEPARATE and options.compile:
        return "--compile decides about fusion itself: leave out --epilogue separate"
    if options.host_memory is HostMemory.PER_OPERATOR and options.compile:
        return "--host-memory per-operator cannot be combined with --compile: leave one of them out"
    return None


def _keras(options: RunOptions) -> str | None:
    on_cpu = options.device is Device.CPU
    if options.layout is Layout.NCHW and on_cpu and not options.compile:
        return "TensorFlow's CPU convolutions need NHWC: add --compile or use --layout nhwc"
    if options.host_memory is HostMemory.PINNED:
        return "TensorFlow has no option for pinned memory: leave out --host-memory pinned"
    if options.host_memory is HostMemory.PER_OPERATOR and (on_cpu or options.compile):
        return "--host-memory per-operator needs --device cuda and no --compile"
    if options.epilogue is Epilogue.SEPARATE and options.compile:
        return "XLA decides about fusion itself: leave out --compile or --epilogue"
    if options.processes > 1 and options.compile:
        return "--processes cannot be combined with --compile: leave one of them out"
    return None


def _jax(options: RunOptions) -> str | None:
    if options.threads is not None:
        return "JAX has no option for threads: leave out --threads"
    if options.precision is Precision.AMP_FP16:
        return "JAX has no loss scaling for amp-fp16: use amp-bf16"
    if options.host_memory is not HostMemory.PAGEABLE:
        return f"JAX does not support --host-memory {options.host_memory}: leave it out"
    if options.epilogue is not Epilogue.DEFAULT and not options.compile:
        return "--no-compile disables fusion: leave out --no-compile or --epilogue"
    if options.processes > 1 and not options.compile:
        return "--processes needs the compiled step: leave out --no-compile"
    return None


_REFUSALS = {Framework.PYTORCH: _pytorch, Framework.KERAS: _keras, Framework.JAX: _jax}
