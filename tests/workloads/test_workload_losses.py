"""Layout, fusion, compilation and sharing the batch change how Keras and JAX train, not what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.support.forked import with_keras
from tests.support.frameworks import needs
from tests.workloads.losses import write

pytestmark = pytest.mark.frameworks

SCRIPT = Path(__file__).with_name("losses.py")
# Options of one process; a number of replicas is fixed once anything has run.
TOGETHER = {
    "Keras": ("", "--layout nchw --compile", "--epilogue fused", "--first-data-gradient"),
    "JAX": ("", "--layout nchw", "--no-compile", "--epilogue separate", "--first-data-gradient"),
}
MIXED = {
    "Keras": ("--precision amp-bf16", "--precision amp-fp16"),
    "JAX": ("--precision amp-bf16",),
}
MODULES = {"Keras": "tensorflow", "JAX": "jax"}
Losses = dict[str, list[float]]
frameworks = pytest.mark.parametrize("framework", TOGETHER)


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Losses]:
    """Return a function that trains in a separate process with each of the options."""

    def of(framework: str, *options: str) -> Losses:
        needs(MODULES[framework])
        folder = tmp_path_factory.mktemp("losses")
        output = folder / "losses.json"
        if framework == "Keras":
            with_keras(folder / "log", write, output, framework, options)
        else:
            command = [sys.executable, str(SCRIPT), str(output), framework, *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
        return dict(zip(options, json.loads(output.read_text()), strict=True))

    return of


@pytest.fixture(scope="module")
def trained(losses: Callable[..., Losses]) -> Callable[[str], Losses]:
    return cache(lambda framework: losses(framework, *TOGETHER[framework], *MIXED[framework]))


@pytest.mark.exhaustive(after=1)
@frameworks
def test_training_is_the_same_whichever_way(
    framework: str, trained: Callable[[str], Losses]
) -> None:
    found = trained(framework)
    plain = found[""]
    assert plain == sorted(plain, reverse=True)
    assert plain[0] - plain[-1] > 1
    for options in TOGETHER[framework]:
        np.testing.assert_allclose(found[options], plain, rtol=1e-5, err_msg=options)
    for options in MIXED[framework]:
        # Half a number's bits: near, and not the same. Half precision begins by finding its scale.
        np.testing.assert_allclose(found[options][0], plain[0], rtol=1e-2, err_msg=options)
        assert found[options][0] != plain[0]
        assert found[options][-1] < plain[0] - 1


@pytest.mark.exhaustive
def test_two_frameworks_train_alike(trained: Callable[[str], Losses]) -> None:
    np.testing.assert_allclose(trained("JAX")[""], trained("Keras")[""], rtol=1e-5)


@frameworks
def test_two_replicas_train_as_one(
    framework: str, losses: Callable[..., Losses], trained: Callable[[str], Losses]
) -> None:
    found = losses(framework, "--processes 2")["--processes 2"]
    np.testing.assert_allclose(found, trained(framework)[""], rtol=1e-5)
