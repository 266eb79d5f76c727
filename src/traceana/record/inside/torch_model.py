"""The PyTorch model that a script trains: its inputs, its batch, and ranges around its layers."""

from __future__ import annotations

import functools
import gc
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .process_report import Report

Range = Callable[[str], Any]
"""A function from a range's text to its context manager."""


class Model:
    """The module with the parameters of an optimizer, found after the optimizer's first step."""

    def __init__(self, torch: Any, report: Report) -> None:
        self._torch, self._report = torch, report
        self._root: Any = None
        self._inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._batch = _Batch(torch)
        self._handles: list[Any] = []
        self._watch: Any = None
        self._infers = False
        self._optimizers: set[int] = set()
        rank_and_size = rank_of(torch)
        self.rank: int | None = None if rank_and_size is None else rank_and_size[0]
        self._world = 1 if rank_and_size is None else rank_and_size[1]

    def find_module_of(self, optimizer: Any) -> None:
        """Find the outermost module with parameters of ``optimizer`` and hook its calls."""
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        modules: dict[int, Any] = {}
        for module in self._modules():
            if any(id(p) in trained for p in module.parameters()):
                modules[id(module)] = module
        inner = {
            id(child)
            for module in modules.values()
            for child in module.modules()
            if child is not module
        }
        outermost = [module for key, module in modules.items() if key not in inner]
        if not outermost:
            self._report.note("no layers.json: no module has the optimizer's parameters")
            return
        self.forget()
        self.watch(max(outermost, key=lambda module: sum(p.numel() for p in module.parameters())))

    def other_optimizer(self, optimizer: Any) -> None:
        """Note that ``optimizer`` trains modules that are not described, once."""
        if self._root is None or id(optimizer) in self._optimizers:
            return
        self._optimizers.add(id(optimizer))
        described_parameters = {id(p) for p in self._root.parameters()}
        if any(
            id(p) not in described_parameters
            for group in optimizer.param_groups
            for p in group["params"]
        ):
            described = type(_unwrapped(self._root)).__name__
            self._report.note(
                f"only the layers of {described} are described: another optimizer trains others"
            )

    def forget(self) -> None:
        """Forget the module whose calls without gradients were no steps."""
        if self._watch is not None:
            self._watch.remove()
        self._watch, self._inputs, self._infers = None, None, False
        self._batch.forget()

    def watch_given(self, root: Any) -> None:
        """Hook the calls of ``root``, or of the module that ``torch.compile`` made of it."""
        self.watch(self._compiled_from(root))

    def watch_inference(self, root: Any) -> None:
        """Hook the calls of ``root`` without gradients."""
        self._infers = True
        self.watch(root)

    def watch(self, root: Any) -> None:
        """Hook the calls of ``root``."""
        self._root = root
        # A compiled module runs the hooks of its wrapper only.
        if not self._compiled() or hasattr(self._root, "_orig_mod"):
            self._watch = self._root.register_forward_pre_hook(self._called, with_kwargs=True)
            self._batch.watch(self._root)

    def _modules(self) -> list[Any]:
        # isinstance would call __class__ of proxies.
        kind = self._torch.nn.Module
        return [object_ for object_ in gc.get_objects() if issubclass(type(object_), kind)]

    def _compiled_from(self, root: Any) -> Any:
        """Return the module that ``torch.compile`` made of ``root``, ``root`` without one."""
        originals = ((module, module.__dict__.get("_modules", {})) for module in self._modules())
        return next(
            (module for module, inside in originals if inside.get("_orig_mod") is root), root
        )

    def _compiled(self) -> bool:
        jit = self._torch.jit.ScriptModule
        return any(
            isinstance(module, jit)
            or hasattr(module, "_orig_mod")
            or getattr(module, "_compiled_call_impl", None) is not None
            for module in self._root.modules()
        )

    def _called(self, _module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self._torch.is_grad_enabled() is self._infers:
            return
        self._inputs = arguments, keywords
        shapes = [
            value.shape for value in (*arguments, *keywords.values()) if self._is_tensor(value)
        ]
        self._batch.called(shapes[0] if shapes else ())

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor)

    def watch_loaders(self) -> None:
        """Hook the iteration of data loaders to get their batch sizes."""
        self._batch.watch_loaders()

    def step_ended(self) -> None:
        """Report the batch of the watched step if it is certain."""
        if self._watch is not None and self._inputs is not None:
            self._watch.remove()
            self._watch = None
            self._inputs = _shapes(*self._inputs, self._is_tensor)
            batch = self._batch.of_step()
            if batch is not None and self._splits_the_batch():
                self._report.add(images_per_step=batch)

    def _splits_the_batch(self) -> bool:
        """Return whether the ranks train on different examples; True for a single process."""
        if self.rank is None:
            return True
        group = getattr(self._root, "process_group", None)
        wraps = type(self._root).__name__ == "DistributedDataParallel"
        return wraps and group is not None and group.size() == self._world

    def mark(self, range_: Range) -> None:
        """Register hooks that open ranges ``nn.Module.forward: PATH`` around the calls of modules.

        Modules that call others have ranges too: they may compute with parameters of their own,
        like ``MultiheadAttention``.
        """
        if self._root is None:
            return
        if self._compiled():
            self._report.note("no ranges around layers: the model is compiled")
            return
        ranges = threading.local()

        def opener(text: str) -> Callable[..., None]:
            def open_range(*_: Any) -> None:
                opened = range_(text)
                opened.__enter__()
                ranges.__dict__.setdefault("open", []).append(opened)

            return open_range

        def close_range(*_: Any) -> None:
            if ranges.__dict__.get("open"):
                ranges.open.pop().__exit__(None, None, None)

        for path, module in _unwrapped(self._root).named_modules():
            if path:
                before = opener(f"nn.Module.forward: {path}")
                self._handles.append(module.register_forward_pre_hook(before))
                after = module.register_forward_hook(close_range, always_call=True)
                self._handles.append(after)

    def unmark(self) -> None:
        """Remove the hooks of :meth:`mark`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def operators_as_ranges(self) -> Any:
        """Start NVTX ranges around operators and return their context, None without a GPU."""
        if not self._torch.cuda.is_initialized():
            return None
        ranges = self._torch.autograd.profiler.emit_nvtx(record_shapes=True)
        ranges.__enter__()
        return ranges

    def describe(self, folder: Path) -> None:
        """Write the model's layers, once, if traceana can be imported."""
        if self._root is None or self.rank:
            return
        if not self._inputs:
            self._report.note(
                "no layers.json: the calls of the model were not seen, as of TorchScript"
            )
            return
        try:
            from traceana.model.live_model import describe  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            self._report.note("no layers.json: the script's Python has no traceana")
            return
        arguments, keywords = self._inputs
        inputs = [*arguments, *keywords.values()]
        if None in inputs or (arguments and keywords):
            self._report.note("no layers.json: the model has inputs other than tensors")
            return
        shapes: Any = [shape for shape, _ in inputs]
        if keywords:
            shapes = dict(zip(keywords, shapes))  # noqa: B905
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                manifest = describe(
                    _unwrapped(self._root), shapes, dtype=[dtype for _, dtype in inputs]
                )
            for warning in caught:
                if str(warning.message).startswith("traceana"):
                    self._report.note(str(warning.message))
            manifest.write(folder / "layers.json")
        except Exception as error:  # noqa: BLE001  # whatever a model raises
            self._report.note(f"no layers.json: {type(error).__name__}: {str(error)[:200]}")


