"""The time of each layer of a model, by hooks during the recording."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

from torch import Tensor, nn

Key = tuple[str, str]
"""``forward`` or ``backward``, and the path of a leaf module."""


class Clocks:
    """The time of each leaf module of a model, by pass and path, one entry of ``steps`` a step.

    A forward pass lasts from the module's pre-hook to its hook, without what other modules took
    meanwhile; a node of the graph from its pre-hook to that of the next node, and is of the module
    that made it. So every moment of a pass is of one module at most. ``wrap`` makes a range that is
    open while a module's forward pass runs.
    """

    def __init__(
        self, model: nn.Module, wrap: Callable[[str], AbstractContextManager[object]] | None = None
    ) -> None:
        self.steps: list[dict[Key, int]] = []
        self._wrap = wrap
        self._owner: dict[Any, str] = {}
        self._going_back = False
        self._now: Key | None = None
        self._since = 0
        self._handles = [
            handle
            for path, module in model.named_modules()
            if not any(True for _ in module.children())
            for handle in self._watched(path, module)
        ]

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def step(self) -> None:
        """Begin a step."""
        self.steps.append(defaultdict(int))

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of ``loss`` with a clock on every node of its graph."""
        left, seen = [loss.grad_fn], {None}
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            self._time_node(node)
            left += [one for one, _ in node.next_functions]
        self._going_back = True
        loss.backward()
        self._going_back = False
        self._owner.clear()
        self._switch(None)

    def _switch(self, key: Key | None) -> Key | None:
        now, before = perf_counter_ns(), self._now
        if before is not None and self.steps:
            self.steps[-1][before] += now - self._since
        self._now, self._since = key, now
        return before

    def _watched(self, path: str, module: nn.Module) -> list[Any]:
        begun: list[tuple[Any, Key | None, set[Any]]] = []

        def before(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            # Asked here: a module that works in place gives its input a node of its own.
            made = {one.grad_fn for one in inputs if isinstance(one, Tensor)}
            opened = self._wrap(path) if self._wrap else None
            if opened is not None:
                opened.__enter__()
            begun.append((opened, self._switch(("forward", path)), made))

        def after(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            opened, interrupted, made = begun.pop()
            self._switch(interrupted)
            if opened is not None:
                opened.__exit__(None, None, None)
            self._own(path, made, output)

        return [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]

    def _own(self, path: str, before: set[Any], output: Any) -> None:
        """Note that the nodes between a module's output and those ``before`` it are its own."""
        outputs = output if isinstance(output, tuple) else (output,)
        left = [one.grad_fn for one in outputs if isinstance(one, Tensor)]
        while left:
            node = left.pop()
            if node is None or node in before or node in self._owner:
                continue
            self._owner[node] = path
            if self._going_back:
                # Of a graph within: what a reentrant checkpoint runs again goes back at once.
                self._time_node(node)
            left += [one for one, _ in node.next_functions]

    def _time_node(self, node: Any) -> None:
        path = self._owner.get(node)
        key = None if path is None else ("backward", path)
        node.register_prehook(lambda gradients: self._switch(key) and None)
