"""The training loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

import torch
from torch import nn

from workloads.data import Batch, synthetic_batch
from workloads.options import (
    Algorithms,
    Device,
    Epilogue,
    HostMemory,
    Layout,
    OptionError,
    Precision,
    RunOptions,
)
from workloads.pytorch.build import DescribedNetwork, build
from workloads.pytorch.ranges import Marker, range_
from workloads.step_times import StepTimes

_AUTOCAST = {Precision.AMP_BF16: torch.bfloat16, Precision.AMP_FP16: torch.float16}


def prepare(options: RunOptions) -> DescribedNetwork:
    """Return the model on its device, in its memory layout; set PyTorch's global switches.

    Raises :class:`OptionError` with too few GPUs, NetworkError for an impossible network.
    """
    if options.device is Device.CUDA:
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found == 0:
            raise OptionError("PyTorch found no CUDA device: use --device cpu")
        if found < options.processes:
            raise OptionError(f"--processes {options.processes}: this machine has {found} GPUs")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = options.algorithms is Algorithms.BENCHMARK
    torch.backends.cudnn.deterministic = options.algorithms is Algorithms.DETERMINISTIC
    tf32 = options.precision is Precision.TF32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    model = build(
        options.describe_network(),
        options.seed,
        separate_bias=options.epilogue is Epilogue.SEPARATE,
        through_host=options.host_memory is HostMemory.PER_OPERATOR,
    )
    model.to(options.device.value)
    if options.layout is Layout.NHWC:
        model.to(memory_format=torch.channels_last)
    return model


def own_share(options: RunOptions, rank: int) -> Batch:
    """Return the images and labels of process ``rank``."""
    whole = synthetic_batch(options.describe_network(), options.batch, options.seed)
    share = slice(rank * options.local_batch, (rank + 1) * options.local_batch)
    return Batch(whole.images[share], whole.labels[share])


def train(
    model: nn.Module,
    options: RunOptions,
    batch: Batch,
    marker: Marker,
    step_done: Callable[[], None],
    *,
    fused: bool = False,
    graph: bool = False,
) -> StepTimes:
    """Train ``model`` by SGD with momentum on one batch over and over.

    ``marker`` gets a range around every step (``warm-up N``, then ``iteration N``, N from 0) and
    around its ``forward``, ``loss``, ``backward`` and ``optimizer``. ``step_done`` is called after
    each step, ``fused`` selects the fused optimizer. Every step copies the images to the
    device and ends with a synchronization. With ``graph`` the rest of the step is one CUDA graph.
    """
    images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
    if options.layout is Layout.NHWC:
        images = images.contiguous(memory_format=torch.channels_last)
    pinned = options.host_memory is HostMemory.PINNED
    if pinned:
        images, labels = images.pin_memory(), labels.pin_memory()
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused or None)
    device = options.device.value
    # bfloat16 has float32's range and needs no scaling.
    scaler = torch.amp.GradScaler(device, enabled=options.precision is Precision.AMP_FP16)

    def feed() -> tuple[torch.Tensor, torch.Tensor]:
        return images.to(device, non_blocking=pinned), labels.to(device, non_blocking=pinned)

    def compute(device_images: torch.Tensor, device_labels: torch.Tensor) -> None:
        if options.first_data_gradient:
            device_images = device_images.detach().requires_grad_()
        optimizer.zero_grad()
        with _autocast(options):
            with range_(marker, "forward"):
                scores = model(device_images)
            with range_(marker, "loss"):
                loss = loss_function(scores, device_labels)
        with range_(marker, "backward"):
            scaler.scale(loss).backward()
        with range_(marker, "optimizer"):
            scaler.step(optimizer)
            scaler.update()

    def step() -> None:
        compute(*feed())

    if graph:
        fixed = feed()
        recorded = captured(lambda: compute(*fixed))

        def step() -> None:
            for target, source in zip(fixed, (images, labels), strict=True):
                target.copy_(source, non_blocking=pinned)
            recorded.replay()

    times = StepTimes()
    for number in range(-options.warm_up, options.steps):
        warm = number < 0
        text = f"warm-up {number + options.warm_up}" if warm else f"iteration {number}"
        start = perf_counter_ns()
        with range_(marker, text):
            step()
            if options.device is Device.CUDA:
                torch.cuda.synchronize()
        times.add(number, perf_counter_ns() - start)
        step_done()
    return times


def captured(compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return ``compute`` as a CUDA graph, after three calls on a side stream as PyTorch asks."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph


def _autocast(options: RunOptions) -> AbstractContextManager[object]:
    dtype = _AUTOCAST.get(options.precision)
    return nullcontext() if dtype is None else torch.autocast(options.device.value, dtype)
