"""cuDNN's convolution API of version 7, which versions 8 and 9 still have.

Values are those of cuDNN's headers. Of these only the status numbers changed, in version 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_void_p,
)
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias

from workloads.algorithms.libraries import LibraryError
from workloads.algorithms.study import Direction

PACKAGES: Final = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")
OLDEST: Final = 7

FLOAT: Final = 0
CROSS_CORRELATION: Final = 1
"""Cross-correlation: the filter is not flipped."""
FORMATS: Final[Mapping[str, int]] = {"nchw": 0, "nhwc": 1}

Failure: TypeAlias = Literal["unsupported", "out_of_memory", "failed"]
Operand: TypeAlias = Literal["x", "w", "y"]
"""A tensor of a convolution, or its gradient: input, filter, output."""


class MathType(IntEnum):
    """``cudnnMathType_t``. From version 8 on DEFAULT allows TF32, FMA forbids tensor cores."""

    DEFAULT_MATH = 0
    TENSOR_OP_MATH = 1
    TENSOR_OP_MATH_ALLOW_CONVERSION = 2
    FMA_MATH = 3


class Performance(Structure):
    """``cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t``: ``time`` in ms, ``memory`` in bytes.

    ``determinism`` is 1 for deterministic results, else 0.
    """

    _fields_ = (
        ("algorithm", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("math_type", c_int),
        ("reserved", c_int * 3),
    )


@dataclass(frozen=True)
class Functions:
    """One direction: the names of its functions and constants, its algorithms by their number.

    ``operands`` are the two input tensors, in the order of the functions' arguments, and the
    output.
    """

    function: str
    constant: str
    operands: tuple[Operand, Operand, Operand]
    algorithms: tuple[str, ...]

    def name(self, algorithm: str) -> str:
        """Return cuDNN's name of an algorithm."""
        return f"CUDNN_CONVOLUTION_{self.constant}_ALGO_{algorithm.removeprefix('algo_').upper()}"


FUNCTIONS: Final[Mapping[Direction, Functions]] = {
    "fprop": Functions(
        *("Forward", "FWD", ("x", "w", "y")),
        (
            *("implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"),
            *("fft", "fft_tiling", "winograd", "winograd_nonfused"),
        ),
    ),
    "dgrad": Functions(
        *("BackwardData", "BWD_DATA", ("w", "y", "x")),
        ("algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"),
    ),
    "wgrad": Functions(
        *("BackwardFilter", "BWD_FILTER", ("x", "y", "w")),
        ("algo_0", "algo_1", "fft", "algo_3", "winograd", "winograd_nonfused", "fft_tiling"),
    ),
}

_OUT = POINTER(c_void_p)
_P, _I = c_void_p, c_int
_CREATED: Final = ("TensorDescriptor", "FilterDescriptor", "ConvolutionDescriptor")
_SIGNATURES: Final[dict[str, tuple[object, ...]]] = {
    "cudnnCreate": (_OUT,),
    "cudnnSetStream": (_P, _P),
    **{f"cudnnCreate{kind}": (_OUT,) for kind in _CREATED},
    **{f"cudnnDestroy{kind}": (_P,) for kind in _CREATED},
    "cudnnSetTensor4dDescriptor": (_P, _I, _I, _I, _I, _I, _I),
    "cudnnSetFilter4dDescriptor": (_P, _I, _I, _I, _I, _I, _I),
    "cudnnSetConvolution2dDescriptor": (_P, _I, _I, _I, _I, _I, _I, _I, _I),
    "cudnnSetConvolutionGroupCount": (_P, _I),
    "cudnnSetConvolutionMathType": (_P, _I),
    "cudnnGetConvolution2dForwardOutputDim": (_P, _P, _P, *(POINTER(_I),) * 4),
}
_OF_A_DIRECTION: Final[dict[str, tuple[object, ...]]] = {
    "cudnnGetConvolution{}AlgorithmMaxCount": (_P, POINTER(_I)),
    "cudnnGetConvolution{}WorkspaceSize": (_P, _P, _P, _P, _P, _I, POINTER(c_size_t)),
    "cudnnFindConvolution{}AlgorithmEx": (
        *(_P, _P, _P, _P, _P, _P, _P, _P),
        *(_I, POINTER(_I), POINTER(Performance), _P, c_size_t),
    ),
    "cudnnConvolution{}": (
        *(_P, POINTER(c_float), _P, _P, _P, _P, _P, _I, _P, c_size_t, POINTER(c_float), _P, _P),
    ),
}


class CuDNNError(RuntimeError):
    """A call failed; ``failure`` is the kind of failure."""

    def __init__(self, message: str, failure: Failure) -> None:
        self.failure = failure
        super().__init__(message)


class CuDNN:
    """The library, its functions typed."""

    def __init__(self, library: CDLL) -> None:
        """Bind all functions. Raises :class:`LibraryError` where one is missing."""
        self._library = library
        try:
            library.cudnnGetVersion.restype = c_size_t
            library.cudnnGetErrorString.argtypes = (c_int,)
            library.cudnnGetErrorString.restype = c_char_p
            signatures = dict(_SIGNATURES)
            for functions in FUNCTIONS.values():
                for name, arguments in _OF_A_DIRECTION.items():
                    signatures[name.format(functions.function)] = arguments
            for name, arguments in signatures.items():
                function = getattr(library, name)
                function.argtypes, function.restype = arguments, c_int
        except AttributeError as error:
            raise LibraryError(
                f"not a cuDNN library of version {OLDEST} to 9 ({error}): check --library-file"
            ) from error
        number = int(library.cudnnGetVersion())
        # 9.20.0 is 92000, 8.9.7 was 8907.
        unit = 10000 if number >= 90000 else 1000
        self.major = number // unit
        self.version = f"{self.major}.{number % unit // 100}.{number % 100}"
        if self.major < OLDEST:
            raise LibraryError(
                f"cuDNN {self.version} is older than {OLDEST}: install a newer version"
            )

    def call(self, function: str, *arguments: object) -> None:
        """Call a function; raises :class:`CuDNNError` where it fails."""
        status = getattr(self._library, function)(*arguments)
        if status:
            raise CuDNNError(f"{function}: {self.error_string(status)}", self.failure(status))

    def create(self, kind: str = "") -> c_void_p:
        """Return a new handle, or a new descriptor of a kind."""
        made = c_void_p()
        self.call(f"cudnnCreate{kind}", byref(made))
        return made

    def error_string(self, status: int) -> str:
        """Return the library's error string of a status."""
        text: bytes | None = self._library.cudnnGetErrorString(status)
        return (text or b"").decode() or f"status {status}"

    def failure(self, status: int) -> Failure:
        """Return the kind of failure of a status that is not success."""
        unsupported, full = _MEANINGS[min(self.major, 9) == 9]
        if status in unsupported:
            return "unsupported"
        return "out_of_memory" if status in full else "failed"


_MEANINGS: Final = {
    # CUDNN_STATUS_ARCH_MISMATCH, _NOT_SUPPORTED, _RUNTIME_PREREQUISITE_MISSING; _ALLOC_FAILED.
    False: (frozenset((6, 9, 11)), frozenset((2,))),
    # All of CUDNN_STATUS_NOT_SUPPORTED_…; _INTERNAL_ERROR_{HOST,DEVICE}_ALLOCATION_FAILED.
    True: (frozenset(range(3000, 4000)), frozenset((4003, 4004))),
}
