"""Steps in TensorFlow and JAX: calls of the compiled function that computes gradients, or
where none does of one that is called again and again. The framework's own profiler records them."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

from .keras_model import TRAINED
from .lines import LineRanges
from .process_report import Report, Settings, guarded
from .step_window import Clock, NvtxWindow, Recorder, Window

_EAGER = object()


"""Marks a gradient outside compiled functions."""


_CALLS = 3
"""A function that is called so often before any gradient is that of the steps."""


class CompiledSteps:
    """Finds the outermost compiled function that computes gradients; each call of it is a step.

    A gradient outside compiled functions is a step itself. Where none has been computed, it is the
    function that is called :data:`_CALLS` times first, as in inference: ``inferred`` is called with
    it then, and ``restart`` if a gradient shows that it was not. ``ended`` is called with the
    step's result, and ``begins`` before each call of the function but the first. Replicas are
    traced in several threads, so all threads share the running function.
    """

    def __init__(
        self,
        ended: Callable[[Any], None],
        begins: Callable[[], None] = lambda: None,
        inferred: Callable[[object], None] = lambda _: None,
        restart: Callable[[], None] = lambda: None,
    ) -> None:
        self._ended, self._begins = ended, begins
        self._inferred, self._restart = inferred, restart
        self._running: object | None = None
        self._training: object | None = None
        self._has_gradient = False
        self._calls: dict[int, tuple[object, int]] = {}

    def call(self, function: object, run: Callable[[], Any]) -> Any:
        """Run a call of ``function``."""
        if self._running is not None:
            return run()
        if self._training is function:
            self._begins()
        self._running = function
        try:
            result = run()
        finally:
            self._running = None
        if self._training is None and not self._has_gradient:
            _, calls = self._calls.get(id(function), (function, 0))
            # The function is kept, so that its id stays its own.
            self._calls[id(function)] = function, calls + 1
            if calls + 1 == _CALLS:
                self._training, self._calls = function, {}
                self._inferred(function)
        if self._training is function:
            self._ended(result)
        return result

    def _found_gradient(self) -> None:
        """Drop the function of inference at the first gradient."""
        if not self._has_gradient:
            self._has_gradient, self._calls = True, {}
            if self._training is not None:
                self._training = None
                self._restart()

    def gradient(self, run: Callable[[], Any], traced: Callable[[Any], bool]) -> Any:
        """Run a gradient computation; ``traced`` returns whether its result is a tracer."""
        self._found_gradient()
        if self._running is not None:
            if self._training is None and self._running is not _EAGER:
                self._training = self._running
            return run()
        self._running = _EAGER
        try:
            result = run()
        finally:
            self._running = None
        if self._training in (None, _EAGER) and not traced(result):
            self._training = _EAGER
            self._ended(result)
            # The update follows outside of any function, so the next step begins here.
            self._begins()
        return result


def count_tensorflow_steps(tensorflow: ModuleType, settings: Settings, report: Report) -> None:
    """Count the steps of every ``tf.function`` and of eager gradients."""
    tf: Any = tensorflow
    recorder = tensorflow_profiler(tf, settings, report)
    window = Window("tensorflow", settings, report, recorder, TensorflowClock(tf))
    steps = CompiledSteps(
        lambda _: window.step_ended(), inferred=_remark(window), restart=window.restart
    )
    function = type(tf.function(lambda: None))
    call, gradient = function.__call__, tf.GradientTape.gradient

    @functools.wraps(call)
    def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return steps.call(self, lambda: call(self, *arguments, **keywords))

    @functools.wraps(gradient)
    def differentiated(self: Any, *arguments: Any, **keywords: Any) -> Any:
        inside = tf.inside_function()
        return steps.gradient(lambda: gradient(self, *arguments, **keywords), lambda _: inside)

    function.__call__ = called
    tf.GradientTape.gradient = differentiated


def _remark(window: Window) -> Callable[[object], None]:
    """Return what gives ``window`` the remark that the steps are calls of a function."""

    def inferred(function: object) -> None:
        name = getattr(function, "__name__", None) or getattr(function, "name", None)
        window.remark = f"no gradient: the steps are the calls of {name or 'a compiled function'}"

    return inferred


class TensorflowClock(Clock):
    """The host clock; the host runs ahead of a GPU, so only the sum is exact there."""

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def synchronized(self) -> bool:
        """Return whether functions end with their work, as on a CPU."""
        return all(device.device_type == "CPU" for device in self._tf.config.list_logical_devices())

    def wait(self) -> None:
        """Wait for all devices."""
        # Available since TensorFlow 2.12. On a CPU functions are synchronous.
        wait = getattr(self._tf.test.experimental, "sync_devices", None)
        if wait is not None:
            wait()


def tensorflow_profiler(tf: Any, settings: Settings, report: Report) -> Recorder:
    """Return the profiler of a TensorFlow process: TensorFlow's own, NVTX ranges, or none."""
    if settings.profiler == "nsys":
        return NvtxWindow(settings, report)
    if settings.profiler not in ("auto", "tensorflow"):
        return Recorder()

    profiler = tf.profiler.experimental

    def mark(number: int) -> Any:
        return profiler.Trace("train", step_num=number)

    def describe(folder: Path) -> None:
        TRAINED.describe(folder, report)

    return XplaneRecorder(
        settings,
        profiler.start,
        profiler.stop,
        mark,
        LineRanges(profiler.Trace, settings, report),
        describe=describe,
    )


