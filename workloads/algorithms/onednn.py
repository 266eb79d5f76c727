"""oneDNN's convolutions on the CPU: every implementation of each algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from workloads.algorithms.direct import Expected, Shape, Sum, expected, shapes, wrong
from workloads.algorithms.onednn_api import Algorithm, OneDNN, OneDNNError, Role, Status
from workloads.algorithms.onednn_engine import Engine, Handle
from workloads.algorithms.study import Device, Direction, Layer, Measurement
from workloads.algorithms.timing import Timing
from workloads.provenance import cpu_model

TOLERANCE: Final = 1e-3
"""Single precision, relative to an element's scale: a sum of 10^4 products that misses one has an
error of 10^-2, Winograd's F(4x4, 3x3) one of 10^-5."""

_ROLES: Final[dict[Direction, tuple[Role, Role, Role]]] = {
    "fprop": (Role.SOURCE, Role.WEIGHTS, Role.DESTINATION),
    "dgrad": (Role.WEIGHTS, Role.DIFF_DESTINATION, Role.DIFF_SOURCE),
    "wgrad": (Role.SOURCE, Role.DIFF_DESTINATION, Role.DIFF_WEIGHTS),
}
"""The two operands of a direction, and its result."""

_REFERENCE: Final = "ref"
_ALGORITHMS: Final = (
    # By tile size: cuDNN's fused kernels are F(2x2, 3x3), its other ones F(4x4, 3x3).
    ("wino_2x3", "winograd"),
    ("wino_4x3", "winograd_nonfused"),
    # Matrix products of an expanded input; brgconv reads its tiles in place.
    ("gemm", "gemm"),
    ("brgconv", "implicit_gemm"),
    ("_dw", "depthwise"),
    ("jit", "direct"),
    (_REFERENCE, "direct"),
)


def algorithm_of(implementation: str) -> str:
    """Return the algorithm of an implementation (``gemm:jit``), in cuDNN's terms."""
    return next((name for part, name in _ALGORITHMS if part in implementation), "unknown")


@dataclass(frozen=True)
class _Problem:
    """One convolution: two operands in plain memory, and elements of the correct result."""

    layer: Layer
    direction: Direction
    batch: int
    shapes: dict[Role, Shape]
    operands: tuple[NDArray[np.float32], NDArray[np.float32]]
    expected: Expected


