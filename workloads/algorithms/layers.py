"""The convolutions of a network that can be measured."""

from __future__ import annotations

from traceana.flops.timed_algorithms import Layer
from traceana.model import Manifest
from traceana.model.manifest import Layer as Described


class LayerError(ValueError):
    """No layer can be measured; the message has the reason."""


def convolutions(manifest: Manifest, only: list[str] | None = None) -> tuple[Layer, ...]:
    """Return the two-dimensional convolutions in order, or those of the paths ``only``.

    Raises :class:`LayerError` where there is none, or a path of ``only`` is not a convolution.
    """
    found = {
        each.path: _layer(each)
        for each in manifest.layers
        if each.type == "Conv2d" and each.kernel is not None and len(each.kernel) == 2
    }
    if not found:
        raise LayerError(
            f"{manifest.network} has no two-dimensional convolution: choose another network"
        )
    for path in only or ():
        if path not in found:
            raise LayerError(f"no convolution is named {path!r}: choose from {', '.join(found)}")
    return tuple(found[path] for path in only or found)


def _layer(described: Described) -> Layer:
    (_, in_channels, *given), (_, out_channels, *made) = described.inputs[0], described.outputs[0]
    kernel, stride = described.kernel, described.stride
    padding, dilation = described.padding, described.dilation
    if kernel is None or stride is None or padding is None:
        raise LayerError(
            f"{described.path}: its window is not in the manifest: write the manifest again"
        )
    try:
        return Layer(
            path=described.path,
            in_channels=in_channels,
            out_channels=out_channels,
            input=(given[0], given[1]),
            output=(made[0], made[1]),
            kernel=(kernel[0], kernel[1]),
            stride=(stride[0], stride[1]),
            padding=(padding[0], padding[1]),
            dilation=(1, 1) if dilation is None else (dilation[0], dilation[1]),
            groups=described.groups or 1,
        )
    except (IndexError, ValueError) as error:
        raise LayerError(f"{described.path}: {error}") from error
