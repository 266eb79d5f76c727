"""Options that contradict each other are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from traceana.describe import Input, Layer
from workloads.manifest import layer_manifest
from workloads.options import Device, OptionError, Precision, RunOptions, parse_run_options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 0}, "--batch must be at least 1, not 0"),
        ({"image_size": -1}, "--image-size must be at least 1"),
        ({"warm_up": -1}, "cannot be negative"),
        ({"network": "lenet"}, "no network 'lenet'; there are alexnet, alexnet_2012"),
        ({"precision": Precision.TF32}, "--precision tf32 is for GPUs"),
        ({"cudnn_benchmark": True}, "--cudnn-benchmark is for GPUs"),
        ({"pin_memory": True}, "--pin-memory is for GPUs"),
    ],
)
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RunOptions(**given)


def test_a_command_line_gives_every_field_and_leaves_other_words_alone() -> None:
    words = "--stack --network alexnet_2012 --batch 4 --steps 5 --warm-up 1 --image-size 99"
    words += " --width-divisor 2 --classes 10 --device cuda --precision amp --channels-last"
    words += " --cudnn-benchmark --pin-memory --threads 3 --seed 9 --trace x.json"
    assert parse_run_options(words.split()) == RunOptions(
        network="alexnet_2012",
        batch=4,
        steps=5,
        warm_up=1,
        image_size=99,
        width_divisor=2,
        classes=10,
        device=Device.CUDA,
        precision=Precision.AMP,
        channels_last=True,
        cudnn_benchmark=True,
        pin_memory=True,
        threads=3,
        seed=9,
    )


def test_the_manifest_lists_the_layers_with_the_batch_first() -> None:
    manifest = layer_manifest(RunOptions(batch=4))
    assert (manifest.network, manifest.framework) == ("alexnet", None)
    assert manifest.inputs == (
        Input(shape=(4, 3, 224, 224), dtype="float32", layout="channels_first"),
    )
    assert manifest.parameter_count == 61_100_840
    assert manifest.layers[0] == Layer(
        path="conv1",
        type="Conv2d",
        framework_type="Conv",
        position=0,
        inputs=((4, 3, 224, 224),),
        outputs=((4, 64, 55, 55),),
        layout="channels_first",
        kernel=(11, 11),
        stride=(4, 4),
        padding=((2, 2), (2, 2)),
        dilation=(1, 1),
        groups=1,
        parameters={"weight": (64, 3, 11, 11), "bias": (64,)},
        parameter_count=64 * 3 * 11 * 11 + 64,
        flops=2 * 4 * 64 * 55 * 55 * 3 * 11 * 11,
    )
    assert [layer.path for layer in manifest.layers][-1] == "fc8"
    assert manifest.layers[1].parameters == {}
