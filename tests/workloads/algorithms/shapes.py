"""Small convolutions of every kind."""

from __future__ import annotations

from typing import Any

from workloads.algorithms.study import Layer


def layer(path: str = "conv", **given: Any) -> Layer:
    """A small 3x3 convolution with unequal sides, or another."""
    fields: dict[str, Any] = {
        **{"in_channels": 4, "out_channels": 6, "input": (9, 7), "output": (9, 7)},
        **{"kernel": (3, 3), "stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)},
        **given,
    }
    return Layer(path=path, **fields)


LAYERS = (
    layer("plain"),
    layer("strided", stride=(2, 1), padding=((1, 1), (0, 0)), output=(5, 5)),
    layer("grouped", groups=2, kernel=(5, 3), padding=((2, 2), (1, 1))),
    layer("depthwise", in_channels=4, out_channels=8, groups=4),
    layer("dilated", dilation=(2, 1), padding=((2, 2), (1, 1))),
    layer("pointwise", kernel=(1, 1), padding=((0, 0), (0, 0)), stride=(2, 2), output=(5, 4)),
    # Pixels between the windows have no gradient.
    layer("sparse", stride=(4, 4), padding=((0, 0), (0, 0)), output=(2, 2)),
)
