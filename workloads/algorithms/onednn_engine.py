"""oneDNN's objects: created, kept while they are in use, and destroyed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from ctypes import c_void_p
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from workloads.algorithms.direct import Shape
from workloads.algorithms.onednn_api import (
    ANY,
    CPU,
    F32,
    FORWARD_TRAINING,
    FROM,
    IN_ORDER,
    SCRATCHPAD,
    SCRATCHPAD_MEMORY,
    SCRATCHPAD_OF_THE_USER,
    TO,
    Algorithm,
    Argument,
    Dims,
    OneDNN,
    OneDNNError,
    Role,
    Status,
)
from workloads.algorithms.study import Direction, Layer

Handle: TypeAlias = c_void_p
Values: TypeAlias = NDArray[np.float32]
_ALIGNMENT = 64


@dataclass(frozen=True)
class Tensor:
    """A memory descriptor, and memory that it describes."""

    descriptor: Handle
    memory: Handle
    bytes: int


class Engine:
    """The CPU, with a stream on which work is done in order."""

    def __init__(self, api: OneDNN) -> None:
        """Create both, for the lifetime of the process."""
        self._api = api
        self._engine = api.create("engine_create", CPU, 0)
        self._stream = api.create("stream_create", self._engine, IN_ORDER)
        self._attributes = api.create("primitive_attr_create")
        api.call("primitive_attr_set_scratchpad_mode", self._attributes, SCRATCHPAD_OF_THE_USER)

    def convolution(
        self,
        stack: ExitStack,
        layer: Layer,
        direction: Direction,
        shapes: dict[Role, Shape],
        algorithm: Algorithm,
    ) -> Handle:
        """Return the primitive descriptor of a convolution; implementations choose the layouts."""
        x, w, y = (
            self._descriptor(stack, layer, role, shapes[role])
            for role in (Role.SOURCE, Role.WEIGHTS, Role.DESTINATION)
        )
        (top, bottom), (left, right) = layer.padding
        window = (
            Dims(*layer.stride),
            # oneDNN counts the elements skipped between two taps.
            Dims(*(extent - 1 for extent in layer.dilation)),
            Dims(top, left),
            Dims(bottom, right),
        )
        engine, attributes = self._engine, self._attributes
        forward = self._made(
            stack,
            "primitive_desc",
            "convolution_forward_primitive_desc_create",
            *(engine, FORWARD_TRAINING, algorithm, x, w, None, y, *window, attributes),
        )
        if direction == "fprop":
            return forward
        backward = "backward_data" if direction == "dgrad" else "backward_weights"
        tensors = (x, w, y) if direction == "dgrad" else (x, w, None, y)
        return self._made(
            stack,
            "primitive_desc",
            f"convolution_{backward}_primitive_desc_create",
            *(engine, algorithm, *tensors, *window, forward, attributes),
        )

    def next(self, description: Handle) -> bool:
        """Advance to the next implementation; return False after the last."""
        try:
            self._api.call("primitive_desc_next_impl", description)
        except OneDNNError as error:
            if error.status is Status.LAST_IMPL_REACHED:
                return False
            raise
        return True

    def values(self, shape: Shape) -> Values:
        """Return memory for a tensor, filled with NaN."""
        size = int(np.prod(shape)) * 4
        return _aligned(size).view(np.float32).reshape(shape)

    def plain(self, stack: ExitStack, layer: Layer, role: Role, values: Values) -> Tensor:
        """Return ``values`` as a tensor in their own layout."""
        dims = _dims(layer, role, values.shape)
        strides = [int(np.prod(dims[axis + 1 :])) for axis in range(len(dims))]
        descriptor = self._made(
            stack,
            "memory_desc",
            "memory_desc_create_with_strides",
            *(len(dims), Dims(*dims), F32, Dims(*strides)),
        )
        return self._tensor(stack, descriptor, values)

    def tensor_of(self, stack: ExitStack, description: Handle, role: Role, plain: Tensor) -> Tensor:
        """Return a tensor in the implementation's layout: ``plain`` itself where it has it."""
        wanted = self._api.described(description, role)
        if wanted is None or self._api.same(wanted, plain.descriptor):
            return plain
        return self._tensor(stack, wanted, _aligned(self._api.size(wanted)))

    def scratchpad(
        self, stack: ExitStack, description: Handle, arguments: dict[int, Handle]
    ) -> int:
        """Add the scratchpad to the arguments of an execution; return its bytes."""
        wanted = self._api.described(description, SCRATCHPAD_MEMORY)
        size = 0 if wanted is None else self._api.size(wanted)
        if wanted is not None and size:
            arguments[SCRATCHPAD] = self._tensor(stack, wanted, _aligned(size)).memory
        return size

    def reorder(self, stack: ExitStack, source: Tensor, target: Tensor) -> Callable[[], None]:
        """Return a function that copies a tensor into the layout of another."""
        engine = self._engine
        description = self._made(
            stack,
            "primitive_desc",
            "reorder_primitive_desc_create",
            *(source.descriptor, engine, target.descriptor, engine, self._attributes),
        )
        arguments = {FROM: source.memory, TO: target.memory}
        self.scratchpad(stack, description, arguments)
        return self.primitive(stack, description, arguments)

    def primitive(
        self, stack: ExitStack, description: Handle, arguments: dict[int, Handle]
    ) -> Callable[[], None]:
        """Return a function that runs a primitive and waits for it."""
        made = self._made(stack, "primitive", "primitive_create", description)
        listed = (Argument * len(arguments))(
            *(Argument(name, memory) for name, memory in arguments.items())
        )

        def run() -> None:
            self._api.call("primitive_execute", made, self._stream, len(listed), listed)
            self._api.call("stream_wait", self._stream)

        return run

    def _descriptor(self, stack: ExitStack, layer: Layer, role: Role, shape: Shape) -> Handle:
        dims = _dims(layer, role, shape)
        return self._made(
            stack,
            "memory_desc",
            "memory_desc_create_with_tag",
            *(len(dims), Dims(*dims), F32, ANY),
        )

    def _tensor(self, stack: ExitStack, descriptor: Handle, buffer: NDArray[np.generic]) -> Tensor:
        stack.enter_context(nullcontext(buffer))  # alive as long as its memory object
        memory = self._made(
            stack, "memory", "memory_create", descriptor, self._engine, buffer.ctypes.data
        )
        return Tensor(descriptor, memory, buffer.nbytes)

    def _made(self, stack: ExitStack, kind: str, function: str, *arguments: object) -> Handle:
        made = self._api.create(function, *arguments)
        stack.callback(self._api.call, f"{kind}_destroy", made)
        return made


def _dims(layer: Layer, role: Role, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents in oneDNN's order: grouped filters begin with the groups."""
    if role in (Role.WEIGHTS, Role.DIFF_WEIGHTS) and layer.groups > 1:
        return (layer.groups, shape[0] // layer.groups, *shape[1:])
    return shape


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return memory aligned to a cache line, with all bits set (NaN)."""
    raw = np.full(size + _ALIGNMENT, 255, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]
