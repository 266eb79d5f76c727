"""The PyTorch builder gives what the description says."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from workloads.data import initial_weights, synthetic_batch  # noqa: E402
from workloads.network import LocalResponseNorm, Network  # noqa: E402
from workloads.networks import NETWORKS  # noqa: E402
from workloads.pytorch.build import build  # noqa: E402
from workloads.shapes import layer_shapes, parameter_count  # noqa: E402

SMALL = {"image_size": 67, "width_divisor": 16, "classes": 10}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_modules_have_the_names_shapes_and_parameters_of_the_layers(name: str) -> None:
    network = NETWORKS[name](**SMALL)
    model = build(network)
    values = torch.from_numpy(synthetic_batch(network, 2, seed=0).images)
    for shape, (path, module) in zip(layer_shapes(network), model.named_children(), strict=True):
        values = module(values)
        assert path == shape.layer.name
        assert tuple(values.shape) == (2, *shape.output)
        assert sum(each.numel() for each in module.parameters()) == shape.parameters
    assert sum(each.numel() for each in model.parameters()) == parameter_count(network)


def test_weights_are_the_shared_ones() -> None:
    network = NETWORKS["alexnet_2012"](**SMALL)
    parameters = dict(build(network, seed=5).named_parameters())
    for layer, weight in initial_weights(network, seed=5).items():
        np.testing.assert_array_equal(parameters[f"{layer}.weight"].detach().numpy(), weight)
        assert not parameters[f"{layer}.bias"].any()


def test_local_response_norm_is_the_papers() -> None:
    norm = LocalResponseNorm("norm", size=3, alpha=0.5, beta=0.75, k=2.0)
    network = Network("n", 2, (norm,), channels=4)
    images = np.random.default_rng(0).standard_normal((1, 4, 2, 2), dtype=np.float32)
    expected = np.empty_like(images)
    for channel in range(4):
        window = images[:, max(channel - 1, 0) : channel + 2]
        scale = (norm.k + norm.alpha * (window**2).sum(axis=1)) ** norm.beta
        expected[:, channel] = images[:, channel] / scale
    given = build(network)(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-6)
