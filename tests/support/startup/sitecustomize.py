"""In every process of the tests: PyTorch imports its compiler only where something is compiled.

The first step of an optimizer imports ``torch._dynamo``, which takes as long as ``torch`` itself,
to have its methods left out of what is compiled. Here they are left out once it has been imported.
The profiler imports ``torch._inductor`` to read an option of it, as an attribute of ``torch``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Function = Callable[..., Any]


def _disable(original: Function) -> Function:
    """Return ``torch._compile._disable_dynamo`` for a process without ``torch._dynamo``."""

    def decorator(fn: Function | None = None, recursive: bool = True) -> Function:
        if fn is None:
            return functools.partial(decorator, recursive=recursive)
        return _chosen(fn, original(fn, recursive), fn)

    return decorator


def _use_grad(original: Function) -> Function:
    """Return the decorator of an optimizer's steps for a process without ``torch._dynamo``."""

    def decorator(fn: Function) -> Function:
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            import torch

            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return fn(self, *args, **kwargs)

        return _chosen(fn, original(fn), step)

    return decorator


class _Lazy(set[str]):
    """The submodules that ``torch`` imports when they are asked for as an attribute."""

    def __contains__(self, name: object) -> bool:
        """Whether it has ``name``: Inductor only beside Dynamo."""
        return super().__contains__(name) and (name != "_inductor" or _compiles())


def _compiles() -> bool:
    return "torch._dynamo" in sys.modules


def _chosen(fn: Function, compiling: Function, otherwise: Function) -> Function:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        called = compiling if _compiles() else otherwise
        return called(*args, **kwargs)

    return inner


_REPLACED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch": ("_lazy_modules", _Lazy),
    "torch._compile": ("_disable_dynamo", _disable),
    "torch.optim.optimizer": ("_use_grad_for_differentiable", _use_grad),
}


class _Finder(MetaPathFinder):
    """Finds the modules of ``_REPLACED``, which other finders may watch as well."""

    def __init__(self) -> None:
        """Begin with no search."""
        self._searching = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module of ``_REPLACED``."""
        if name not in _REPLACED or self._searching:
            return None
        self._searching = True
        try:
            spec = find_spec(name)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Replacing(spec.loader)
        return spec


class _Replacing(Loader):
    """Runs a module, then replaces its value."""

    def __init__(self, loader: Loader) -> None:
        """Take the loader that runs it."""
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave the creation to the import system."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then replace its value."""
        self._loader.exec_module(module)
        name, replaced = _REPLACED[module.__name__]
        module.__dict__[name] = replaced(module.__dict__[name])


# A worker of the tests has it already.
if not any(type(finder).__qualname__ == "_Finder" for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
