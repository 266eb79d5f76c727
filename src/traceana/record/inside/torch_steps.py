"""PyTorch: a step ends with the optimizer's; torch.profiler or NVTX ranges record it."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from .report import Report, guarded
from .settings import Settings
from .window import Clock, Recorder, Window


def count_steps(torch: ModuleType, settings: Settings, report: Report) -> None:
    """Have every step of the first optimizer that steps counted."""
    from .torch_model import Model

    # A hook of the optimizer's own would be called within its range in the trace.
    original = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    if original is None:
        report.note(f"torch {torch.__version__} does not tell when a step ends: 2.0 and newer do")
        return
    model = Model(torch, report)
    recorder = _recorder(torch, settings, report, model)
    windows: dict[int, Window] = {}

    def stepped(optimizer: Any) -> None:
        if not windows:
            clock = DeviceClock(torch) if torch.cuda.is_initialized() else Clock()
            own = Window(settings, report, recorder, clock, lambda: rank_of(torch))
            windows[id(optimizer)] = own
            guarded(lambda: model.look_for(optimizer), report)
            own.step_ended()
        elif id(optimizer) in windows:
            model.step_ended()
            windows[id(optimizer)].step_ended()

    def hooked(step: Any) -> Any:
        inner = original(step)

        @functools.wraps(step)
        def outer(*arguments: Any, **keywords: Any) -> Any:
            result = inner(*arguments, **keywords)
            stepped(arguments[0])
            return result

        return outer

    torch.optim.Optimizer.profile_hook_step = staticmethod(hooked)


def _recorder(torch: Any, settings: Settings, report: Report, model: Any) -> Recorder:
    if settings.profiler == "nsys":
        from .nvtx_window import NvtxWindow, refuse_torch_profiler

        refuse_torch_profiler(torch, report)
        return NvtxWindow(settings, report, model)
    if settings.profiler in ("auto", "torch"):
        from .torch_recorder import TorchRecorder

        return TorchRecorder(torch, settings, report, model)
    return Recorder()


class DeviceClock(Clock):
    """The GPU's own clock: the host runs ahead of it."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def wait(self) -> None:
        """Wait until the GPU is done."""
        self._torch.cuda.synchronize()

    def now(self) -> Any:
        """The moment at which the GPU is done with what it was given so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, moments: list[Any]) -> list[int]:
        """Times by the GPU's clock, whose step is about 0.5 us."""
        pairs = zip(moments, moments[1:])  # noqa: B905, RUF007
        return [round(before.elapsed_time(after) * 1e6) for before, after in pairs]


def rank_of(torch: Any) -> tuple[int, int] | None:
    """The rank of this process and the number of ranks, None where it trains alone."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, size) if size > 1 else None
