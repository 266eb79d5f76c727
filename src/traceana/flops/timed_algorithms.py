"""The file of timed convolution algorithms. See ``docs/studies.md``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from traceana.errors import CorruptError, UnknownFormatError
from traceana.files import UNDECODABLE, content
from traceana.flops.call import UncountableError
from traceana.flops.convolution import Convolution
from traceana.flops.executed import Direction
from traceana.trace.taxonomy import ALGORITHMS

FORMAT: Final = "traceana-algorithms"
VERSION: Final = 1
"""Increased when a field changes its name, type or meaning, not when one is added."""

Extent = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**32)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Pair = tuple[Positive, Positive]

Status = Literal["ok", "unsupported", "out_of_memory", "failed", "wrong", "left_out"]
"""``unsupported``: the library does not support this shape. ``wrong``: the result differs from that
of a direct convolution. ``left_out``: it was not run; ``reason`` has the cause."""

_WRITE = "write one with python -m workloads.algorithms"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A two-dimensional convolution of one image: extents are (height, width).

    ``padding`` is one pair (before, after) per dimension.
    """

    path: str
    in_channels: Positive
    out_channels: Positive
    input: Pair
    output: Pair
    kernel: Pair
    stride: Pair
    padding: tuple[tuple[Extent, Extent], tuple[Extent, Extent]]
    dilation: Pair
    groups: Positive = 1

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` if no convolution has the extents."""
        try:
            self.convolution(1)
        except UncountableError as error:
            raise ValueError(f"layer {self.path!r}: {error}") from None
        for side in (0, 1):
            before, after = self.padding[side]
            reach = self.dilation[side] * (self.kernel[side] - 1) + 1
            room = self.input[side] + before + after - reach
            if room < 0 or room // self.stride[side] + 1 != self.output[side]:
                raise ValueError(f"layer {self.path!r}: the output size does not match the input")

    def convolution(self, batch: int) -> Convolution:
        """Return the extents of the layer at this batch size, for ``traceana.flops``."""
        return Convolution(
            batch=batch,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            window=self.kernel,
            output=self.output,
            input=self.input,
            groups=self.groups,
            stride=self.stride,
            dilation=self.dilation,
        )


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One algorithm of one layer in one direction at one batch size.

    ``algorithm`` is one of ``taxonomy.ALGORITHMS``, ``name`` the library's own name,
    ``implementation`` the implementation that the library reports. ``times_ns`` are the timed runs
    in order; they are given if and only if ``status`` is ``ok``. Otherwise ``reason`` is given.
    ``search_ns`` is the time of the library's own search for the algorithm. ``reorder_ns`` are the
    times of the reorders of operands and result between plain layouts and those of the
    implementation, 0 for plain layouts; ``reorder_bytes`` is the size of the copies. ``error`` is
    the root mean square difference from a direct convolution in double precision, in units of the
    square root of the sum of the squared products.
    """

    layer: str
    direction: Direction
    batch: Positive
    algorithm: str
    name: str
    status: Status
    implementation: str | None = None
    reason: str | None = None
    times_ns: tuple[Count, ...] = ()
    search_ns: Count | None = None
    workspace_bytes: Count | None = None
    reorder_ns: tuple[Count, ...] = ()
    reorder_bytes: Count | None = None
    math_type: str | None = None
    deterministic: bool | None = None
    error: Annotated[float, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` if the fields are inconsistent."""
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"unknown algorithm {self.algorithm!r}")
        if (self.status == "ok") != bool(self.times_ns):
            raise ValueError("times are required if and only if the status is ok")
        if (self.status == "ok") != (self.reason is None):
            raise ValueError("a reason is required if and only if the status is not ok")


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The device of the measurement; ``threads`` is for a CPU, ``memory_bytes`` for a GPU."""

    kind: Literal["cpu", "gpu"]
    name: str
    memory_bytes: Count | None = None
    threads: Positive | None = None


class AlgorithmStudy(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements of one run.

    ``layout`` is the order of the axes in memory, ``own`` if each implementation has its own.
    ``tolerance`` is the limit of ``error``. ``versions`` are the versions of other software than
    the library. ``ended`` is the reason for an incomplete measurement, ``None`` for a complete one.
    """

    format: Literal["traceana-algorithms"] = FORMAT
    version: int = VERSION
    library: Literal["cuDNN", "oneDNN"]
    library_version: str
    device: Device
    network: str
    precision: Literal["fp32", "tf32"]
    layout: Literal["nchw", "nhwc", "own"]
    warm_up: Count
    tolerance: float
    recorded: str
    versions: dict[str, str]
    ended: str | None
    layers: tuple[Layer, ...]
    measurements: tuple[Measurement, ...]

    def __post_init__(self) -> None:
        """Raise :class:`ValueError` on a measurement without its layer, or layers with one path."""
        paths = {layer.path for layer in self.layers}
        if len(paths) != len(self.layers):
            raise ValueError("two layers have the same path")
        for each in self.measurements:
            if each.layer not in paths:
                raise ValueError(f"a measurement has an unknown layer {each.layer!r}")


class _Header(msgspec.Struct):
    format: str
    version: int


def is_study(path: str | os.PathLike[str]) -> bool:
    """Return whether the file begins as a study does; false where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return FORMAT.encode() in file.read(256)
    except OSError:
        return False


def read(path: str | os.PathLike[str]) -> AlgorithmStudy:
    """Return the algorithm study in a file.

    Raises :class:`UnknownFormatError` if it is not an algorithm study or has another version,
    :class:`CorruptError` if it is damaged or inconsistent, and ``NotFoundError``,
    ``UnknownFormatError`` or ``NotFoundError`` if it cannot be read.
    """
    source = Path(path)
    text = content(source, "algorithm study")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except UNDECODABLE:
        raise UnknownFormatError(f"{source} is not an algorithm study: {_WRITE}") from None
    if header.format != FORMAT:
        raise UnknownFormatError(f"{source} is not an algorithm study: {_WRITE}")
    if header.version != VERSION:
        raise UnknownFormatError(
            f"{source} is an algorithm study of version {header.version}, and this traceana reads "
            f"{VERSION}: measure it again"
        )
    try:
        return msgspec.json.decode(text, type=AlgorithmStudy)
    except UNDECODABLE as error:
        raise CorruptError(
            f"{source} is a damaged algorithm study: {error}; measure it again"
        ) from None
