"""The command's refusals, and the layers it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.manifests import manifest_of
from workloads.algorithms.__main__ import main
from workloads.algorithms.layers import LayerError, convolutions, read_manifest
from workloads.manifest import layer_manifest
from workloads.options import RunOptions


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
        (["--manifest", "none.json"], "none.json cannot be read: No such file or directory"),
        (["--manifest", __file__], "is not a layer manifest"),
    ],
)
def test_what_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--library", "onednn", "--out", "a.json", *words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_a_manifest_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "a.layers.json"
    options = RunOptions(network="resnet18", width_divisor=8)
    manifest_of(options).write(file)
    assert convolutions(read_manifest(file)) == convolutions(layer_manifest(options))


@pytest.mark.frameworks
def test_cudnn_without_a_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        main(["--library", "cudnn", "--out", str(tmp_path / "a.json")])
    assert "PyTorch found no GPU" in capsys.readouterr().err
