"""The PyTorch builder follows the description."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support.manifests import manifest_of  # noqa: E402
from tests.workloads.agreement import SIZES  # noqa: E402
from traceana import describe  # noqa: E402
from traceana.runs.layer_manifest import Manifest  # noqa: E402
from workloads.data import initial_weights, synthetic_batch  # noqa: E402
from workloads.network import LocalResponseNorm, Network  # noqa: E402
from workloads.networks import NETWORKS  # noqa: E402
from workloads.options import RunOptions  # noqa: E402
from workloads.pytorch.build import build  # noqa: E402
from workloads.shapes import parameter_count  # noqa: E402

pytestmark = pytest.mark.frameworks

SMALL = {"image_size": 67, "width_divisor": 16, "classes": 10}


def rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the layers without how PyTorch names and holds things."""
    found = [msgspec.structs.asdict(layer) for layer in manifest.layers]
    return [
        {key: value for key, value in row.items() if key not in ("framework_type", "layout")}
        for row in found
    ]


@pytest.mark.parametrize("name", list(NETWORKS))
def test_modules_have_the_names_shapes_and_operations_of_the_layers(name: str) -> None:
    options = RunOptions(network=name, batch=2, **SIZES[name])
    network = options.describe_network()
    shape = (2, network.channels, network.image_size, network.image_size)
    found, reported = describe(build(network), shape), manifest_of(options)
    assert found.parameter_count == reported.parameter_count == parameter_count(network)
    assert rows(found) == rows(reported)


def called(model: Any, images: Any) -> Counter[str]:
    with torch.profiler.profile() as profiler:
        model(images)
    return Counter(event.name for event in profiler.events())


@pytest.mark.parametrize("options", [{"separate_bias": True}, {"through_host": True}])
def test_how_it_is_computed_changes_no_result(options: dict[str, bool]) -> None:
    network = NETWORKS["resnet18"](image_size=32, width_divisor=16, classes=7)
    images = torch.from_numpy(synthetic_batch(network, 2, seed=0).images)
    plain, other = build(network), build(network, **options)
    torch.testing.assert_close(other(images), plain(images))
    more = called(other, images) - called(plain, images)
    if "through_host" in options:
        assert more["aten::_to_copy"] == 2 * len(network.layers)
    else:
        assert (more["aten::mm"], more["aten::add"]) == (1, 1)


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
