"""Which model a script trains, on what inputs, and ranges around its layers."""

from __future__ import annotations

import functools
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
        self._batch = _Batch(torch)
        self._handles: list[Any] = []
        self._watch: Any = None
        self.rank: int | None = None
        self._world = 1

    def look_for(self, optimizer: Any) -> None:
        """Find the outermost module of which ``optimizer`` has parameters, and watch its calls."""
        from .torch_steps import rank_of

        place = rank_of(self._torch)
        self.rank, self._world = (None, 1) if place is None else place
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
            self._batch.watch(self._root)

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
        shapes = [one.shape for one in (*arguments, *keywords.values()) if self._is_tensor(one)]
        self._batch.called(shapes[0] if shapes else ())

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def step_ended(self) -> None:
        """Report the batch of the step that the model was watched in, where it is certain."""
        if self._watch is not None and self._inputs is not None:
            self._watch.remove()
            self._watch = None
            self._inputs = _shapes(*self._inputs, self._is_tensor)
            batch = self._batch.of_step()
            if batch is not None and self._splits_the_batch():
                self._report.tell(images_per_step=batch)

    def _splits_the_batch(self) -> bool:
        """Whether the ranks train on different examples, all of them; also of a single process."""
        if self.rank is None:
            return True
        group = getattr(self._root, "process_group", None)
        wraps = type(self._root).__name__ == "DistributedDataParallel"
        return wraps and group is not None and group.size() == self._world

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
            from traceana import describe  # type: ignore[import-not-found,unused-ignore]
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


class _Batch:
    """The examples of a step, where they are certain.

    The leading size of the model's first tensor is the batch if it is the ``batch_size`` of a
    ``DataLoader`` that was iterated; or, without any, if the first convolution or batch
    normalization gets as many examples, whose documented input leads with them. Of a model that is
    called more than once in a step it is not known whether the examples are others each time.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._loaded: set[int] = set()
        self._handles: list[Any] = []
        self._calls: list[int | None] = []
        self._confirmed: bool | None = None
        loader = torch.utils.data.DataLoader
        iterate = loader.__iter__

        @functools.wraps(iterate)
        def iterated(this: Any) -> Any:
            if isinstance(this.batch_size, int):
                self._loaded.add(this.batch_size)
            return iterate(this)

        loader.__iter__ = iterated

    def watch(self, root: Any) -> None:
        """Watch what the layers get that lead with the batch."""
        modules = self._torch.nn.modules
        kinds = modules.conv._ConvNd, modules.batchnorm._BatchNorm
        for one in root.modules():
            if isinstance(one, kinds):
                self._handles.append(one.register_forward_pre_hook(self._layer_called))

    def called(self, shape: Any) -> None:
        """Note a call of the model, whose first tensor has this ``shape``."""
        self._calls.append(int(shape[0]) if len(shape) else None)

    def _layer_called(self, layer: Any, arguments: tuple[Any, ...]) -> None:
        if self._confirmed is not None or not self._calls or not arguments:
            return
        shape = arguments[0].shape
        # An input of a convolution without a batch has one size less.
        spatial = getattr(layer, "kernel_size", None)
        batched = len(shape) > 1 if spatial is None else len(shape) == len(spatial) + 2
        self._confirmed = batched and int(shape[0]) == self._calls[0]

    def of_step(self) -> int | None:
        """Return the examples of the step, and watch no longer."""
        for handle in self._handles:
            handle.remove()
        (batch,) = self._calls if len(self._calls) == 1 else (None,)
        certain = batch in self._loaded if self._loaded else self._confirmed
        return batch if certain else None


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
