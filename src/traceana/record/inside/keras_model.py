"""The Keras model that a script trains, and its inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from .process_report import Report, guarded

_BATCH = 32
"""The default batch of ``fit`` on arrays."""
_SAME_BATCHES = frozenset(
    f"{name}Dataset"
    for name in ("Prefetch", "Repeat", "Take", "Skip", "Shuffle", "Options", "Cache")
)
"""Datasets of ``tf.data`` with the elements of their input."""

_Input = tuple[tuple[Any, ...], str]
"""A tensor's shape, with None for an unknown size, and its data type."""


class KerasModel:
    """The largest Keras model that no other model calls."""

    def __init__(self) -> None:
        self._called: dict[int, tuple[Any, list[_Input] | None]] = {}
        self._inner: set[int] = set()
        self._batch: int | None = None
        self._depth = 0

    def watch(self, keras: Any, report: Report) -> Callable[[], None]:
        """Hook the calls of models and of ``fit``; return a function that removes the hooks."""
        model, fit = keras.Model, keras.Model.fit
        signature = inspect.signature(fit)

        def called(this: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._depth == 0:
                guarded(lambda: self._add_call(this, arguments), report)
            else:
                self._inner.add(id(this))
            self._depth += 1
            try:
                # Layer.__call__ may be replaced later, so it is looked up at each call.
                layer: Any = super(model, this)
                return layer.__call__(*arguments, **keywords)
            finally:
                self._depth -= 1

        def fitted(*arguments: Any, **keywords: Any) -> Any:
            def read_batch() -> None:
                arguments_of_fit = signature.bind(*arguments, **keywords).arguments
                self._batch = batch_of_fit(
                    arguments_of_fit.get("x"), arguments_of_fit.get("batch_size")
                )
                if self._batch is not None:
                    together = getattr(arguments_of_fit["self"], "steps_per_execution", 1)
                    report.add(images_per_step=self._batch * together)

            guarded(read_batch, report)
            return fit(*arguments, **keywords)

        original_call = vars(model).get("__call__")
        model.__call__, model.fit = called, functools.wraps(fit)(fitted)

        def restore() -> None:
            model.fit = fit
            if original_call is None:
                del model.__call__
            else:
                model.__call__ = original_call
            self._called, self._inner, self._batch = {}, set(), None

        return restore

    def _add_call(self, model: Any, arguments: tuple[Any, ...]) -> None:
        first = arguments[0] if arguments else None
        tensors = list(first) if isinstance(first, list | tuple) else list(arguments)
        described = [_input(tensor) for tensor in tensors if tensor is not None]
        inputs: list[_Input] | None = [tensor for tensor in described if tensor is not None]
        if not inputs or len(inputs) != len(described):
            inputs = None
        # A call with all sizes known is preferred over a symbolic one.
        has_sizes = inputs is not None and all(None not in shape for shape, _ in inputs)
        if self._called.get(id(model), (model, None))[1] is None or has_sizes:
            self._called[id(model)] = model, inputs

    def describe(self, folder: Path, report: Report) -> None:
        """Write the model's layers, if traceana can be imported."""
        if not self._called:
            report.note("no layers.json: no Keras model was called")
            return
        try:
            from traceana.model.live_model import describe  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            report.note("no layers.json: the script's Python has no traceana")
            return
        # A model may be called alone too, as where a functional model is made of it.
        outermost = [call for key, call in self._called.items() if key not in self._inner]
        model, inputs = max(
            outermost or self._called.values(),
            key=lambda call: sum(prod(variable.shape) for variable in call[0].weights),
        )
        if inputs is None:
            report.note("no layers.json: the model has inputs other than tensors")
            return
        shapes = [
            (self._batch if shape[0] is None else shape[0], *shape[1:]) for shape, _ in inputs
        ]
        if any(None in shape for shape in shapes):
            report.note("no layers.json: the input shapes are unknown")
            return
        try:
            manifest = describe(model, shapes, dtype=[dtype for _, dtype in inputs])
            manifest.write(folder / "layers.json")
            described = {id(variable) for variable in model.weights}
            called = [
                variable for called, _ in self._called.values() for variable in called.weights
            ]
            if any(id(variable) not in described for variable in called):
                report.note(
                    f"only the layers of {model.name} are described: other models were called"
                )
        except Exception as error:  # noqa: BLE001  # whatever a model raises
            report.note(f"no layers.json: {type(error).__name__}: {str(error)[:200]}")


TRAINED = KerasModel()
"""The model of this process."""


def _input(value: Any) -> _Input | None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None or len(shape) == 0:
        return None
    return tuple(shape), str(getattr(dtype, "name", dtype))


def batch_of_fit(x: Any, batch_size: int | None) -> int | None:
    """Return the examples of ``x`` per step of ``fit``, None if uncertain."""
    while isinstance(x, list | tuple | dict) and x:
        x = next(iter(x.values() if isinstance(x, dict) else x))
    if hasattr(x, "element_spec"):
        return _batch_of_dataset(x)
    if hasattr(x, "shape"):
        return min(batch_size or _BATCH, int(x.shape[0]))
    # Only DataLoader defines the meaning of its batch_size.
    is_loader = any(
        (class_.__module__.partition(".")[0], class_.__name__) == ("torch", "DataLoader")
        for class_ in type(x).__mro__
    )
    batch = getattr(x, "batch_size", None) if is_loader else None
    return batch if isinstance(batch, int) else None


def _batch_of_dataset(dataset: Any) -> int | None:
    spec = dataset.element_spec
    while isinstance(spec, list | tuple | dict) and spec:
        spec = next(iter(spec.values() if isinstance(spec, dict) else spec))
    if getattr(spec, "shape", None) and spec.shape[0] is not None:
        return int(spec.shape[0])
    # The element spec has no size if the last batch may be smaller; the BatchDataset has it.
    while type(dataset).__name__.lstrip("_") in _SAME_BATCHES:
        dataset = dataset._input_dataset
    size = getattr(dataset, "_batch_size", None)
    return None if size is None else int(size)