class _Batch:
    """The number of examples of a step, if certain.

    The first dimension of the model's first tensor is the batch if it equals the ``batch_size`` of
    an iterated ``DataLoader``. Without a loader, the input of the first convolution or batch
    normalization must have the same first dimension. With several model calls per step the number
    is unknown.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._loaded: set[int] = set()
        self._handles: list[Any] = []
        self._calls: list[int | None] = []
        self._confirmed: bool | None = None

    def watch_loaders(self) -> None:
        """Hook the iteration of data loaders to get their batch sizes."""
        loader = self._torch.utils.data.DataLoader
        iterate = loader.__iter__

        @functools.wraps(iterate)
        def iterated(this: Any) -> Any:
            # A loader with a sampler of batches has no size of its own.
            size = this.batch_size or getattr(this.batch_sampler, "batch_size", None)
            if isinstance(size, int):
                self._loaded.add(size)
            return iterate(this)

        loader.__iter__ = iterated

    def watch(self, root: Any) -> None:
        """Hook layers whose inputs have the batch as first dimension."""
        modules = self._torch.nn.modules
        kinds = modules.conv._ConvNd, modules.batchnorm._BatchNorm
        for module in root.modules():
            if isinstance(module, kinds):
                self._handles.append(module.register_forward_pre_hook(self._layer_called))

    def called(self, shape: Any) -> None:
        """Add a call of the model, whose first tensor has this ``shape``."""
        self._calls.append(int(shape[0]) if len(shape) else None)

    def _layer_called(self, layer: Any, arguments: tuple[Any, ...]) -> None:
        if self._confirmed is not None or not self._calls or not arguments:
            return
        shape = arguments[0].shape
        # An unbatched input of a convolution has one dimension less.
        spatial = getattr(layer, "kernel_size", None)
        batched = len(shape) > 1 if spatial is None else len(shape) == len(spatial) + 2
        self._confirmed = batched and int(shape[0]) == self._calls[0]

    def forget(self) -> None:
        """Remove the hooks, and forget the calls."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._calls, self._confirmed = [], [], None

    def of_step(self) -> int | None:
        """Return the examples of the step and remove the hooks."""
        for handle in self._handles:
            handle.remove()
        (batch,) = self._calls if len(self._calls) == 1 else (None,)
        certain = batch in self._loaded if self._loaded else self._confirmed
        return batch if certain else None


def _unwrapped(root: Any) -> Any:
    """Return the model without wrappers of DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(root, "_orig_mod", None)
        if inner is None and type(root).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = getattr(root, "module", None)
        if inner is None:
            return root
        root = inner


def _shapes(
    arguments: tuple[Any, ...], keywords: dict[str, Any], is_tensor: Callable[[Any], bool]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def described(value: Any) -> Any:
        return (tuple(value.shape), str(value.dtype)) if is_tensor(value) else None

    shown = {name: described(value) for name, value in keywords.items()}
    return tuple(map(described, arguments)), shown


def rank_of(torch: Any) -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks, None for a single process."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (rank, size) if size > 1 else None
