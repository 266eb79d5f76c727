"""Record a training run with torch.profiler."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from workloads.options import Device, OptionError, RunOptions


def make_profiler(options: RunOptions, *, stack: bool) -> profile:
    """A profiler that leaves out the warm-up and records every step after it, with shapes.

    ``stack`` adds one event a Python call and, among them, one ``nn.Module: CLASS_N`` event a call
    of a module. ``with_modules`` alone adds a ``Module Hierarchy`` to TorchScript's operators only.
    It needs a warm-up step for itself.
    """
    activities = [ProfilerActivity.CPU]
    if options.device is Device.CUDA:
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        schedule=schedule(wait=options.warm_up - 1, warmup=1, active=options.steps, repeat=1),
        record_shapes=True,
        with_modules=True,
        with_stack=stack,
    )


def cuda_profiler(options: RunOptions) -> Callable[[], None]:
    """What is to be called after each step, so that CUDA's profilers see those after the warm-up.

    ``ncu --profile-from-start off`` and ``nsys --capture-range=cudaProfilerApi`` wait for it.
    Raises :class:`OptionError` without a warm-up step, after which to begin.
    """
    if options.warm_up < 1:
        raise OptionError("--cuda-profiler needs --warm-up 1 or more: it starts behind that step")
    done = 0

    def step_done() -> None:
        nonlocal done
        done += 1
        if done == options.warm_up:
            torch.cuda.profiler.start()
        elif done == options.warm_up + options.steps:
            torch.cuda.profiler.stop()

    return step_done


def write_trace(profiler: profile, path: Path) -> None:
    """Write the Chrome trace to ``path``, compressed if its name ends in ``.gz``.

    PyTorch writes the name that it is given into the trace, and an absolute temporary one when it
    compresses by itself; so the plain file is written beside ``path`` and compressed here.
    """
    if path.suffix != ".gz":
        profiler.export_chrome_trace(str(path))
        return
    plain = path.with_suffix("")
    try:
        profiler.export_chrome_trace(str(plain))
        # So many digits and so few repeated words: literals coded well beat longer matches by 3 %.
        packer = zlib.compressobj(9, zlib.DEFLATED, 31, zlib.DEF_MEM_LEVEL, zlib.Z_FILTERED)
        path.write_bytes(packer.compress(plain.read_bytes()) + packer.flush())
    finally:
        plain.unlink(missing_ok=True)


def trace_once(model: torch.nn.Module, options: RunOptions) -> torch.nn.Module:
    """``model`` as TorchScript, whose operators carry a ``Module Hierarchy`` with layer names."""
    network = options.describe_network()
    side = network.image_size
    example = torch.zeros(
        options.local_batch, network.channels, side, side, device=options.device.value
    )
    # Two runs of a network with dropout differ, so there is nothing to check.
    scripted: torch.nn.Module = torch.jit.trace(model, example, check_trace=False)
    return scripted
