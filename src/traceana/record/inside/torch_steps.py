"""Steps in PyTorch, recorded by torch.profiler or NVTX ranges: calls of ``Optimizer.step``, or
without an optimizer of the model."""

from __future__ import annotations

import errno
import functools
import gzip
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from .lines import LineRanges
from .process_report import Report, Settings, guarded
from .step_window import AFTER_STEPS, Clock, NvtxWindow, Recorder, Window, refuse_torch_profiler
from .torch_model import Model, rank_of


def count_steps(torch: ModuleType, settings: Settings, report: Report) -> None:
    """Count the steps of the optimizer that steps first; without one, the calls of a module."""
    # An optimizer hook would run inside the range of the optimizer in the trace.
    original = getattr(torch.optim.Optimizer, "profile_hook_step", None)
    if original is None:
        report.note(f"torch {torch.__version__} is not supported: 2.0 or newer is needed")
        return
    model = Model(torch, report)
    model.watch_loaders()
    recorder = torch_profiler(torch, settings, report, model)
    windows: dict[int, Window] = {}
    of_inference: list[Window] = []

    def new_window() -> Window:
        clock = CudaClock(torch) if torch.cuda.is_initialized() else Clock()
        return Window("torch", settings, report, recorder, clock, lambda: rank_of(torch))

    def inferred(module: Any) -> Window:
        guarded(lambda: model.watch_inference(module), report)
        window = new_window()
        of_inference.append(window)
        window.remark = f"no optimizer: the steps are the calls of {type(module).__name__}"
        return window

    stop_inference = _count_calls(torch, inferred, model.step_ended)

    def stepped(optimizer: Any) -> None:
        if not windows:
            own_window = of_inference[0] if of_inference else new_window()
            windows[id(optimizer)] = own_window
            guarded(lambda: model.find_module_of(optimizer), report)
            own_window.step_ended()
        elif id(optimizer) in windows:
            model.step_ended()
            windows[id(optimizer)].step_ended()
        else:
            guarded(lambda: model.other_optimizer(optimizer), report)

    def hooked(step: Any) -> Any:
        inner = original(step)

        @functools.wraps(step)
        def outer(*arguments: Any, **keywords: Any) -> Any:
            result = inner(*arguments, **keywords)
            stepped(arguments[0])
            return result

        return outer

    torch.optim.Optimizer.profile_hook_step = staticmethod(hooked)
    made = torch.optim.Optimizer.__init__

    @functools.wraps(made)
    def make(*arguments: Any, **keywords: Any) -> None:
        # Whatever runs without gradients before its steps, as a validation, is none of them.
        stop_inference()
        if not windows:
            for window in of_inference:
                window.restart()
        made(*arguments, **keywords)

    torch.optim.Optimizer.__init__ = make


def _count_calls(
    torch: Any, begin: Callable[[Any], Window], step_ended: Callable[[], None]
) -> Callable[[], None]:
    """Count the calls without gradients of the outermost module that is called a second time first.

    ``begin`` returns the window of a module. Return the function that ends the counting: nothing is
    left of it then, nor after the window.
    """
    kind = torch.nn.Module
    original = kind.__call__
    main = threading.main_thread()
    state = {"depth": 0}
    seen: set[int] = set()
    windows: dict[int, Window] = {}

    def stop() -> None:
        if kind.__call__ is called:
            kind.__call__ = original

    @functools.wraps(original)
    def called(module: Any, *arguments: Any, **keywords: Any) -> Any:
        if (
            state["depth"]
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or threading.current_thread() is not main
        ):
            return original(module, *arguments, **keywords)
        state["depth"] = 1
        try:
            result = original(module, *arguments, **keywords)
        finally:
            state["depth"] = 0
        if not windows and id(module) in seen:
            windows[id(module)] = begin(module)
        elif not windows:
            seen.add(id(module))
        if id(module) in windows:
            step_ended()
            windows[id(module)].step_ended()
            if windows[id(module)].is_over:
                stop()
        return result

    kind.__call__ = called
    return stop


def torch_profiler(torch: Any, settings: Settings, report: Report, model: Model) -> Recorder:
    """Return the profiler of a PyTorch process: torch.profiler, NVTX ranges, or none."""
    if settings.profiler == "nsys":
        refuse_torch_profiler(torch, report)
        return NvtxWindow(settings, report, model)
    if settings.profiler in ("auto", "torch"):
        return TorchRecorder(torch, settings, report, model)
    return Recorder()


class CudaClock(Clock):
    """The GPU's clock, because the host runs ahead of the GPU."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def wait(self) -> None:
        """Wait for the GPU."""
        self._torch.cuda.synchronize()

    def now(self) -> Any:
        """Return an event at the end of the work enqueued so far."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, moments: list[Any]) -> list[int]:
        """Return the times by the GPU's clock, with a resolution of about 0.5 us."""
        pairs = zip(moments, moments[1:])  # noqa: B905, RUF007
        return [round(before.elapsed_time(after) * 1e6) for before, after in pairs]