def count_jax_steps(jax: ModuleType, settings: Settings, report: Report) -> None:
    """Count the steps of every function that ``jax`` compiles."""
    clock = JaxClock(jax)
    recorder = jax_profiler(jax, settings, report)
    window = Window(
        *("jax", settings, report, recorder, clock, lambda: jax_rank(jax)), until_next=True
    )

    def ended(result: Any) -> None:
        clock.result = result
        window.step_ended()
        guarded(clock.keep_smallest, report)

    steps = CompiledSteps(ended, window.step_begins, _remark(window), window.restart)

    class Compiled:
        """A compiled function that counts its calls."""

        def __init__(self, function: Any) -> None:
            self._function = function
            functools.update_wrapper(self, function)

        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            return steps.call(self, lambda: self._function(*arguments, **keywords))

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return self if instance is None else MethodType(self, instance)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._function, name)

    def compiling(original: Any) -> Any:
        @functools.wraps(original)
        def compile_(*arguments: Any, **keywords: Any) -> Any:
            jitted = original(*arguments, **keywords)
            if hasattr(jitted, "lower"):
                return Compiled(jitted)
            # Called without a function, jit returns a decorator.
            return lambda function: Compiled(jitted(function))

        return compile_

    def differentiating(original: Any) -> Any:
        @functools.wraps(original)
        def differentiate(*arguments: Any, **keywords: Any) -> Any:
            transformed = original(*arguments, **keywords)

            @functools.wraps(transformed)
            def gradient(*values: Any, **named: Any) -> Any:
                return steps.gradient(lambda: transformed(*values, **named), traced)

            return gradient

        return differentiate

    def traced(result: Any) -> bool:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(result))

    jax_: Any = jax
    for name in ("jit", "pmap"):
        setattr(jax_, name, compiling(getattr(jax_, name)))
    for name in ("grad", "value_and_grad"):
        setattr(jax_, name, differentiating(getattr(jax_, name)))


