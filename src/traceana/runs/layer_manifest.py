"""The layer manifest: its schema, its file, and the lookup of a trace's manifest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from traceana.errors import CannotWriteError, InvalidInputError
from traceana.files import UNDECODABLE, content, write_whole
from traceana.runs.run_files import LAYERS_FILE, LAYERS_SUFFIX, is_name_beside

FORMAT: Final = "traceana-layers"
VERSION: Final = 1
"""Increased when a field changes its name, type or meaning, not when one is added."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Shape = tuple[Size, ...]
Sizes = tuple[Size, ...]
Layout = Literal["channels_first", "channels_last"]

_VIEWS: Final = frozenset(("Flatten", "Unflatten", "Identity", "Reshape", "Sequential"))
"""Types of layers that are another view of their input; a ``Sequential`` without layers is one."""


class Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer. Shapes have the batch first and the channels before the spatial axes.

    ``type`` is PyTorch's class name for the layer (``Conv2d``) in all frameworks; ``LRN`` for local
    response normalization; the framework's own name where PyTorch has no such layer
    (``SeparableConv2d``, ``Add``). ``framework_type`` is always the framework's own. ``layout`` is
    the memory layout of the layer's images, None for layers without images. ``kernel``,
    ``stride``, ``padding`` and ``dilation`` have one entry per spatial axis, ``padding`` a pair
    (before, after). ``inputs`` and ``outputs`` are those of the first call; ``flops`` counts all
    ``calls`` of one forward pass, a multiply-accumulate as 2, and is None where unknown. ``order``
    are the positions of a layer with several calls in the sequence of all calls of a forward pass,
    empty where unknown; layers with one call have the positions in between. ``input_gradient`` is
    whether the backward pass computes the gradient of its input: not if nothing before the layer is
    trained. None is unknown.
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
    input_gradient: bool | None = None

    @property
    def computes_nothing(self) -> bool:
        """Whether the layer is another view of its input, as ``Flatten``."""
        return self.type in _VIEWS


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input of the model, its shape in the convention of :class:`Layer`."""

    shape: Shape
    dtype: str
    layout: Layout | None = None
    name: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A model's layers in order of execution.

    ``framework`` is None for a description without one. ``parameter_count`` is the whole model's,
    including parameters outside of layers; ``flops`` is the sum over the layers with known FLOPs.
    """

    format: Literal["traceana-layers"] = FORMAT
    version: int = VERSION
    network: str
    framework: str | None
    inputs: tuple[Input, ...]
    parameter_count: Count
    flops: Count
    layers: tuple[Layer, ...]

    def container_paths(self) -> frozenset[str]:
        """Return the paths of rows that count the functions of a module with inner layers."""
        parts = [layer.path.split(".") for layer in self.layers]
        inside = {".".join(path[:depth]) for path in parts for depth in range(1, len(path))}
        whole = {
            layer.path
            for layer in self.layers
            if len(self.layers) > 1
            and layer.path == layer.type == layer.framework_type.rpartition(".")[2]
        }
        return frozenset(inside | whole)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to ``path``, one line per layer. Raises ``CannotWriteError``."""
        target = Path(path)
        try:
            write_whole(target, self.to_json().encode())
        except OSError as error:
            raise CannotWriteError(
                f"{target}: the layer manifest cannot be written ({error.strerror}): give another "
                "path"
            ) from error

    def to_json(self) -> str:
        """Return the manifest as JSON, one line per layer."""
        fields = msgspec.to_builtins(self)
        layers = ",\n".join(f"  {_json(layer)}" for layer in fields.pop("layers"))
        lines = [f" {_json(name)}: {_json(value)}" for name, value in fields.items()]
        lines.append(f' "layers": [\n{layers}\n ]' if layers else ' "layers": []')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def manifest(
    *,
    network: str,
    framework: str | None,
    inputs: tuple[Input, ...],
    layers: tuple[Layer, ...],
    parameter_count: int | None = None,
) -> Manifest:
    """Return the manifest of ``layers``; ``parameter_count`` is their sum unless given."""
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
    """Return the manifest in a file.

    Raises :class:`InvalidInputError` if the file is not a manifest or has another version, and the
    errors of :func:`~traceana.files.content`.
    """
    source = Path(path)
    text = content(source, "layer manifest")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except UNDECODABLE:
        raise _bad(source, "is not a layer manifest", "write one with traceana.describe") from None
    if header.format != FORMAT:
        raise _bad(source, "is not a layer manifest", "write one with traceana.describe")
    if header.version != VERSION:
        raise _bad(
            source,
            f"is a layer manifest of version {header.version}, and this traceana reads {VERSION}",
            "write it again with traceana.describe",
        )
    try:
        return msgspec.json.decode(text, type=Manifest)
    except UNDECODABLE as error:
        raise _bad(
            source,
            f"is a damaged layer manifest: {error}",
            "write it again with traceana.describe",
        ) from None


def _bad(source: Path, problem: str, action: str) -> InvalidInputError:
    return InvalidInputError(f"{source}: {problem}; {action}")


def find(trace_path: str | os.PathLike[str]) -> Path | None:
    """Return the layer manifest of the trace, None without one or with several.

    It is ``STEM.layers.json`` next to a trace ``STEM.…`` with any suffixes
    (``.json.gz``, ``.pt.trace.json``), or the only ``*.layers.json`` or ``layers.json`` of its
    folder, unless another trace there has that stem. For a folder of traces it is the one in it.
    The file is not read.
    """
    trace = Path(trace_path)
    stem = trace.name
    while stem:
        beside = trace.with_name(stem + LAYERS_SUFFIX)
        if beside.is_file():
            return beside
        shorter = stem.rpartition(".")[0]
        stem = "" if shorter == stem else shorter
    return _alone_in(trace if trace.is_dir() else trace.parent)


def _alone_in(folder: Path) -> Path | None:
    """Return the only manifest in ``folder``, unless a trace there has its stem."""
    # By names: a status of each file of a thousand ranks takes longer than to read a rank.
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return None
    manifests = [
        folder / name
        for name in names
        if (name.endswith(LAYERS_SUFFIX) or name == LAYERS_FILE) and (folder / name).is_file()
    ]
    if len(manifests) != 1:
        return None
    (manifest,) = manifests
    if manifest.name == LAYERS_FILE:
        return manifest
    stem = manifest.name.removesuffix(LAYERS_SUFFIX)
    has_other_trace = any(
        name.startswith(f"{stem}.") and not is_name_beside(name) and (folder / name).is_file()
        for name in names
    )
    return None if has_other_trace else manifest
