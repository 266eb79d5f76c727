"""TensorFlow: a step is a call of the ``tf.function`` that takes a gradient, also in ``fit``."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from .compiled_steps import CompiledSteps
from .keras_model import TRAINED
from .nvtx_window import NvtxWindow
from .report import Report
from .settings import Settings
from .window import Clock, Recorder, Window
from .xplane_recorder import XplaneRecorder


def count_steps(tensorflow: ModuleType, settings: Settings, report: Report) -> None:
    """Have the steps of every ``tf.function`` and of eager gradients counted."""
    tf: Any = tensorflow
    window = Window(settings, report, _recorder(tf, settings, report), DeviceClock(tf))
    steps = CompiledSteps(lambda _: window.step_ended())
    function = type(tf.function(lambda: None))
    call, gradient = function.__call__, tf.GradientTape.gradient

    @functools.wraps(call)
    def called(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return steps.call(self, lambda: call(self, *arguments, **keywords))

    @functools.wraps(gradient)
    def taken(self: Any, *arguments: Any, **keywords: Any) -> Any:
        inside = tf.inside_function()
        return steps.gradient(lambda: gradient(self, *arguments, **keywords), lambda _: inside)

    function.__call__ = called
    tf.GradientTape.gradient = taken


class DeviceClock(Clock):
    """The host's clock: a GPU may be behind it, so only the sum is right."""

    synchronized = False

    def __init__(self, tf: Any) -> None:
        self._tf = tf

    def wait(self) -> None:
        """Wait until all devices are done."""
        # Since TensorFlow 2.12; on a CPU a function returns when it is done.
        wait = getattr(self._tf.test.experimental, "sync_devices", None)
        if wait is not None:
            wait()


def _recorder(tf: Any, settings: Settings, report: Report) -> Recorder:
    if settings.profiler == "nsys":
        return NvtxWindow(settings, report)
    if settings.profiler not in ("auto", "tensorflow"):
        return Recorder()

    profiler = tf.profiler.experimental

    def mark(number: int) -> Any:
        return profiler.Trace("train", step_num=number)

    def describe(folder: Path) -> None:
        TRAINED.describe(folder, report)

    return XplaneRecorder(settings, profiler.start, profiler.stop, mark, describe=describe)