class OneDNNBench:
    """Measures convolutions in single precision."""

    library: Literal["oneDNN"] = "oneDNN"
    precision: Literal["fp32"] = "fp32"
    layout: Literal["own"] = "own"
    tolerance = TOLERANCE
    versions: Mapping[str, str] = {}

    def __init__(self, api: OneDNN, timing: Timing, threads: int | None = None) -> None:
        """Create an engine on the CPU. Raises ``OneDNNError``, and ``LibraryError`` for threads."""
        self._api, self._timing = api, timing
        if threads is not None:
            api.set_threads(threads)
        self._engine = Engine(api)
        self.version = api.version
        self.device = Device(kind="cpu", name=cpu_model(), threads=api.threads)

    def measure(self, layer: Layer, direction: Direction, batch: int) -> Iterator[Measurement]:
        """Yield a measurement of each implementation of each algorithm, the preferred one first."""
        try:
            problem = _problem(layer, direction, batch)
        except MemoryError:
            for algorithm in Algorithm:
                yield _measurement(
                    layer,
                    direction,
                    batch,
                    algorithm,
                    status="out_of_memory",
                    reason=_OUT_OF_MEMORY,
                )
            return
        for algorithm in Algorithm:
            yield from self._implementations(problem, algorithm)

    def _implementations(self, problem: _Problem, algorithm: Algorithm) -> Iterator[Measurement]:
        case = (problem.layer, problem.direction, problem.batch, algorithm)
        with ExitStack() as stack:
            try:
                description = self._engine.convolution(
                    stack, problem.layer, problem.direction, problem.shapes, algorithm
                )
            except OneDNNError as error:
                absent = error.status is Status.UNIMPLEMENTED
                reason = "oneDNN has no implementation for this shape" if absent else str(error)
                status = "unsupported" if absent else "failed"
                yield _measurement(*case, status=status, reason=reason)
                return
            while True:
                name = self._api.implementation(description)
                yield _measurement(*case, name, **self._ran(problem, description, name))
                # AUTO has one result, oneDNN's choice; the others repeat the two algorithms before.
                if algorithm is Algorithm.CONVOLUTION_AUTO or not self._engine.next(description):
                    return

    def _ran(self, problem: _Problem, description: Handle, name: str) -> dict[str, Any]:
        if name.startswith(_REFERENCE):
            return {"status": "left_out", "reason": "oneDNN's reference implementation, not timed"}
        try:
            with ExitStack() as stack:
                return self._timed(stack, problem, description)
        except MemoryError:
            return {"status": "out_of_memory", "reason": _OUT_OF_MEMORY}
        except OneDNNError as error:
            full = error.status is Status.OUT_OF_MEMORY
            return {"status": "out_of_memory" if full else "failed", "reason": str(error)}

    def _timed(self, stack: ExitStack, problem: _Problem, description: Handle) -> dict[str, Any]:
        """Return the times of the implementation in its own layouts, and of the reorders."""
        engine = self._engine
        *roles, result = _ROLES[problem.direction]
        arguments: dict[int, Handle] = {}
        before: list[Callable[[], None]] = []
        copied = 0
        for role, values in zip(roles, problem.operands, strict=True):
            plain = engine.plain(stack, problem.layer, role, values)
            own = engine.tensor_of(stack, description, role, plain)
            arguments[role.argument] = own.memory
            if own is not plain:
                before.append(engine.reorder(stack, plain, own))
                copied += own.bytes
        values = engine.values(problem.shapes[result])
        plain = engine.plain(stack, problem.layer, result, values)
        own = engine.tensor_of(stack, description, result, plain)
        arguments[result.argument] = own.memory
        back: list[Callable[[], None]] = []
        if own is not plain:
            back.append(engine.reorder(stack, own, plain))
            copied += own.bytes
        scratchpad = engine.scratchpad(stack, description, arguments)
        run = engine.primitive(stack, description, arguments)
        for step in (*before, run, *back):
            step()
        facts = {"workspace_bytes": scratchpad, "reorder_bytes": copied}
        error = problem.expected.error(values)
        if error is None or error > TOLERANCE:
            return {**facts, "status": "wrong", "reason": wrong(error), "error": error}
        times = self._timing.of(run)
        around = [self._timing.of(step) for step in (*before, *back)]
        reorders = tuple(sum(parts) for parts in zip(*around, strict=False)) or (0,) * len(times)
        return {**facts, "status": "ok", "error": error, "times_ns": times, "reorder_ns": reorders}


_OUT_OF_MEMORY: Final = "the tensors do not fit into memory"


def _problem(layer: Layer, direction: Direction, batch: int) -> _Problem:
    x, w, y = shapes(layer, batch)
    of_role = {
        **{Role.SOURCE: x, Role.DIFF_SOURCE: x, Role.WEIGHTS: w, Role.DIFF_WEIGHTS: w},
        **{Role.DESTINATION: y, Role.DIFF_DESTINATION: y},
    }
    random = np.random.default_rng(0)
    first, second = (
        random.standard_normal(prod(of_role[role]), np.float32).reshape(of_role[role])
        for role in _ROLES[direction][:2]
    )
    known = expected(layer, direction, batch, (first, second), _dot)
    return _Problem(layer, direction, batch, of_role, (first, second), known)


def _dot(one: NDArray[np.float32], other: NDArray[np.float32]) -> Sum:
    products = one.astype(np.float64) * other
    return float(products.sum()), float(np.square(products).sum())


def _measurement(
    layer: Layer,
    direction: Direction,
    batch: int,
    algorithm: Algorithm,
    implementation: str | None = None,
    **facts: Any,
) -> Measurement:
    asked = "winograd" if algorithm is Algorithm.CONVOLUTION_WINOGRAD else "direct"
    return Measurement(
        layer=layer.path,
        direction=direction,
        batch=batch,
        algorithm=asked if implementation is None else algorithm_of(implementation),
        name=algorithm.name.lower(),
        implementation=implementation,
        **facts,
    )
