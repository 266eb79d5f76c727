"""JAX: a step is a call of the jitted function that takes a gradient; jax.profiler records it."""

from __future__ import annotations

import functools
from types import MethodType, ModuleType
from typing import Any

from .compiled_steps import CompiledSteps
from .nvtx_window import NvtxWindow
from .report import Report
from .settings import Settings
from .window import Clock, Recorder, Window
from .xplane_recorder import XplaneRecorder


def count_steps(jax: ModuleType, settings: Settings, report: Report) -> None:
    """Have the steps of everything that ``jax`` compiles counted."""
    clock = ResultClock(jax)
    recorder = _recorder(jax, settings, report)
    window = Window(settings, report, recorder, clock, lambda: _rank(jax))

    def ended(result: Any) -> None:
        clock.result = result
        window.step_ended()
        clock.result = None

    steps = CompiledSteps(ended)

    class Compiled:
        """A compiled function that tells of its calls."""

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
            made = original(*arguments, **keywords)
            if hasattr(made, "lower"):
                return Compiled(made)
            # Without a function it gives a decorator.
            return lambda function: Compiled(made(function))

        return compile_

    def differentiating(original: Any) -> Any:
        @functools.wraps(original)
        def differentiate(*arguments: Any, **keywords: Any) -> Any:
            made = original(*arguments, **keywords)

            @functools.wraps(made)
            def gradient(*values: Any, **named: Any) -> Any:
                return steps.gradient(lambda: made(*values, **named), traced)

            return gradient

        return differentiate

    def traced(result: Any) -> bool:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(result))

    jax_: Any = jax
    for name in ("jit", "pmap"):
        setattr(jax_, name, compiling(getattr(jax_, name)))
    for name in ("grad", "value_and_grad"):
        setattr(jax_, name, differentiating(getattr(jax_, name)))


class ResultClock(Clock):
    """The host's clock: JAX returns before its results are there, so only the sum is right."""

    synchronized = False

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self.result: Any = None

    def wait(self) -> None:
        """Wait for the results of the step that was called last."""
        self._jax.block_until_ready(self.result)


def _recorder(jax: Any, settings: Settings, report: Report) -> Recorder:
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
        # An event for each Python call: most of a trace would be JAX's own dispatch.
        chosen.python_tracer_level = 0
        jax.profiler.start_trace(folder, profiler_options=chosen)

    def mark(number: int) -> Any:
        return jax.profiler.StepTraceAnnotation("train", step_num=number)

    return XplaneRecorder(settings, start, jax.profiler.stop_trace, mark, lambda: _rank(jax))


def _rank(jax: Any) -> tuple[int, int] | None:
    size = jax.process_count()
    return (jax.process_index(), size) if size > 1 else None
