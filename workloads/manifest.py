"""The layers of a run as data, for readers whose trace names none."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workloads.options import RunOptions
from workloads.shapes import layer_shapes


def layer_manifest(options: RunOptions) -> dict[str, Any]:
    """The network's layers in order of execution, as plain JSON values.

    ``input`` and ``output`` have the batch as first dimension; ``weight`` and ``bias`` are absent
    where a layer has none. The other keys of a layer are those of its kind in
    :mod:`workloads.network`.
    """
    layers = []
    for shape in layer_shapes(options.describe_network()):
        layer: dict[str, Any] = {"path": shape.layer.name, "kind": type(shape.layer).__name__}
        layer |= {key: value for key, value in asdict(shape.layer).items() if key != "name"}
        layer |= {
            "input": [options.batch, *shape.input],
            "output": [options.batch, *shape.output],
        }
        if shape.weight is not None and shape.bias is not None:
            layer |= {"weight": list(shape.weight), "bias": list(shape.bias)}
        layers.append(layer)
    return {"network": options.network, "batch": options.batch, "layers": layers}
