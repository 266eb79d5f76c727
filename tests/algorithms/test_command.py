"""The command's refusals, the layers it takes, and its part of the GPU script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.algorithms.test_onednn import installed
from traceana.flops.timed_algorithms import read
from workloads.algorithms.__main__ import main
from workloads.algorithms.layers import LayerError, convolutions
from workloads.manifest import layer_manifest
from workloads.options import RunOptions

pytestmark = pytest.mark.frameworks

SCRIPT = Path(__file__).resolve().parents[2] / "workloads" / "record_gpu.sh"


def test_layers_are_those_of_the_manifest() -> None:
    found = convolutions(layer_manifest(RunOptions(network="alexnet_2012")))
    assert [each.path for each in found] == [f"conv{number}" for number in range(1, 6)]
    assert [each.groups for each in found] == [1, 2, 1, 2, 2]
    (second,) = convolutions(layer_manifest(RunOptions(network="resnet50")), ["res3a_branch2b"])
    assert second.stride == (2, 2)
    assert second.padding == ((1, 1), (1, 1))


def test_layers_that_are_none() -> None:
    with pytest.raises(LayerError, match="mlp has no two-dimensional convolution"):
        convolutions(layer_manifest(RunOptions(network="mlp")))
    with pytest.raises(LayerError, match="no convolution is named 'fc6': choose from conv1"):
        convolutions(layer_manifest(RunOptions()), ["fc6"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "0"], "0 is less than 1"),
        (["--batch", "1,x"], "--batch"),
        (["--network", "mlp"], "no two-dimensional convolution"),
        (["--layer", "conv9"], "no convolution is named 'conv9'"),
        (["--precision", "tf32"], "--precision and --layout need --library cudnn"),
        (["--out", "nowhere/a.json"], "does not exist"),
        (["--manifest", "a.json", "--network", "lenet5"], "leave out --network"),
        (["--seconds", "0"], "0 is not a positive number of seconds"),
        (["--image-size", "4"], "does not fit"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--library", "onednn", "--out", "a.json", *words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_manifest_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--library", "onednn", "--out", str(tmp_path / "a.json")]
    assert main([*words, "--manifest", str(tmp_path / "none.json")]) == 10
    assert "no such file" in capsys.readouterr().err


@pytest.mark.frameworks
def test_cudnn_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        main(["--library", "cudnn", "--out", str(tmp_path / "a.json")])
    assert "PyTorch found no GPU" in capsys.readouterr().err


def test_the_gpu_script_measures_algorithms(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if not installed():
        pytest.skip("no wheel with oneDNN is installed")
    words = ["sh", str(SCRIPT), "--device", "cpu", "--only", "algorithms"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [*words, "--output", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["algorithms"]
    study = read(tmp_path / "algorithms" / "alexnet-smoke-onednn.json")
    assert study.ended is None
    assert len(study.layers) == 5
