"""The convolutions of a network that can be measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.algorithms.study import Layer


class LayerError(ValueError):
    """No layer can be measured; the message has the reason."""


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the layer manifest in a file. Raises :class:`LayerError` where it is none."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise LayerError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != "traceana-layers":
        raise LayerError(f"{path} is not a layer manifest: write one with traceana.describe")
    return content


def convolutions(manifest: Mapping[str, Any], only: list[str] | None = None) -> tuple[Layer, ...]:
    """Return the two-dimensional convolutions in order, or those of the paths ``only``.

    Raises :class:`LayerError` where there is none, or a path of ``only`` is not a convolution.
    """
    found = {
        each["path"]: _layer(each)
        for each in manifest["layers"]
        if each["type"] == "Conv2d" and len(each.get("kernel", ())) == 2
    }
    if not found:
        raise LayerError(
            f"{manifest['network']} has no two-dimensional convolution: choose another network"
        )
    for path in only or ():
        if path not in found:
            raise LayerError(f"no convolution is named {path!r}: choose from {', '.join(found)}")
    return tuple(found[path] for path in only or found)


def _layer(described: Mapping[str, Any]) -> Layer:
    (_, in_channels, *given), (_, out_channels, *made) = (
        described["inputs"][0],
        described["outputs"][0],
    )
    try:
        (top, bottom), (left, right) = described["padding"]
        return Layer(
            path=described["path"],
            in_channels=in_channels,
            out_channels=out_channels,
            input=(given[0], given[1]),
            output=(made[0], made[1]),
            kernel=_pair(described["kernel"]),
            stride=_pair(described["stride"]),
            padding=((top, bottom), (left, right)),
            dilation=_pair(described.get("dilation", (1, 1))),
            groups=described.get("groups", 1),
        )
    except (IndexError, KeyError) as error:
        raise LayerError(
            f"{described['path']}: {error} is not in the manifest: write the manifest again"
        ) from error


def _pair(sizes: Any) -> tuple[int, int]:
    first, second = sizes
    return first, second
