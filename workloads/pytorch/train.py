"""The training loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

import torch
from torch import nn

from workloads.data import synthetic_batch
from workloads.options import Device, OptionError, Precision, RunOptions
from workloads.pytorch.build import build
from workloads.pytorch.ranges import Marker, range_


def prepare(options: RunOptions) -> nn.Module:
    """The model on its device, in its memory layout; sets PyTorch's global switches as asked.

    Raises :class:`OptionError` without the GPU asked for, NetworkError for an impossible network.
    """
    if options.device is Device.CUDA and not torch.cuda.is_available():
        raise OptionError("PyTorch finds no CUDA device here; use --device cpu")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    tf32 = options.precision is Precision.TF32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    model = build(options.describe_network(), options.seed).to(options.device.value)
    return model.to(memory_format=torch.channels_last) if options.channels_last else model


def train(
    model: nn.Module, options: RunOptions, marker: Marker, step_done: Callable[[], None]
) -> list[int]:
    """Train ``model`` by SGD with momentum on one batch over and over.

    ``marker`` gets a range around every step (``warm-up N``, then ``iteration N``, N from 0) and
    around its ``forward``, ``loss``, ``backward`` and ``optimizer``. ``step_done`` is called after
    each step. Every step copies the images to the device. Returns the time of each step after the
    warm-up in ns, the device being waited for at its end.
    """
    batch = synthetic_batch(options.describe_network(), options.batch, options.seed)
    images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
    if options.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    if options.pin_memory:
        images, labels = images.pin_memory(), labels.pin_memory()
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    device = options.device.value
    amp = options.precision is Precision.AMP
    # bfloat16, the CPU's mixed precision, has float32's range and needs no scaling.
    scaler = torch.amp.GradScaler(device, enabled=amp and options.device is Device.CUDA)

    def step() -> None:
        device_images = images.to(device, non_blocking=options.pin_memory)
        device_labels = labels.to(device, non_blocking=options.pin_memory)
        optimizer.zero_grad()
        with _autocast(device, amp):
            with range_(marker, "forward"):
                scores = model(device_images)
            with range_(marker, "loss"):
                loss = loss_function(scores, device_labels)
        with range_(marker, "backward"):
            scaler.scale(loss).backward()
        with range_(marker, "optimizer"):
            scaler.step(optimizer)
            scaler.update()

    times: list[int] = []
    for number in range(-options.warm_up, options.steps):
        warm = number < 0
        text = f"warm-up {number + options.warm_up}" if warm else f"iteration {number}"
        start = perf_counter_ns()
        with range_(marker, text):
            step()
            if options.device is Device.CUDA:
                torch.cuda.synchronize()
        if not warm:
            times.append(perf_counter_ns() - start)
        step_done()
    return times


def _autocast(device: str, enabled: bool) -> AbstractContextManager[object]:
    return torch.autocast(device) if enabled else nullcontext()
