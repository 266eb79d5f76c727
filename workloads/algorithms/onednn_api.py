"""oneDNN's C API (3.x) for convolutions; values are those of its headers."""

from __future__ import annotations

import ctypes
from ctypes import CDLL, POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Final

from workloads.algorithms.libraries import LibraryError, load

PACKAGES: Final = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn")
MAJOR: Final = 3

Dims = c_int64 * 12
F32: Final = 3
ANY: Final = 1
"""The memory format that leaves the choice to the implementation."""
CPU: Final = 1
IN_ORDER: Final = 1
FORWARD_TRAINING: Final = 64
SCRATCHPAD_OF_THE_USER: Final = 1
IMPLEMENTATION: Final = 8
"""Query of an implementation's name."""
SCRATCHPAD_MEMORY: Final = 136
"""Query of the scratchpad's memory descriptor."""
SCRATCHPAD: Final = 80
FROM: Final = 1
TO: Final = 17


class Algorithm(IntEnum):
    """``dnnl_alg_kind_t`` of convolutions."""

    CONVOLUTION_DIRECT = 1
    CONVOLUTION_WINOGRAD = 2
    CONVOLUTION_AUTO = 3


class Status(IntEnum):
    """``dnnl_status_t``."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    INVALID_ARGUMENTS = 2
    UNIMPLEMENTED = 3
    LAST_IMPL_REACHED = 4
    RUNTIME_ERROR = 5
    NOT_REQUIRED = 6


class Role(IntEnum):
    """A tensor of a convolution: the query of its memory descriptor."""

    SOURCE = 129
    DIFF_SOURCE = 130
    WEIGHTS = 131
    DIFF_WEIGHTS = 132
    DESTINATION = 133
    DIFF_DESTINATION = 134

    @property
    def argument(self) -> int:
        """The tensor's argument index in an execution (``DNNL_ARG_…``)."""
        return _ARGUMENTS[self]


_ARGUMENTS = {
    Role.SOURCE: 1,
    Role.DESTINATION: 17,
    Role.WEIGHTS: 33,
    Role.DIFF_SOURCE: 129,
    Role.DIFF_DESTINATION: 145,
    Role.DIFF_WEIGHTS: 161,
}


class Version(Structure):
    """``dnnl_version_t``."""

    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class Argument(Structure):
    """``dnnl_exec_arg_t``."""

    _fields_ = (("argument", c_int), ("memory", c_void_p))


class OneDNNError(RuntimeError):
    """A call failed with ``status``."""

    def __init__(self, function: str, status: int) -> None:
        known = status in set(Status)
        self.status = Status(status) if known else None
        super().__init__(f"{function}: {Status(status).name.lower() if known else status}")


_OUT = POINTER(c_void_p)
_WINDOW = (POINTER(c_int64),) * 4
_SIGNATURES: Final[dict[str, tuple[object, ...]]] = {
    "dnnl_engine_create": (_OUT, c_int, c_size_t),
    "dnnl_stream_create": (_OUT, c_void_p, ctypes.c_uint),
    "dnnl_stream_wait": (c_void_p,),
    "dnnl_memory_desc_create_with_tag": (_OUT, c_int, POINTER(c_int64), c_int, c_int),
    "dnnl_memory_desc_create_with_strides": (
        *(_OUT, c_int, POINTER(c_int64), c_int, POINTER(c_int64)),
    ),
    "dnnl_memory_desc_destroy": (c_void_p,),
    "dnnl_memory_create": (_OUT, c_void_p, c_void_p, c_void_p),
    "dnnl_memory_destroy": (c_void_p,),
    "dnnl_primitive_attr_create": (_OUT,),
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_convolution_forward_primitive_desc_create": (
        *(_OUT, c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p, c_void_p),
        *(*_WINDOW, c_void_p),
    ),
    "dnnl_convolution_backward_data_primitive_desc_create": (
        *(_OUT, c_void_p, c_int, c_void_p, c_void_p, c_void_p),
        *(*_WINDOW, c_void_p, c_void_p),
    ),
    "dnnl_convolution_backward_weights_primitive_desc_create": (
        *(_OUT, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p),
        *(*_WINDOW, c_void_p, c_void_p),
    ),
    "dnnl_reorder_primitive_desc_create": (
        *(_OUT, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "dnnl_primitive_desc_next_impl": (c_void_p,),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_desc_destroy": (c_void_p,),
    "dnnl_primitive_create": (_OUT, c_void_p),
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, POINTER(Argument)),
    "dnnl_primitive_destroy": (c_void_p,),
}


