"""Which model a script trains, on what inputs, and ranges around its layers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .report import Report

Range = Callable[[str], Any]
"""What makes a context manager of a text."""


class Model:
    """The module that holds the parameters of an optimizer, found when that has stepped."""

    def __init__(self, torch: Any, report: Report) -> None:
        self._torch, self._report = torch, report
        self._root: Any = None
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._images = 0
        self._handles: list[Any] = []
        self._watch: Any = None
        self.rank: int | None = None

    def look_for(self, optimizer: Any) -> None:
        """Find the outermost module of which ``optimizer`` has parameters, and watch its calls."""
        from .torch_steps import rank_of

        place = rank_of(self._torch)
        self.rank = None if place is None else place[0]
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        found: dict[int, Any] = {}
        for one in gc.get_objects():
            # isinstance would ask objects that pretend to be of another class.
            if issubclass(type(one), self._torch.nn.Module) and any(
                id(p) in own for p in one.parameters()
            ):
                found[id(one)] = one
        inner = {id(child) for one in found.values() for child in one.modules() if child is not one}
        outermost = [one for key, one in found.items() if key not in inner]
        if not outermost:
            self._report.note("no module holds the optimizer's parameters: there is no model")
            return
        self._root = max(outermost, key=lambda one: sum(p.numel() for p in one.parameters()))
        # What compiles a module whole runs the hooks of the wrapper, and none within.
        if not self._compiled() or hasattr(self._root, "_orig_mod"):
            self._watch = self._root.register_forward_pre_hook(self._called, with_kwargs=True)

    def _compiled(self) -> bool:
        jit = self._torch.jit.ScriptModule
        return any(
            isinstance(one, jit)
            or hasattr(one, "_orig_mod")
            or getattr(one, "_compiled_call_impl", None) is not None
            for one in self._root.modules()
        )

    def _called(self, _module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if not self._torch.is_grad_enabled():
            return
        self._inputs = arguments, keywords
        sizes = [one.shape for one in (*arguments, *keywords.values()) if self._is_tensor(one)]
        self._images += sizes[0][0] if sizes and sizes[0] else 0

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def step_ended(self) -> None:
        """Tell how many images the step took that the model was watched in."""
        if self._watch is not None and self._inputs is not None:
            self._watch.remove()
            self._watch = None
            self._inputs = _shapes(*self._inputs, self._is_tensor)
            self._report.tell(images_per_step=self._images)

    def mark(self, range_: Range) -> None:
        """Have ranges ``forward: PATH`` drawn around the layers."""
        if self._root is None:
            return
        if self._compiled():
            self._report.note("the model is compiled: there are no ranges around its layers")
            return
        ranges = threading.local()

        def opener(text: str) -> Callable[..., None]:
            def open_range(*_: Any) -> None:
                made = range_(text)
                made.__enter__()
                ranges.__dict__.setdefault("open", []).append(made)

            return open_range

        def close_range(*_: Any) -> None:
            if ranges.__dict__.get("open"):
                ranges.open.pop().__exit__(None, None, None)

        for path, module in _bare(self._root).named_modules():
            if path and not any(module.children()):
                self._handles.append(module.register_forward_pre_hook(opener(f"forward: {path}")))
                after = module.register_forward_hook(close_range, always_call=True)
                self._handles.append(after)

    def unmark(self) -> None:
        """Draw no more ranges."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def operators_as_ranges(self) -> Any:
        """Begin to draw an NVTX range around each operator; None without a GPU."""
        if not self._torch.cuda.is_initialized():
            return None
        drawn = self._torch.autograd.profiler.emit_nvtx(record_shapes=True)
        drawn.__enter__()
        return drawn

    def describe(self, folder: Path) -> None:
        """Write the model's layers, once, where traceana is there to describe them."""
        if self._root is None or not self._inputs or self.rank:
            return
        try:
            from traceana.describe import describe  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            self._report.note("no layers.json: the script's Python has no traceana")
            return
        arguments, keywords = self._inputs
        given = [*arguments, *keywords.values()]
        if None in given or (arguments and keywords):
            self._report.note("no layers.json: the model takes more than tensors")
            return
        shapes: Any = [shape for shape, _ in given]
        if keywords:
            shapes = dict(zip(keywords, shapes))  # noqa: B905
        try:
            made = describe(_bare(self._root), shapes, dtype=[dtype for _, dtype in given])
            made.write(folder / "layers.json")
        except Exception as error:  # noqa: BLE001  # whatever a model raises
            self._report.note(f"no layers.json: {type(error).__name__}: {str(error)[:200]}")


def _bare(root: Any) -> Any:
    """The model within what distributes or compiles it."""
    while (inner := getattr(root, "_orig_mod", None) or _distributed(root)) is not None:
        root = inner
    return root


def _distributed(root: Any) -> Any:
    wrappers = ("DistributedDataParallel", "DataParallel")
    return getattr(root, "module", None) if type(root).__name__ in wrappers else None


def _shapes(
    arguments: tuple[Any, ...], keywords: dict[str, Any], is_tensor: Callable[[Any], bool]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def described(value: Any) -> Any:
        return (tuple(value.shape), str(value.dtype)) if is_tensor(value) else None

    shown = {name: described(value) for name, value in keywords.items()}
    return tuple(map(described, arguments)), shown
