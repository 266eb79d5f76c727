"""Steps of PyTorch's networks under the profiler, beside PyTorch's own count of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.flop_counter import FlopCounterMode

from tests.networks.hooks import Clocks, Key


def counted(step: Callable[[], None]) -> int:
    """Return the FLOPs of ``step`` by PyTorch's counter, with grouped convolutions put right."""
    correct = {torch.ops.aten.convolution_backward: _convolution_backward}
    with one_thread(), FlopCounterMode(display=False, custom_mapping=correct) as counter:
        step()
    return int(counter.get_total_flops())


def _convolution_backward(
    gradient: Any, image: Any, weight: Any, _bias: Any, *rest: Any, **_: Any
) -> int:
    """Return two products as large as the forward one, or one; groups have C/g channels each."""
    transposed, mask = rest[3], rest[6]
    positions = image if transposed else gradient
    one: int = 2 * prod(weight) * positions[0] * prod(positions[2:])
    return (bool(mask[0]) + bool(mask[1])) * one


def recorded(
    step: Callable[[], None],
    path: Path,
    steps: int,
    *,
    warm_up: Callable[[], None] | None = None,
    **options: bool,
) -> Path:
    """Record ``steps`` runs of ``step`` after one of ``warm_up`` or itself; returns ``path``."""
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with (
        one_thread(),
        profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan, **options
        ) as profiler,
    ):
        for one in (warm_up or step, *[step] * steps):
            one()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def clocked(
    model: torch.nn.Module, inputs: torch.Tensor, path: Path, *, ranges: bool, steps: int
) -> list[dict[Key, int]]:
    """Record ``steps`` of ``model``; returns what hooks measured of each.

    Layers are told by ``ranges`` named after them, or by the modules in Python's stacks.
    """
    clocks = Clocks(model, _forward_range if ranges else None)

    def step(inputs: torch.Tensor = inputs) -> None:
        clocks.step()
        clocks.backward(model(inputs).square().mean())
        model.zero_grad()

    # Two of the batch warm up what only the first step does: the Python of the hooks and the model.
    recorded(step, path, steps, warm_up=lambda: step(inputs[:2]), with_stack=not ranges)
    clocks.remove()
    return clocks.steps[1:]


def _forward_range(path: str) -> record_function:
    return record_function(f"forward: {path}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let one thread compute: several wait for each other by spinning on a machine that is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
