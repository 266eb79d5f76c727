"""A convolution as cuDNN's descriptors, and its tensors on the device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass
from typing import Any

from workloads.algorithms.accelerator import Accelerator
from workloads.algorithms.cudnn_api import (
    CROSS_CORRELATION,
    FLOAT,
    FORMATS,
    FUNCTIONS,
    CuDNN,
    CuDNNError,
    Functions,
    Operand,
)
from workloads.algorithms.direct import Expected, Shape, Sum, expected, shapes
from workloads.algorithms.study import Direction, Layer


@dataclass(frozen=True)
class Problem:
    """One convolution: descriptors and tensors of both operands and the result, in this order."""

    layer: Layer
    direction: Direction
    batch: int
    functions: Functions
    descriptors: tuple[c_void_p, c_void_p, c_void_p]
    convolution: c_void_p
    tensors: tuple[Any, Any, Any]
    expected: Expected

    @property
    def described(self) -> tuple[c_void_p, ...]:
        """The descriptors in the order of the queries' arguments: operands, convolution, result."""
        first, second, result = self.descriptors
        return first, second, self.convolution, result

    @property
    def operands(self) -> tuple[object, ...]:
        """Both operands, each as descriptor and address."""
        (first, second, _), (one, two, _) = self.descriptors, self.tensors
        return first, one.data_ptr(), second, two.data_ptr()

    @property
    def output(self) -> tuple[object, object]:
        """The result's descriptor and address."""
        return self.descriptors[2], self.tensors[2].data_ptr()


class Describer:
    """Describes convolutions to cuDNN, in one layout."""

    def __init__(self, api: CuDNN, accelerator: Accelerator, layout: str) -> None:
        self._api, self._accelerator, self._layout = api, accelerator, layout

    def problem(self, stack: ExitStack, layer: Layer, direction: Direction, batch: int) -> Problem:
        """Return descriptors, which ``stack`` destroys, and tensors with random operands.

        Raises ``MemoryError`` where they do not fit, ``CuDNNError`` where cuDNN rejects them.
        """
        functions = FUNCTIONS[direction]
        x, w, y = shapes(layer, batch)
        shape: Mapping[Operand, Shape] = {"x": x, "w": w, "y": y}
        first, second, result = functions.operands
        one = self._accelerator.random(shape[first], self._layout)
        two = self._accelerator.random(shape[second], self._layout)
        three = self._accelerator.unset(shape[result], self._layout)
        order = FORMATS[self._layout]
        described: dict[Operand, c_void_p] = {}
        for operand in functions.operands:
            # The type is before the format for filters, after it for tensors.
            kind = "Filter" if operand == "w" else "Tensor"
            words = (FLOAT, order) if operand == "w" else (order, FLOAT)
            described[operand] = self._made(stack, f"{kind}Descriptor")
            self._api.call(
                f"cudnnSet{kind}4dDescriptor", described[operand], *words, *shape[operand]
            )
        convolution = self._convolution(stack, layer)
        self._check_output(convolution, described["x"], described["w"], y)
        return Problem(
            layer=layer,
            direction=direction,
            batch=batch,
            functions=functions,
            descriptors=(described[first], described[second], described[result]),
            convolution=convolution,
            tensors=(one, two, three),
            expected=expected(layer, direction, batch, (one, two), _dot),
        )

    def _convolution(self, stack: ExitStack, layer: Layer) -> c_void_p:
        made = self._made(stack, "ConvolutionDescriptor")
        (top, _), (left, _) = layer.padding
        self._api.call(
            "cudnnSetConvolution2dDescriptor",
            *(made, top, left, *layer.stride, *layer.dilation, CROSS_CORRELATION, FLOAT),
        )
        self._api.call("cudnnSetConvolutionGroupCount", made, layer.groups)
        return made

    def _check_output(self, convolution: c_void_p, x: c_void_p, w: c_void_p, y: Shape) -> None:
        sizes = tuple(c_int() for _ in y)
        self._api.call(
            "cudnnGetConvolution2dForwardOutputDim", convolution, x, w, *map(byref, sizes)
        )
        if (given := tuple(size.value for size in sizes)) != y:
            raise CuDNNError(f"cuDNN computes the output shape {given}, not {y}", "failed")

    def _made(self, stack: ExitStack, kind: str) -> c_void_p:
        made = self._api.create(kind)
        stack.callback(self._api.call, f"cudnnDestroy{kind}", made)
        return made


def _dot(one: Any, other: Any) -> Sum:
    products = one.double() * other.double()
    return float(products.sum()), float((products * products).sum())