class JaxClock(Clock):
    """The host clock; JAX dispatches asynchronously on every device, also on a CPU.

    The times are exact if the script waits for each step, otherwise only their sum.
    """

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self.result: Any = None

    def synchronized(self) -> bool:
        """Return whether results of the last step are known and computed."""
        arrays = self._arrays()
        return bool(arrays) and all(array.is_ready() for array in arrays)

    def wait(self) -> None:
        """Wait for the results of the last step."""
        self._jax.block_until_ready(self._arrays())

    def keep_smallest(self) -> None:
        """Keep one of the results: all would need memory until the next step."""
        self.result = min(self._arrays(), key=lambda array: array.nbytes, default=None)

    def _arrays(self) -> list[Any]:
        """Return the results that the script has not donated to another function."""
        leaves = self._jax.tree_util.tree_leaves(self.result)
        arrays = [leaf for leaf in leaves if hasattr(leaf, "is_ready")]
        return [array for array in arrays if not array.is_deleted()]


def jax_profiler(jax: Any, settings: Settings, report: Report) -> Recorder:
    """Return the profiler of a JAX process: JAX's own, NVTX ranges, or none."""
    if settings.profiler == "nsys":
        return NvtxWindow(settings, report)
    if settings.profiler not in ("auto", "jax"):
        return Recorder()

    def start(folder: str) -> None:
        options = getattr(jax.profiler, "ProfileOptions", None)
        if options is None:
            jax.profiler.start_trace(folder)
            return
        chosen = options()
        # An event for each Python call would fill the trace with JAX's dispatch.
        chosen.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=chosen)

    def mark(number: int) -> Any:
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    lines = LineRanges(jax.profiler.TraceAnnotation, settings, report)
    stop = jax.profiler.stop_trace
    return XplaneRecorder(settings, start, stop, mark, lines, lambda: jax_rank(jax))


def jax_rank(jax: Any) -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, None for a single process."""
    size = jax.process_count()
    return (jax.process_index(), size) if size > 1 else None


class XplaneRecorder(Recorder):
    """TensorFlow's or JAX's profiler, which write the same files.

    ``start`` gets the output folder, ``mark`` returns a step's context manager, ``lines`` are the
    ranges of the program's lines, and ``describe`` writes the model's layers to the given folder.
    """

    def __init__(
        self,
        settings: Settings,
        start: Callable[[str], None],
        stop: Callable[[], None],
        mark: Callable[[int], Any],
        lines: LineRanges,
        rank: Callable[[], tuple[int, int] | None] = lambda: None,
        describe: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self._folder = Path(settings.folder)
        self._start, self._stop, self._mark, self._rank = start, stop, mark, rank
        self._lines, self._describe = lines, describe
        self._log = self._folder / f"log-{os.getpid()}"
        self._step: Any = None
        self._abandoned: Any = None

    def begin(self, number: int) -> None:
        """Begin the window."""
        # A window before that held no steps may have left its files.
        shutil.rmtree(self._log, ignore_errors=True)
        self._start(str(self._log))
        self._enter(number)
        self._lines.begin()

    def step(self, number: int) -> None:
        """Mark the step."""

        def mark() -> None:
            self._leave()
            self._enter(number)

        self._lines.between(mark)

    def abandon_step(self) -> None:
        """Leave the step's annotation open: the profilers record what has ended."""
        # It would end with its last reference.
        self._abandoned = self._step

    def stop(self) -> None:
        """Stop the profiler if it is running."""
        self._lines.end()
        if self._step is not None:
            if self._abandoned is None:
                self._leave()
            self._step = None
            self._stop()

    def write(self) -> str | None:
        """Move the trace out of the profiler's folders, and describe the model."""
        logs = sorted(self._log.rglob("*.xplane.pb"))
        if not logs:
            return None
        rank = self._rank()
        name = "trace.xplane.pb" if rank is None else f"trace.rank{rank[0]}.xplane.pb"
        logs[0].replace(self._folder / name)
        shutil.rmtree(self._log, ignore_errors=True)
        self._describe(self._folder)
        self._lines.keep_files()
        return name

    def _enter(self, number: int) -> None:
        self._step = self._mark(number)
        self._step.__enter__()

    def _leave(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)
