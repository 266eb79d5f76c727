"""Single elements of results, against PyTorch's whole ones in double precision."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.workloads.algorithms.shapes import LAYERS, layer
from workloads.algorithms.direct import SAMPLES, Expected, Sum, expected, shapes, wrong
from workloads.algorithms.study import Direction, Layer

DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")
BATCH = 3


def dot(one: Any, other: Any) -> Sum:
    products = one * other
    return float(products.sum()), float((products * products).sum())


def operands(shape: Layer) -> dict[str, Any]:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(1)
    made = zip("xwy", shapes(shape, BATCH), strict=True)
    return {name: torch.randn(extents, dtype=torch.float64) for name, extents in made}


def whole(shape: Layer, direction: Direction, given: dict[str, Any]) -> Any:
    import torch

    x, w, y = (given[name].clone().requires_grad_() for name in "xwy")
    result = torch.nn.functional.conv2d(
        *(x, w),
        stride=shape.stride,
        padding=(shape.padding[0][0], shape.padding[1][0]),
        dilation=shape.dilation,
        groups=shape.groups,
    )
    if direction == "fprop":
        return result.detach()
    result.backward(y.detach())
    found = x.grad if direction == "dgrad" else w.grad
    assert found is not None
    return found


READS: dict[Direction, str] = {"fprop": "xw", "dgrad": "wy", "wgrad": "xy"}


@pytest.mark.frameworks
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", LAYERS, ids=lambda each: each.path)
def test_elements_are_those_of_the_whole(shape: Layer, direction: Direction) -> None:
    given = operands(shape)
    first, second = (given[name] for name in READS[direction])
    known = expected(shape, direction, BATCH, (first, second), dot)
    result = whole(shape, direction, given)
    assert len(known.positions) == len(known.values) == SAMPLES
    assert (known.error(result) or 0.0) < 1e-12
    # NumPy's arrays are taken alike.
    same = expected(shape, direction, BATCH, (first.numpy(), second.numpy()), dot)
    assert same.values == pytest.approx(known.values, rel=1e-12)
    assert (known.error(result.numpy()) or 0.0) < 1e-12


@pytest.mark.frameworks
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_one_tap_too_few_is_noticed(direction: Direction) -> None:
    """The smallest mistake an algorithm can make: one product in each sum is missing."""
    shape = layer(in_channels=64, out_channels=64, input=(16, 16), output=(16, 16))
    given = operands(shape)
    first, second = (given[name] for name in READS[direction])
    known = expected(shape, direction, BATCH, (first, second), dot)
    right = whole(shape, direction, given)
    if direction == "wgrad":
        given["y"][0, :, 3, 3] = 0
    else:
        given["w"][0:1, :, 1, 1] = given["w"][:, 0:1, 1, 1] = 0
    error = known.error(whole(shape, direction, given))
    assert error is not None
    assert error > 1e-2
    assert (known.error(right) or 0.0) < 1e-12


def test_what_is_no_number_has_no_error() -> None:
    known = Expected(((0, 0, 0, 0), (0, 0, 0, 1)), (1.0, 0.0), (2.0, 0.0))
    assert known.error(np.array([[[[1.5, 0.0]]]])) == pytest.approx(0.25 / sqrt(2))
    assert known.error(np.array([[[[np.nan, 0.0]]]])) is None
    assert known.error(np.array([[[[1.0, np.inf]]]])) is None
    # No product leads to this element: anything but nothing is wrong.
    assert known.error(np.array([[[[1.0, 1e-30]]]])) is None
    assert wrong(None) == "the result is not finite"
    assert wrong(0.5) == "the result has error 0.5"
