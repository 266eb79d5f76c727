"""The three builders of a description are one function: same scores, same gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.forked import with_keras
from tests.support.frameworks import needs
from tests.workloads.agreement import SIZES, write
from workloads.networks import NETWORKS
from workloads.shapes import layer_shapes, parameter_count

pytestmark = pytest.mark.frameworks

SCRIPT = Path(__file__).with_name("agreement.py")
MODULES = {"pytorch": "torch", "keras": "tensorflow", "jax": "jax"}
# TensorFlow normalizes across channels in single precision at most.
SINGLE = {("keras", "alexnet_2012"), ("keras", "googlenet")}
Arrays = dict[str, np.ndarray[Any, Any]]
Computed = Callable[[str], Arrays]


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Computed:
    """Return a function that computes all networks in a framework, once."""

    @cache
    def run(framework: str) -> Arrays:
        needs(MODULES[framework])
        output = tmp_path_factory.mktemp("agreement") / f"{framework}.npz"
        if framework == "pytorch":
            write(framework, output)
        elif framework == "keras":
            with_keras(output.with_suffix(".log"), write, framework, output)
        else:
            words = [sys.executable, str(SCRIPT), str(output)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
        return dict(np.load(output))

    return run


def of_network(arrays: Arrays, network: str) -> Arrays:
    start = f"{network}/"
    return {
        key.removeprefix(start): values for key, values in arrays.items() if key.startswith(start)
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("framework", ["keras", "jax"])
def test_scores_loss_and_every_gradient_agree(
    framework: str, network: str, computed: Computed
) -> None:
    expected = of_network(computed("pytorch"), network)
    found = of_network(computed(framework), network)
    assert found.keys() == expected.keys()
    tolerance = 1e-5 if (framework, network) in SINGLE else 1e-10
    for key, values in expected.items():
        assert np.abs(values).max() > 0, key
        scale = max(np.abs(values).max(), 1e-3)
        np.testing.assert_allclose(found[key], values, rtol=0, atol=tolerance * scale, err_msg=key)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_have_the_shapes_of_the_description(network: str, computed: Computed) -> None:
    arrays = of_network(computed("pytorch"), network)
    described = NETWORKS[network](**SIZES[network], classes=7)
    expected = {}
    for shape in layer_shapes(described):
        named = {"weight": shape.weight, "bias": shape.bias}
        for name, values in named.items():
            if values is not None:
                expected[f"{shape.layer.name}.{name}"] = values
    trained = {key: values.shape for key, values in arrays.items() if "." in key}
    assert trained == expected
    sizes_of_all = sum(values.size for key, values in arrays.items() if "." in key)
    assert sizes_of_all == parameter_count(described)
