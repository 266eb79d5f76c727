"""Records a training run with torch.profiler."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from workloads.options import Device, OptionError, RunOptions


def make_profiler(options: RunOptions, *, stack: bool) -> profile:
    """Return a profiler that records every step after the warm-up, with shapes.

    ``stack`` adds an event for each Python call, and ``nn.Module: CLASS_N`` events for calls of
    modules. ``with_modules`` alone adds a ``Module Hierarchy`` to TorchScript's operators only.
    The profiler needs a warm-up step.
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
    """Return a function to call after each step: it starts CUDA's profilers after the warm-up.

    ``ncu --profile-from-start off`` and ``nsys --capture-range=cudaProfilerApi`` wait for this
    start. Raises :class:`OptionError` without a warm-up step.
    """
    if options.warm_up < 1:
        raise OptionError("--cuda-profiler starts after the warm-up: give --warm-up 1 or more")
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

    PyTorch writes the file's path into the trace, and that of a temporary file when it compresses.
    Therefore the plain file is written in its folder, by its name, and compressed here.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    with chdir(path.parent):
        profiler.export_chrome_trace(plain.name)
    if plain == path:
        return
    try:
        # Z_FILTERED: the digits compress 3 % better by Huffman coding than by longer matches.
        packer = zlib.compressobj(9, zlib.DEFLATED, 31, zlib.DEF_MEM_LEVEL, zlib.Z_FILTERED)
        path.write_bytes(packer.compress(plain.read_bytes()) + packer.flush())
    finally:
        plain.unlink(missing_ok=True)


def trace_once(model: torch.nn.Module, options: RunOptions) -> torch.nn.Module:
    """Return ``model`` as TorchScript, whose operators have a ``Module Hierarchy``."""
    network = options.describe_network()
    side = network.image_size
    example = torch.zeros(
        options.local_batch, network.channels, side, side, device=options.device.value
    )
    # Two runs of a network with dropout differ: the check of the trace would fail.
    scripted: torch.nn.Module = torch.jit.trace(model, example, check_trace=False)
    return scripted
