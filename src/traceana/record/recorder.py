"""``traceana.recorder``: recording of steps of the running process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from traceana.errors import RecordingError, TraceanaError, UsageError
from traceana.record.child_process import Exit
from traceana.record.inside.process_report import Report, Settings, guarded
from traceana.record.inside.step_window import Clock, Window
from traceana.record.inside.torch_model import Model, rank_of
from traceana.record.outcome import Outcome, read_reports
from traceana.record.partial_folder import PartialFolder, check_free
from traceana.record.programs import STEPS, WARM_UP, Script
from traceana.record.recording import Recording, Request, check_profiler, complete
from traceana.runs.run_files import LAYERS_FILE, Profiler
from traceana.runs.run_folders import RecordedRun

if TYPE_CHECKING:
    import os

    from traceana.runs.layer_manifest import Manifest

FrameworkProfiler = Literal["torch", "tensorflow", "jax"]

_FRAMEWORKS: Final[tuple[FrameworkProfiler, ...]] = ("torch", "tensorflow", "jax")


def recorder(
    folder: str | os.PathLike[str],
    *,
    warm_up: int = WARM_UP,
    steps: int = STEPS,
    profiler: FrameworkProfiler | Literal["auto"] = "auto",
    model: Any = None,
    manifest: Manifest | None = None,
    force: bool = False,
) -> StepRecorder:
    """Return a context manager that records ``steps`` steps after ``warm_up`` into ``folder``.

    >>> with traceana.recorder("runs/mine") as recorder:    # doctest: +SKIP
    ...     for batch in loader:
    ...         train_step(batch)
    ...         recorder.step()

    The folder is that of ``traceana record``: the trace, the model's layers, the step times and the
    environment. ``profiler`` is by default that of the imported framework. The layers are those of
    ``model``, a PyTorch module, by default of the module that the optimizer trains or of the Keras
    model; or of ``manifest``. ``force`` replaces an existing run.

    In a distributed run rank 0 records. The end of the block raises the errors of ``traceana
    record``: ``RecordingError`` if the block took no more than ``warm_up`` steps or another
    profiler is active, ``CannotWriteError``.
    """
    if warm_up < 1 or steps < 1:
        raise UsageError("warm_up and steps must be 1 or more")
    return StepRecorder(Path(folder), warm_up, steps, profiler, model, manifest, force)


class StepRecorder:
    """Records the steps of a ``with`` block; made by :func:`recorder`."""

    def __init__(
        self,
        folder: Path,
        warm_up: int,
        steps: int,
        profiler: FrameworkProfiler | Literal["auto"],
        model: Any,
        manifest: Manifest | None,
        force: bool,
    ) -> None:
        """Create a recorder with the arguments of :func:`recorder`."""
        self._folder, self._force = folder, force
        self._warm_up, self._steps = warm_up, steps
        self._profiler = profiler
        self._given, self._manifest = model, manifest
        self._recording: Recording | None = None
        self._window: Window | None = None
        self._clock: Any = None
        self._model: Model | None = None
        self._optimizer: Any = None
        self._restore: list[Callable[[], None]] = []
        self._taken = 0
        self.run: RecordedRun | None = None
        """The recorded run, after the block."""

    def __enter__(self) -> StepRecorder:
        """Create the folder, in rank 0 only."""
        rank = None
        if _imported("torch"):
            rank = rank_of(sys.modules["torch"])
        elif _imported("jax"):
            from traceana.record.inside.compiled_steps import jax_rank

            rank = jax_rank(sys.modules["jax"])
        if rank is not None and rank[0] != 0:
            return self
        check_profiler(None)
        check_free(self._folder, force=self._force)
        script = Script((sys.executable, *sys.argv), None, self._warm_up, self._steps)
        self._partial = PartialFolder(self._folder)
        self._recording = Recording(script, self._partial, Request(baseline=False))
        self._scratch = self._recording.scratch(recorded=True)
        settings = Settings(
            *(str(self._scratch), "auto", self._warm_up, self._steps), lines=True, source=True
        )
        self._settings, self._report = settings, Report(settings)
        self._watch()
        return self

    def step(self, result: Any = None) -> None:
        """End a training step.

        ``result`` are JAX arrays of the step, such as the loss. JAX dispatches asynchronously; the
        window starts and ends when these arrays are computed.
        """
        if self._recording is None:
            return
        self._taken += 1
        if self._window is None:
            self._window = self._start()
        elif self._model is not None:
            self._model.step_ended()
        if hasattr(self._clock, "result"):
            self._clock.result = result
        self._window.step_ended()
        if hasattr(self._clock, "result"):
            self._clock.result = None

    def keras_callback(self) -> Any:
        """Return a ``keras.callbacks.Callback`` that ends a step after each training batch."""
        import keras

        step = self.step

        class StepCallback(keras.callbacks.Callback):  # type: ignore[misc]  # not checked: an extra
            def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
                step(logs)

        return StepCallback()

    def lightning_callback(self) -> Any:
        """Return a callback for loops that call ``on_train_batch_end`` after each training batch.

        It is a ``Callback`` of Lightning if Lightning is imported.
        """
        names = ("lightning.pytorch", "pytorch_lightning")
        base: Any = next((sys.modules[name].Callback for name in names if _imported(name)), object)
        step = self.step

        class StepCallback(base):  # type: ignore[misc]  # the base is known at run time
            def on_train_batch_end(self, *_arguments: Any, **_keywords: Any) -> None:
                step()

        return StepCallback()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Write the run's folder; an error of the block becomes its reason and is re-raised."""
        if self._recording is None:
            return
        if self._window is not None:
            self._window.close()
            guarded(self._describe, self._report)
        for restore in self._restore:
            restore()
        self._report.close(error)
        try:
            self.run = complete(self._partial, partial(self._write, self._recording, error))
        except (TraceanaError, KeyboardInterrupt) as failed:
            if error is None:
                raise
            error.add_note(f"traceana: {failed}")

    def _watch(self) -> None:
        """Hook the calls that lead to the model: Keras' calls, PyTorch's first optimizer."""
        # torch.optim deletes the name of its module optimizer.
        keras, hooks = sys.modules.get("keras"), sys.modules.get("torch.optim.optimizer")
        if keras is not None:
            from traceana.record.inside.keras_model import TRAINED

            self._restore.append(TRAINED.watch(keras, self._report))
        if hooks is not None and self._given is None:

            def stepped(optimizer: Any, *_: Any) -> None:
                if self._optimizer is None:
                    self._optimizer = optimizer
                elif optimizer is not self._optimizer and self._model is not None:
                    self._model.other_optimizer(optimizer)

            self._restore.append(hooks.register_optimizer_step_post_hook(stepped).remove)

    def _start(self) -> Window:
        """Return the window, with the profiler and the clock of the framework."""
        framework = self._framework()
        settings, report, module = self._settings, self._report, sys.modules[framework]
        if framework == "torch":
            from traceana.record.inside.torch_steps import CudaClock, torch_profiler

            self._model = Model(module, report)
            if self._given is not None:
                self._model.watch_given(self._given)
            elif self._optimizer is not None:
                self._model.find_module_of(self._optimizer)
            self._clock = CudaClock(module) if module.cuda.is_initialized() else Clock()
            profiler = torch_profiler(module, settings, report, self._model)
        elif framework == "tensorflow":
            from traceana.record.inside.compiled_steps import TensorflowClock, tensorflow_profiler

            self._clock = TensorflowClock(module)
            profiler = tensorflow_profiler(module, settings, report)
        else:
            from traceana.record.inside.compiled_steps import JaxClock, jax_profiler

            self._clock = JaxClock(module)
            profiler = jax_profiler(module, settings, report)
        return Window(framework, settings, report, profiler, self._clock)

    def _framework(self) -> FrameworkProfiler:
        if self._profiler != "auto":
            return self._profiler
        if _imported("keras"):
            backend: str = sys.modules["keras"].backend.backend()
            return next((name for name in _FRAMEWORKS if name == backend), "tensorflow")
        imported = [name for name in _FRAMEWORKS if _imported(name)]
        if len(imported) == 1:
            return imported[0]
        if imported:
            raise RecordingError(
                f"{' and '.join(imported)} are imported: select one with profiler="
            )
        raise UsageError(
            "torch, tensorflow or jax is not imported: import the framework before the first step()"
        )

    def _write(self, recording: Recording, error: BaseException | None) -> Any:
        outcome = self._outcome()
        recording.raise_problems(outcome)
        interrupted = isinstance(error, KeyboardInterrupt)
        failed = error is not None and not interrupted
        return recording.written(
            Outcome(), outcome, Exit(int(failed), signal.SIGINT if interrupted else 0)
        )

    def _describe(self) -> None:
        """Write the layers of the manifest, or of a Keras model if there are none yet."""
        path = self._scratch / LAYERS_FILE
        if self._manifest is not None:
            self._manifest.write(path)
        elif not path.exists() and _imported("keras"):
            from traceana.record.inside.keras_model import TRAINED

            TRAINED.describe(self._scratch, self._report)

    def _outcome(self) -> Outcome:
        processes, damaged = read_reports(self._scratch)
        report = next((process for process in processes if process.framework is not None), None)
        times = None if report is None else report.times
        layers = self._scratch / LAYERS_FILE
        notes = dict.fromkeys((*damaged, *(() if report is None else report.notes)))
        taken = 0 if times is None else len(times.steps_ns)
        if 0 < taken < self._steps:
            notes[f"{taken} of {self._steps} steps recorded: the block ended"] = None
        why_nothing = (
            f"step() was called {self._taken} times, and the window starts after "
            f"warm_up={self._warm_up}"
        )
        if report is not None and report.problem is not None:
            why_nothing = report.problem.text
        return Outcome(
            times=times,
            traces=()
            if report is None or report.trace is None
            else (self._scratch / report.trace,),
            layers=layers if layers.is_file() else None,
            images_per_step=None if report is None else report.images_per_step,
            profiler=None if report is None else _PROFILERS[report.framework or ""],
            why_nothing=why_nothing,
            notes=tuple(notes),
            processes=processes,
        )


_PROFILERS: Final = {
    "torch": Profiler.TORCH,
    "tensorflow": Profiler.TENSORFLOW,
    "jax": Profiler.JAX,
}


def _imported(name: str) -> bool:
    """Return whether a module is imported: one that is hidden is there as None."""
    return sys.modules.get(name) is not None
