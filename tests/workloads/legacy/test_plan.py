"""The file by which a network reaches frameworks of older Pythons."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from workloads.data import initial_weights, synthetic_batch
from workloads.legacy.plan import main
from workloads.networks import NETWORKS

FOLDER = Path(__file__).resolve().parents[3] / "workloads" / "legacy"
WORDS = ["--batch=2", "--image-size=67", "--width-divisor=16", "--classes=10"]


def test_the_plan_holds_layers_weights_and_images(tmp_path: Path) -> None:
    file = tmp_path / "plan.npz"
    assert main([str(file), *WORDS, "--without-dropout"]) == 0
    found = np.load(file)
    plan = json.loads(str(found["plan"]))
    network = NETWORKS["alexnet"](image_size=67, width_divisor=16, classes=10)
    assert [layer["name"] for layer in plan["layers"]] == [each.name for each in network.layers]
    conv2 = next(layer for layer in plan["layers"] if layer["name"] == "conv2")
    assert conv2["kind"] == "Conv"
    assert (conv2["kernel"], conv2["padding"], conv2["weight_shape"]) == (5, 2, [12, 4, 5, 5])
    assert {e["probability"] for e in plan["layers"] if e["kind"] == "Dropout"} == {0.0}
    batch = synthetic_batch(network, 2, 0)
    np.testing.assert_array_equal(found["images"], batch.images)
    np.testing.assert_array_equal(found["labels"], batch.labels)
    for name, weight in initial_weights(network, 0).items():
        np.testing.assert_array_equal(found[f"weight:{name}"], weight)


def test_a_network_that_branches_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "plan.npz"), "--network=resnet18"])
    assert "branches, which a plan does not support" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["__init__", "case", "caffe", "cntk", "mxnet", "theano"])
def test_what_trains_is_python_3_6(name: str) -> None:
    ast.parse((FOLDER / f"{name}.py").read_text("utf-8"), feature_version=(3, 6))