class TorchRecorder(Recorder):
    """torch.profiler with shapes, and a range around each module's forward pass.

    Its warm-up is the last step before the window, if there is one.
    """

    def __init__(self, torch: Any, settings: Settings, report: Report, model: Any) -> None:
        self._torch, self._settings, self._report = torch, settings, report
        self._model = model
        self._profiler: Any = None
        self._stopped: Any = None
        self._own_line = ""
        self._unwatch = _watch_profilers(torch, self)
        # Ten times as fast as record_function. Available since torch 2.2.
        internals = getattr(getattr(torch, "_C", None), "_profiler", None)
        fast = getattr(internals, "_RecordFunctionFast", None)
        self._lines = LineRanges(
            fast or (lambda text: torch.profiler.record_function(text)), settings, report
        )

    def prepare(self, number: int) -> None:
        """Start the profiler's own warm-up."""
        self._start(number, warm_up=1)

    def begin(self, number: int) -> None:
        """Begin the window."""
        # The hooks are registered before the profiler's first step, because that takes time.
        self._model.mark(self._torch.profiler.record_function)
        if self._profiler is None:
            self._start(number, warm_up=0)
        else:
            self._profiler.step()
        if self._profiler is None:
            self._model.unmark()
        else:
            self._lines.begin()

    def step(self, number: int) -> None:  # noqa: ARG002  # the profiler counts its steps
        """Mark the step."""
        if self._profiler is not None:
            self._lines.between(self._profiler.step)

    def abandon_step(self) -> None:
        """Record an empty range in the step."""
        if self._profiler is not None:
            with self._torch.profiler.record_function(AFTER_STEPS):
                pass

    def stop(self) -> None:
        """Stop the profiler, then the ranges."""
        self._stopped, self._profiler = self._profiler, None
        self._lines.end()
        self._unwatch()
        if self._stopped is not None:
            self._stopped.stop()
            self._model.unmark()

    def write(self) -> str | None:
        """Write the trace, compressed, and the model's layers."""
        if self._stopped is None:
            return None
        rank = self._model.rank
        name = "trace.json.gz" if rank is None else f"trace.rank{rank}.json.gz"
        folder = Path(self._settings.folder)
        _write(self._stopped, folder / name)
        self._model.describe(folder)
        self._lines.keep_files()
        return name

    def _start(self, number: int, *, warm_up: int) -> None:
        profiler = self._torch.profiler
        if self._torch.autograd._profiler_enabled():
            self._conflict()
            return
        with warnings.catch_warnings():
            # torch.profiler warns about a schedule without warm-up, as with --warm-up 1.
            warnings.simplefilter("ignore")
            window = profiler.schedule(wait=0, warmup=warm_up, active=self._settings.steps)
            # The trace has the numbers of the steps in the script; a schedule begins with 0.
            self._profiler = profiler.profile(
                schedule=lambda step: window(max(step - number, 0)), record_shapes=True
            )
            self._profiler.step_num = number
            self._profiler.start()

    def other_profiler(self, profiler: Any) -> None:
        """End the recording if the script starts ``profiler``, one of its own."""
        if getattr(self._profiler, "profiler", None) is profiler:
            return
        self._own_line = _line_of_script(self._torch)
        if self._profiler is not None:
            self._conflict()
            guarded(self.stop, self._report)
            self._stopped = None

    def _conflict(self) -> None:
        where = f" ({self._own_line})" if self._own_line else ""
        self._report.problem("conflict", f"the script runs torch.profiler itself{where}")


def _line_of_script(torch: Any) -> str:
    """Return the file and line that called torch, empty if there is none."""
    inside = (os.path.dirname(torch.__file__), os.path.dirname(__file__))  # noqa: PTH120
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*inside, "<")):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _watch_profilers(torch: Any, recorder: TorchRecorder) -> Callable[[], None]:
    """Tell ``recorder`` when a profiler starts: two at once would raise an error.

    Return a function that removes the hook.
    """
    kind = torch.autograd.profiler.profile
    prepare = getattr(kind, "_prepare_trace", None)
    if prepare is None:
        return lambda: None

    def watched(profiler: Any, *arguments: Any, **keywords: Any) -> Any:
        recorder.other_profiler(profiler)
        return prepare(profiler, *arguments, **keywords)

    def restore() -> None:
        if kind._prepare_trace is watched:
            kind._prepare_trace = prepare

    kind._prepare_trace = watched
    return restore


def _write(profiler: Any, path: Path) -> None:
    # The profiler's own compression writes the name of a temporary file into the trace.
    plain = path.with_suffix("")
    packed = path.with_name(f"{path.name}.new")
    try:
        profiler.export_chrome_trace(str(plain))
        # The profiler does not report write errors; the file or its end is missing then.
        if not plain.exists():
            raise OSError(errno.ENOSPC, "torch.profiler could not write its trace")
        with plain.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16))
            if not file.read().rstrip().endswith(b"}"):
                raise OSError(errno.ENOSPC, "torch.profiler's trace is truncated")
            file.seek(0)
            with gzip.open(packed, "wb", compresslevel=6) as target:
                shutil.copyfileobj(file, target, 1 << 20)
        packed.replace(path)
    finally:
        # A failed export leaves the profiler's temporary file.
        for left in (plain, packed, plain.with_name(f"{plain.name}.tmp")):
            left.unlink(missing_ok=True)
