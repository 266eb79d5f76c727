"""Calls back when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """Finds the watched modules as everybody does, and wraps their loaders."""

    def __init__(self, callbacks: dict[str, Callback]) -> None:
        self._callbacks = callbacks
        self._finding = False

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a watched module; None for any other."""
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
        # Not when it is found: many ask whether a module is there and import it later.
        callback = self._callbacks.pop(name, None)
        if callback is not None:
            callback(module)


class _Watched(Loader):
    """A loader that calls back once the module is there."""

    def __init__(self, loader: Any, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create it as its own loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute it as its own loader does, then call back."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._callback(module)


def watch(callbacks: dict[str, Callback]) -> None:
    """Call back with each module of ``callbacks`` when it has been imported."""
    sys.meta_path.insert(0, ImportWatch(callbacks))
