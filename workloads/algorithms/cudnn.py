"""cuDNN's convolution algorithms on a GPU: searched by cuDNN itself, then timed one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from ctypes import byref, c_float, c_int, c_size_t
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from workloads.algorithms.accelerator import Accelerator
from workloads.algorithms.cudnn_api import (
    FUNCTIONS,
    CuDNN,
    CuDNNError,
    Failure,
    MathType,
    Performance,
)
from workloads.algorithms.cudnn_problem import Describer, Problem
from workloads.algorithms.direct import wrong
from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.run import DeviceLostError
from workloads.algorithms.study import Device, Direction, Layer, Measurement
from workloads.algorithms.timing import Timing

TOLERANCES: Final = {"fp32": 1e-3, "tf32": 5e-2}
"""Relative to an element's scale. TF32 has 10 bits of fraction: 5e-4 of each product, which
Winograd's transforms multiply; a result is rejected for being wrong, not for being imprecise."""


@dataclass(frozen=True)
class _Candidate:
    """An algorithm to run, and its result in the search."""

    number: int
    math_type: int
    found: Performance | None


class CuDNNBench:
    """Measures convolutions of float32 tensors."""

    library: Literal["cuDNN"] = "cuDNN"

    def __init__(
        self,
        api: CuDNN,
        accelerator: Accelerator,
        timing: Timing,
        precision: Literal["fp32", "tf32"],
        layout: Literal["nchw", "nhwc"],
    ) -> None:
        """Create a handle. Raises ``CuDNNError``, and ``LibraryError`` without support of TF32."""
        if precision == "tf32" and api.major < 8:
            raise LibraryError(f"cuDNN {api.version} does not support TF32: leave out --precision")
        self._api, self._accelerator, self._timing = api, accelerator, timing
        self.version, self.precision, self.layout = api.version, precision, layout
        self.tolerance, self.versions = TOLERANCES[precision], accelerator.versions
        self.device = Device(
            kind="gpu", name=accelerator.name, memory_bytes=accelerator.memory_bytes
        )
        forbids = api.major >= 8 and precision == "fp32"
        self._math_type = MathType.FMA_MATH if forbids else MathType.DEFAULT_MATH
        self._describer = Describer(api, accelerator, layout)
        self._handle = api.create()
        api.call("cudnnSetStream", self._handle, accelerator.stream)

    def measure(self, layer: Layer, direction: Direction, batch: int) -> Iterator[Measurement]:
        """Yield a measurement of each algorithm and math type, the search's fastest first."""
        if any(before != after for before, after in layer.padding):
            reason = "cuDNN supports symmetric padding only"
            yield from self._not_run(layer, direction, batch, "unsupported", reason)
            return
        with ExitStack() as stack:
            try:
                problem = self._describer.problem(stack, layer, direction, batch)
            except MemoryError:
                reason = "the tensors do not fit into the GPU's memory"
                yield from self._not_run(layer, direction, batch, "out_of_memory", reason)
                return
            except CuDNNError as error:
                yield from self._not_run(layer, direction, batch, error.failure, str(error))
                return
            yield from self._algorithms(problem)

    def _not_run(
        self, layer: Layer, direction: Direction, batch: int, status: Failure, reason: str
    ) -> Iterator[Measurement]:
        functions = FUNCTIONS[direction]
        for algorithm in functions.algorithms:
            yield Measurement(
                layer=layer.path,
                direction=direction,
                batch=batch,
                algorithm=algorithm,
                name=functions.name(algorithm),
                status=status,
                reason=reason,
            )

    def _algorithms(self, problem: Problem) -> Iterator[Measurement]:
        try:
            found = self._searched(problem)
        except CuDNNError as error:
            case = (problem.layer, problem.direction, problem.batch)
            yield from self._not_run(*case, error.failure, str(error))
            return
        for candidate in self._candidates(problem, found):
            lost: DeviceLostError | None = None
            try:
                facts = self._ran(problem, candidate)
            except DeviceLostError as error:
                lost = error
                facts = {"status": "failed", "reason": str(error)}
            algorithm = problem.functions.algorithms[candidate.number]
            yield Measurement(
                layer=problem.layer.path,
                direction=problem.direction,
                batch=problem.batch,
                algorithm=algorithm,
                name=problem.functions.name(algorithm),
                math_type=_math_type_name(candidate.math_type),
                **facts,
            )
            if lost is not None:
                raise lost

    def _searched(self, problem: Problem) -> list[Performance]:
        """Return cuDNN's search over all algorithms, in the largest workspace that fits."""
        function = problem.functions.function
        most, returned = c_int(), c_int()
        self._api.call(f"cudnnGetConvolution{function}AlgorithmMaxCount", self._handle, byref(most))
        results = (Performance * most.value)()
        workspace = self._search_workspace(problem)
        self._set_math_type(problem, self._math_type)
        self._api.call(
            f"cudnnFindConvolution{function}AlgorithmEx",
            *(self._handle, *problem.operands, problem.convolution, *problem.output),
            *(most, byref(returned), results, *_pointer_and_size(workspace)),
        )
        return list(results[: returned.value])

    def _search_workspace(self, problem: Problem) -> Any:
        sizes = set()
        for number in range(len(problem.functions.algorithms)):
            with suppress(CuDNNError):
                sizes.add(self._workspace(problem, number, self._math_type))
        for size in sorted(sizes, reverse=True):
            with suppress(MemoryError):
                return self._accelerator.workspace(size) if size else None
        return None

    def _candidates(self, problem: Problem, found: list[Performance]) -> list[_Candidate]:
        """Return the algorithms in the order of the search, fastest first, then those it left out.

        The search tries DEFAULT_MATH besides the given math type: where TF32 is disabled, those
        results are dropped.
        """
        known = range(len(problem.functions.algorithms))
        listed = [
            _Candidate(each.algorithm, each.math_type, each)
            for each in found
            if each.algorithm in known
            and (self.precision == "tf32" or each.math_type == self._math_type)
        ]
        numbers = {each.number for each in listed}
        return listed + [
            _Candidate(number, self._math_type, None) for number in known if number not in numbers
        ]

    def _ran(self, problem: Problem, candidate: _Candidate) -> dict[str, Any]:
        found = candidate.found
        facts: dict[str, Any] = {}
        try:
            if found is not None:
                # A workspace that was too small for the search can be enough for one algorithm.
                if found.status and self._api.failure(found.status) != "out_of_memory":
                    raise CuDNNError(
                        self._api.error_string(found.status), self._api.failure(found.status)
                    )
                if not found.status:
                    facts["deterministic"] = bool(found.determinism)
                    facts["search_ns"] = round(found.time * 1e6)
            size = self._workspace(problem, candidate.number, candidate.math_type)
            facts["workspace_bytes"] = size
            workspace = self._accelerator.workspace(size) if size else None
            return facts | self._timed(problem, candidate, workspace)
        except CuDNNError as error:
            if error.failure == "failed":
                # A kernel that failed may have made the context unusable.
                self._accelerator.wait()
            return facts | {"status": error.failure, "reason": str(error)}
        except MemoryError:
            reason = "the workspace does not fit into the GPU's memory"
            return facts | {"status": "out_of_memory", "reason": reason}

    def _timed(self, problem: Problem, candidate: _Candidate, workspace: Any) -> dict[str, Any]:
        run = partial(
            self._api.call,
            f"cudnnConvolution{problem.functions.function}",
            *(self._handle, byref(c_float(1.0)), *problem.operands, problem.convolution),
            *(
                candidate.number,
                *_pointer_and_size(workspace),
                byref(c_float(0.0)),
                *problem.output,
            ),
        )
        result = problem.tensors[2]
        result.fill_(float("nan"))
        algorithm = problem.functions.algorithms[candidate.number]
        case = f"{problem.layer.path} {problem.direction} batch {problem.batch} {algorithm}"
        self._accelerator.counted(f"{case} {_math_type_name(candidate.math_type)}", run)
        error = problem.expected.error(result)
        if error is None or error > self.tolerance:
            return {"status": "wrong", "reason": wrong(error), "error": error}
        times = self._accelerator.times(self._timing, run)
        return {"status": "ok", "error": error, "times_ns": times}

    def _workspace(self, problem: Problem, number: int, math_type: int) -> int:
        """Return the workspace bytes of an algorithm; the math type stays set."""
        self._set_math_type(problem, math_type)
        size = c_size_t()
        self._api.call(
            f"cudnnGetConvolution{problem.functions.function}WorkspaceSize",
            *(self._handle, *problem.described, number, byref(size)),
        )
        return size.value

    def _set_math_type(self, problem: Problem, math_type: int) -> None:
        self._api.call("cudnnSetConvolutionMathType", problem.convolution, math_type)


def _pointer_and_size(workspace: Any) -> tuple[int | None, int]:
    """Return the address and size of a workspace, (None, 0) without one."""
    return (None, 0) if workspace is None else (workspace.data_ptr(), workspace.numel())


def _math_type_name(number: int) -> str:
    return MathType(number).name if number in set(MathType) else f"math type {number}"
