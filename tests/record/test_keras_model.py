"""The Keras model that is described, of several that are called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.forked import with_keras
from tests.support.frameworks import needs
from traceana.runs.layer_manifest import read

pytestmark = pytest.mark.frameworks


def describe_siamese(folder: Path) -> None:
    """Describe the model of a script that calls an encoder four times, and a head."""
    import keras
    import numpy as np

    from traceana.record.inside.keras_model import KerasModel

    report: Any = SimpleNamespace(add=lambda **_: None, note=lambda _: None)
    watched = KerasModel()
    watched.watch(keras, report)
    kl = keras.layers
    encoder = keras.Sequential([keras.Input((8,)), kl.Dense(4, name="dense")], name="encoder")
    pair = keras.Input((4,)), keras.Input((4,))
    head = keras.Model(pair, kl.Dot(1, name="dot")(list(pair)), name="head")
    images = [keras.Input((8,)) for _ in range(4)]
    codes = [encoder(image) for image in images]
    made = kl.Add(name="sum")([head([codes[0], codes[1]]), head([codes[2], codes[3]])])
    whole = keras.Model(images, made, name="whole")
    whole.compile("sgd", "mse")
    whole.fit([np.ones((4, 8))] * 4, np.ones((4, 1)), batch_size=4, verbose=0)
    watched.describe(folder, report)


def test_the_model_whose_call_contains_the_others_is_described(tmp_path: Path) -> None:
    needs("keras", "tensorflow")
    with_keras(tmp_path / "log", describe_siamese, tmp_path)
    found = read(tmp_path / "layers.json")
    assert found.network == "whole"
    calls = {layer.path.split("/")[-1]: layer.calls for layer in found.layers}
    assert calls == {"dense": 4, "dot": 2, "sum": 1}