class OneDNN:
    """The library, its functions typed: each returns nothing and raises :class:`OneDNNError`."""

    def __init__(self, path: Path | None) -> None:
        """Load the library. Raises :class:`LibraryError` where it is missing or not version 3.x."""
        advice = "install the extra: pip install '.[workloads]' (x86-64 Linux)"
        self._library: CDLL = load(path, PACKAGES, "dnnl", advice)
        try:
            self._library.dnnl_version.restype = POINTER(Version)
            version = self._library.dnnl_version().contents
            for name, arguments in _SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = arguments, c_int
            self._library.dnnl_primitive_desc_query_md.argtypes = (c_void_p, c_int, c_int)
            self._library.dnnl_primitive_desc_query_md.restype = c_void_p
            self._library.dnnl_memory_desc_get_size.argtypes = (c_void_p,)
            self._library.dnnl_memory_desc_get_size.restype = c_size_t
            self._library.dnnl_memory_desc_equal.argtypes = (c_void_p, c_void_p)
        except AttributeError as error:
            raise LibraryError(
                f"not a oneDNN {MAJOR} library ({error}): give another --library-file"
            ) from error
        self.version = f"{version.major}.{version.minor}.{version.patch}"
        if version.major != MAJOR:
            raise LibraryError(f"oneDNN {self.version} is not supported: install version {MAJOR}.x")

    def call(self, function: str, *arguments: object) -> None:
        """Call a function that returns a status; raises :class:`OneDNNError` where it fails."""
        status = getattr(self._library, f"dnnl_{function}")(*arguments)
        if status:
            raise OneDNNError(function, status)

    def create(self, function: str, *arguments: object) -> c_void_p:
        """Return the object that a function creates at its first argument."""
        made = c_void_p()
        self.call(function, byref(made), *arguments)
        return made

    def described(self, description: c_void_p, query: int) -> c_void_p | None:
        """Return the memory descriptor of a primitive's tensor; the primitive owns it."""
        found = self._library.dnnl_primitive_desc_query_md(description, query, 0)
        return None if found is None else c_void_p(found)

    def size(self, memory: c_void_p) -> int:
        """Return the bytes of a memory descriptor's tensor."""
        return int(self._library.dnnl_memory_desc_get_size(memory))

    def same(self, one: c_void_p, other: c_void_p) -> bool:
        """Return whether two memory descriptors are equal."""
        return bool(self._library.dnnl_memory_desc_equal(one, other))

    def implementation(self, description: c_void_p) -> str:
        """Return the name of a primitive descriptor's current implementation."""
        name = c_char_p()
        self.call("primitive_desc_query", description, IMPLEMENTATION, 0, byref(name))
        return (name.value or b"").decode()

    def set_threads(self, threads: int) -> None:
        """Set the number of OpenMP threads; raises :class:`LibraryError` without OpenMP."""
        try:
            self._library.omp_set_num_threads(threads)
        except AttributeError as error:
            raise LibraryError(
                "this oneDNN is built without OpenMP: leave out --threads"
            ) from error

    @property
    def threads(self) -> int | None:
        """Return the number of OpenMP threads, None where the library is built without OpenMP."""
        try:
            return int(self._library.omp_get_max_threads())
        except AttributeError:
            return None
