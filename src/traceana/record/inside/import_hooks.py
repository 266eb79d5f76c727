"""Import hooks that start step counting when a framework has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .process_report import Report, Settings, guarded

FRAMEWORKS = ("torch", "tensorflow", "jax")


def install(settings: Settings, report: Report) -> None:
    """Hook the imports of the frameworks and count the steps of those selected by ``settings``."""

    def prepare(framework: str) -> Callback:
        def imported(module: ModuleType) -> None:
            # Keras, which knows what computes, also imports others.
            if not report.has_steps and "keras" not in sys.modules:
                report.add(framework=framework)
            wanted = settings.profiler in ("auto", "nsys", "none", framework)
            if settings.mark and wanted:
                guarded(lambda: _steps_of(framework)(module, settings, report), report)

        return imported

    def keras_imported(module: ModuleType) -> None:
        from .keras_model import TRAINED

        if settings.mark:
            guarded(lambda: TRAINED.watch(module, report), report)
        guarded(lambda: report.add(framework=module.backend.backend()), report)

    frameworks = {framework: prepare(framework) for framework in FRAMEWORKS}
    watch({**frameworks, "keras": keras_imported})


def _steps_of(framework: str) -> Callable[[ModuleType, Settings, Report], None]:
    if framework == "torch":
        from .torch_steps import count_steps

        return count_steps
    from .compiled_steps import count_jax_steps, count_tensorflow_steps

    return count_tensorflow_steps if framework == "tensorflow" else count_jax_steps


Callback = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """Finds the watched modules and wraps their loaders."""

    def __init__(self, callbacks: dict[str, Callback]) -> None:
        self._callbacks = callbacks
        self._finding = False

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a watched module, None for other modules."""
        if self._finding or fullname not in self._callbacks:
            return None
        self._finding = True
        try:
            spec = find_spec(fullname)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Watched(spec.loader, lambda module: self._imported(fullname, module))
        return spec

    def _imported(self, name: str, module: ModuleType) -> None:
        # Finding a module does not import it, so the callback runs after its execution.
        callback = self._callbacks.pop(name, None)
        if callback is not None:
            callback(module)


class _Watched(Loader):
    """A loader that calls ``callback`` after the module is executed."""

    def __init__(self, loader: Any, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module with its own loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, then run the callback."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback(module)


def watch(callbacks: dict[str, Callback]) -> None:
    """Call each of ``callbacks`` with its module when that has been imported."""
    sys.meta_path.insert(0, ImportWatch(callbacks))
