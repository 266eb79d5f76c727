"""What each framework can do of the options, and what it does where none is given."""

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
    """What trains the network."""

    PYTORCH = "PyTorch"
    KERAS = "Keras"
    JAX = "JAX"


def served(options: RunOptions, framework: Framework) -> RunOptions:
    """``options`` with the framework's own layout and compilation where none is given.

    Raises :class:`OptionError` for what the framework cannot do.
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
        return "an eager convolution trains with no ReLU fused to it; add --compile"
    if options.epilogue is Epilogue.SEPARATE and options.compile:
        return "--compile fuses bias and ReLU as it likes: leave --epilogue separate out"
    if options.host_memory is HostMemory.PER_OPERATOR and options.compile:
        return "--compile leaves no operators to feed one by one; leave one of the two out"
    return None


def _keras(options: RunOptions) -> str | None:
    on_cpu = options.device is Device.CPU
    if options.layout is Layout.NCHW and on_cpu and not options.compile:
        return "TensorFlow's convolutions on the CPU are NHWC; add --compile or use --layout nhwc"
    if options.host_memory is HostMemory.PINNED:
        return "TensorFlow pins its own buffers and has no option for it"
    if options.host_memory is HostMemory.PER_OPERATOR and (on_cpu or options.compile):
        return "operators are fed one by one on a GPU and without --compile only"
    if options.epilogue is Epilogue.SEPARATE and options.compile:
        return "XLA fuses bias and ReLU as it likes: leave --compile or --epilogue out"
    if options.processes > 1 and options.compile:
        return "--processes goes without --compile"
    return None


def _jax(options: RunOptions) -> str | None:
    if options.threads is not None:
        return "there is no option for threads: leave --threads out"
    if options.precision is Precision.AMP_FP16:
        return "half precision needs a scaled loss, which JAX has not; use amp-bf16"
    if options.host_memory is not HostMemory.PAGEABLE:
        return f"there is no option for --host-memory {options.host_memory}"
    if options.epilogue is not Epilogue.DEFAULT and not options.compile:
        return "without XLA's compiler nothing is fused: leave --no-compile or --epilogue out"
    if options.processes > 1 and not options.compile:
        return "--processes needs the compiled step: leave --no-compile out"
    return None


_REFUSALS = {Framework.PYTORCH: _pytorch, Framework.KERAS: _keras, Framework.JAX: _jax}
