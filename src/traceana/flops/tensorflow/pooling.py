"""TensorFlow's pooling: its window is an attribute and comes from beside the call."""

from __future__ import annotations

from math import prod

from traceana.flops.call import Call
from traceana.flops.model import Cost, Shape, UncountableError
from traceana.flops.neutral import pooling
from traceana.flops.registry import operator


@operator("MaxPool", "MaxPoolV2", "MaxPool3D", "_MklMaxPool", "_MklNativeMaxPool")
def max_pool(call: Call) -> tuple[Cost, ...]:
    """Image; window and the output's shape from beside the call."""
    window, output = _window(call), call.result()
    return (pooling.maximum(call.elements(0), prod(output), prod(window), call.size(0)),)


@operator("AvgPool", "AvgPool3D", "_MklAvgPool", "_MklNativeAvgPool")
def average_pool(call: Call) -> tuple[Cost, ...]:
    """Image; window and the output's shape from beside the call."""
    window, output = _window(call), call.result()
    return (pooling.average(call.elements(0), prod(output), prod(window), call.size(0)),)


@operator("MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad", "_MklNativeMaxPoolGrad")
def max_pool_backward(call: Call) -> tuple[Cost, ...]:
    """Image, output, the output's gradient: the maxima are found again by comparing.

    Their comparisons are left out, as of a library that keeps the places.
    """
    inputs, outputs = call.elements(0), call.elements(2)
    return (pooling.maximum_backward(inputs, outputs, call.size(0), index_size=None),)


def _window(call: Call) -> Shape:
    if call.window is None:
        raise UncountableError("the window was not recorded")
    return call.window
