"""The built training has what its layers compute, at rates that the device can reach."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest

from tests.support.synthetic.cnn import PARAMETERS, cnn_training
from tests.support.synthetic.traces import kineto
from traceana import Trace

WIDTHS = (3, 64, 128, 256, 256, 512, 512, 512, 512)
SIZES = (224, 112, 56, 56, 28, 28, 14, 14)
LINEAR = 25_088 * 4_096 + 4_096 * 4_096 + 4_096 * 1_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return kineto(cnn_training(steps=2, batch=4), tmp_path_factory.mktemp("cnn"))


def test_the_layers_compute_what_the_network_does(trace: Trace) -> None:
    layers = trace.layers().frame.filter(pl.col("role") == "layer")
    assert (layers["forward_ns"] > 0).all()
    assert (layers["backward_ns"] > 0).all()
    products = layers.filter(pl.col("layer").str.contains("conv|fc"))
    assert products.height == 11
    convolutions = [
        9 * a * b * size**2 for (a, b), size in zip(pairwise(WIDTHS), SIZES, strict=True)
    ]
    # A forward product and two gradients each, without the gradient of the images.
    macs = 3 * (sum(convolutions) + LINEAR) - convolutions[0]
    images = 4 * 2
    assert products["flops"].sum() == 2 * macs * images
    assert products["of_peak"].is_between(0.05, 1).all()


def test_every_kernel_has_a_class_and_the_parameters_their_number(trace: Trace) -> None:
    assert trace.kernels(unclassified=True).frame.is_empty()
    convolutions = sum(9 * a * b + 3 * b for a, b in pairwise(WIDTHS))
    assert convolutions + LINEAR + 2 * 4_096 + 1_000 == PARAMETERS
