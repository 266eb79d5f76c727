"""Windows and axes in closed form."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.flops.layer_formulas import Layer
from traceana.model.manifest_rows import flops
from traceana.model.recorded_calls import (
    channels_first,
    effective_padding,
    output_size,
    per_axis,
    same_pads,
)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads"),
    [
        (5, 3, 1, (1, 1)),
        (5, 2, 1, (0, 1)),  # of one zero TensorFlow puts it behind
        (224, 7, 2, (2, 3)),  # ResNet's first convolution in Keras
        (4, 1, 2, (0, 0)),
        (6, 3, 3, (0, 0)),
    ],
)
def test_same_padding(size: int, kernel: int, stride: int, pads: tuple[int, int]) -> None:
    assert same_pads(size, kernel, stride) == pads


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 5), st.integers(1, 3))
def test_same_padding_gives_as_many_outputs_as_strides_fit(
    size: int, kernel: int, stride: int, dilation: int
) -> None:
    pads = same_pads(size, kernel, stride, dilation)
    assert output_size(size, kernel, stride, pads, dilation) == -(-size // stride)
    assert 0 <= pads[1] - pads[0] <= 1


@given(st.integers(9, 300), st.integers(1, 9), st.integers(1, 5), st.integers(0, 4))
def test_zeros_that_a_layer_adds_by_itself_are_inferred(
    size: int, kernel: int, stride: int, zeros: int
) -> None:
    out = output_size(size, kernel, stride, (zeros, zeros))
    (found,) = effective_padding((1, 1, size), (1, 1, out), [kernel], [stride], ((0, 0),), [1])
    assert output_size(size, kernel, stride, found) == out
    assert found[0] <= zeros and found[0] == found[1]


def test_declared_zeros_stay_where_they_give_the_output() -> None:
    assert effective_padding((1, 1, 8), (1, 1, 4), [3], [2], ((0, 1),), [1]) == ((0, 1),)


@pytest.mark.parametrize(
    ("shape", "type_", "first"),
    [
        ((8, 32, 16, 3), "Conv2d", (8, 3, 32, 16)),
        ((8, 32, 3), "Conv1d", (8, 3, 32)),
        ((8, 4, 32, 16, 3), "ReLU", (8, 3, 4, 32, 16)),
        ((8, 32, 3), "ReLU", (8, 32, 3)),  # a sequence
        ((8, 32, 16, 3), "Linear", (8, 32, 16, 3)),
        ((8, 32, 16, 3), "LayerNorm", (8, 32, 16, 3)),
        ((8, 3), "BatchNorm1d", (8, 3)),
    ],
)
def test_channels_first(shape: tuple[int, ...], type_: str, first: tuple[int, ...]) -> None:
    assert channels_first(shape, type_, "channels_last") == first
    assert channels_first(shape, type_, "channels_first") == shape
    assert channels_first(shape, type_, None) == shape


def test_per_axis() -> None:
    assert per_axis(3, 2) == per_axis([3], 2) == per_axis((3, 3), 2) == (3, 3)


def work(
    type_: str,
    inputs: tuple[tuple[int, ...], ...],
    output: tuple[int, ...],
    parameters: Mapping[str, tuple[int, ...]] | None = None,
    kernel: tuple[int, ...] | None = None,
    groups: int | None = None,
) -> int | None:
    return flops(Layer(type_, inputs, (output,), parameters or {}, kernel, groups))


def test_flops_in_closed_form() -> None:
    images, made = (2, 4, 9, 9), (2, 6, 7, 7)
    assert work("Conv2d", (images,), made, None, (3, 3), 2) == 2 * 2 * 6 * 49 * 2 * 9
    # Each input of a transposed convolution meets the whole window.
    assert work("ConvTranspose2d", (images,), made, None, (3, 3), 1) == 2 * 2 * 4 * 81 * 6 * 9
    separable = {"weight": (4, 1, 3, 3), "pointwise_kernel": (6, 4, 1, 1)}
    assert work("SeparableConv2d", (images,), made, separable, (3, 3), 4) == (
        2 * 2 * 4 * 49 * 9 + 2 * 2 * 6 * 49 * 4
    )
    assert work("Linear", ((2, 5, 3),), (2, 5, 7), {"weight": (7, 3)}) == 2 * 10 * 3 * 7
    # Two axes made of one: 12 rows of 3 with a 3 x 40 matrix.
    assert work("Linear", ((2, 6, 3),), (2, 6, 5, 8), {"weight": (40, 3)}) == 2 * 12 * 3 * 40
    attention = {f"{part}.weight": (8, 8) for part in ("query", "key", "value", "out")}
    assert work("MultiheadAttention", ((2, 5, 8),), (2, 5, 8), attention) == (
        4 * 2 * 10 * 8 * 8 + 2 * 2 * 2 * 5 * 5 * 8
    )
    assert work("Add", (images, images, images), images) == 2 * 2 * 4 * 81
    assert work("Flatten", (images,), (2, 324)) == 0


def test_unknown_flops_are_null() -> None:
    assert work("Mystery", ((2, 3),), (2, 3)) is None
    assert work("LRN", ((2, 3, 4, 4),), (2, 3, 4, 4)) is None
    assert work("Conv2d", ((2, 3, 4, 4),), (2, 3, 4, 4), None, (1, 1), 2) is None
    assert work("Linear", ((2, 6),), (2, 5), {"weight": (5, 7)}) is None
    assert work("MultiheadAttention", ((2, 5, 8),), (2, 5, 8), {}) is None
