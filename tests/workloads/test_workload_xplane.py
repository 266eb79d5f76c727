"""The Keras and JAX workloads train and record; skipped where the frameworks are not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import traceana

TINY = {"batch": 1, "steps": 2, "warm-up": 1, "image-size": 67, "width-divisor": 16, "classes": 10}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("framework", "module"), [("keras", "tensorflow"), ("jax", "jax")])
@pytest.mark.parametrize("network", ["alexnet", "alexnet_2012"])
def test_a_recording_names_the_layers(
    framework: str, module: str, network: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", f"workloads.{framework}", "--network", network]
    command += [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    command += ["--log", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    trace = traceana.open(file)
    assert trace.steps["number"].to_list() == [0, 1]
    for layer in ("conv1", "conv5", "fc8"):
        assert f"{network}.{layer}" in set(trace.layers["path"])
