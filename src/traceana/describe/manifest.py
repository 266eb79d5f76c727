"""The layers of a model as data, and the file that holds them. See ``docs/manifest.md``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from traceana.errors import (
    BadModelError,
    CannotWriteError,
)
from traceana.files import content, lined, write_whole

FORMAT: Final = "traceana-layers"
VERSION: Final = 1
"""Raised whenever a field changes its name, type or meaning; fields may be added without."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Shape = tuple[Size, ...]
Sizes = tuple[Size, ...]
Layout = Literal["channels_first", "channels_last"]


class Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer. Shapes have the batch first and the channels before the spatial axes.

    ``type`` is of :mod:`traceana.describe.vocabulary`, or the framework's own name where that has
    none; ``framework_type`` is always the framework's own. ``layout`` is how the framework holds
    the channels of the layer's images in memory, None for layers without images. ``kernel``,
    ``stride``, ``padding`` and ``dilation`` have one entry a spatial axis, ``padding`` one pair
    (before, after). ``inputs`` and ``outputs`` are those of the first call; ``flops`` counts all
    ``calls`` of one forward pass, a multiply-accumulate as 2, and is None where nobody knows.
    ``order`` are the places of a layer that ran several times in the sequence of all calls of a
    forward pass, empty where that is not known; layers that ran once have the places between.
    """

    path: str
    type: str
    framework_type: str
    position: Count
    calls: Count = 1
    order: tuple[Count, ...] = ()
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    layout: Layout | None = None
    kernel: Sizes | None = None
    stride: Sizes | None = None
    padding: tuple[tuple[Size, Size], ...] | None = None
    dilation: Sizes | None = None
    groups: Size | None = None
    parameters: dict[str, Shape] = {}
    parameter_count: Count = 0
    flops: Count | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of the model, its shape in the convention of :class:`Layer`."""

    shape: Shape
    dtype: str
    layout: Layout | None = None
    name: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A model's layers in order of execution.

    ``framework`` is None for a description that is of no framework. ``parameter_count`` is the
    whole model's, also of what belongs to no layer; ``flops`` is the sum over the layers of which
    it is known.
    """

    format: Literal["traceana-layers"] = FORMAT
    version: int = VERSION
    network: str
    framework: str | None
    inputs: tuple[Input, ...]
    parameter_count: Count
    flops: Count
    layers: tuple[Layer, ...]

    def around(self) -> frozenset[str]:
        """Return the paths of rows that are the functions of a module around other layers."""
        parts = [layer.path.split(".") for layer in self.layers]
        inside = {".".join(one[:depth]) for one in parts for depth in range(1, len(one))}
        whole = {
            layer.path
            for layer in self.layers
            if len(self.layers) > 1
            and layer.path == layer.type == layer.framework_type.rpartition(".")[2]
        }
        return frozenset(inside | whole)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to ``path``, a layer a line. Raises ``CannotWriteError``."""
        target = Path(path)
        try:
            write_whole(target, self.to_json().encode())
        except OSError as error:
            raise CannotWriteError(
                f"{target}: the layer manifest cannot be written ({error.strerror}): give another "
                "path"
            ) from error

    def to_json(self) -> str:
        """Return the file's text."""
        return lined(self, "layers")


def manifest(
    *,
    network: str,
    framework: str | None,
    inputs: tuple[Input, ...],
    layers: tuple[Layer, ...],
    parameter_count: int | None = None,
) -> Manifest:
    """Return the manifest of ``layers``; ``parameter_count`` is the sum over them unless told."""
    total = sum(layer.parameter_count for layer in layers)
    return Manifest(
        network=network,
        framework=framework,
        inputs=inputs,
        parameter_count=total if parameter_count is None else parameter_count,
        flops=sum(layer.flops or 0 for layer in layers),
        layers=layers,
    )


class _Header(msgspec.Struct):
    format: str
    version: int


def read(path: str | os.PathLike[str]) -> Manifest:
    """Read a layer manifest.

    Raises :class:`BadModelError` where the file is none or of another version, and
    ``NotFoundError``, ``IsDirectoryError`` or ``UnreadableError`` where it cannot be read.
    """
    source = Path(path)
    text = content(source, "layer manifest")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _bad(source, "is no layer manifest", "write one with traceana.describe") from None
    if header.format != FORMAT:
        raise _bad(source, "is no layer manifest", "write one with traceana.describe")
    if header.version != VERSION:
        raise _bad(
            source,
            f"is a layer manifest of version {header.version}, not {VERSION}",
            "write it anew with traceana.describe",
        )
    try:
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(source, f"is a damaged layer manifest: {error}", "write it anew") from None


def _bad(source: Path, what: str, todo: str) -> BadModelError:
    return BadModelError(f"{source} {what}; {todo}")
