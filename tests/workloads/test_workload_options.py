"""Options that contradict each other are refused in words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tests.support.manifests import manifest_of
from traceana.runs.layer_manifest import Input, Layer
from workloads.options import (
    Algorithms,
    Device,
    Epilogue,
    HostMemory,
    Layout,
    OptionError,
    Precision,
    RunOptions,
    parse_run_options,
)
from workloads.support import Framework, supported


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 0}, "--batch must be at least 1, not 0"),
        ({"image_size": -1}, "--image-size must be at least 1"),
        ({"warm_up": -1}, "cannot be negative"),
        ({"network": "lenet"}, "no network 'lenet': choose from alexnet, alexnet_2012, vgg16"),
        ({"precision": Precision.TF32}, "--precision tf32 needs a GPU"),
        ({"algorithms": Algorithms.BENCHMARK}, "--algorithms benchmark needs a GPU"),
        ({"host_memory": HostMemory.PINNED}, "--host-memory pinned needs a GPU"),
        ({"processes": 0}, "--processes must be at least 1"),
        ({"batch": 6, "processes": 4}, "--batch 6 is not divisible by --processes 4"),
    ],
)
def test_contradictions(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RunOptions(**given)


def test_a_command_line_gives_every_field_and_leaves_other_words_alone() -> None:
    words = "--stack --network alexnet_2012 --batch 4 --steps 5 --warm-up 1 --image-size 99"
    words += " --width-divisor 2 --classes 10 --device cuda --precision amp-fp16 --layout nhwc"
    words += " --algorithms benchmark --epilogue separate --no-compile --first-data-gradient"
    words += " --host-memory pinned --processes 2 --threads 3 --seed 9 --trace x.json"
    parsed = parse_run_options(words.split())
    assert parsed == RunOptions(
        network="alexnet_2012",
        batch=4,
        steps=5,
        warm_up=1,
        image_size=99,
        width_divisor=2,
        classes=10,
        device=Device.CUDA,
        precision=Precision.AMP_FP16,
        layout=Layout.NHWC,
        algorithms=Algorithms.BENCHMARK,
        epilogue=Epilogue.SEPARATE,
        compile=False,
        first_data_gradient=True,
        host_memory=HostMemory.PINNED,
        processes=2,
        threads=3,
        seed=9,
    )
    default = RunOptions()
    assert all(getattr(parsed, each.name) != getattr(default, each.name) for each in fields(parsed))


@pytest.mark.parametrize(
    ("framework", "words", "message"),
    [
        ("PyTorch", "--epilogue fused", "needs torch.compile: add --compile"),
        ("PyTorch", "--epilogue separate --compile", "leave out --epilogue separate"),
        ("PyTorch", "--host-memory per-operator --compile", "leave one of them out"),
        (
            "Keras",
            "--layout nchw",
            "CPU convolutions need NHWC: add --compile or use --layout nhwc",
        ),
        ("Keras", "--host-memory pinned --device cuda", "no option for pinned memory"),
        ("Keras", "--host-memory per-operator", "needs --device cuda and no --compile"),
        ("Keras", "--epilogue separate --compile", "leave out --compile or --epilogue"),
        ("Keras", "--processes 2 --compile", "--processes cannot be combined with --compile"),
        ("JAX", "--threads 2", "leave out --threads"),
        ("JAX", "--precision amp-fp16", "use amp-bf16"),
        ("JAX", "--host-memory per-operator", "does not support --host-memory per-operator"),
        ("JAX", "--host-memory pinned --device cuda", "does not support --host-memory pinned"),
        ("JAX", "--no-compile --epilogue separate", "leave out --no-compile or --epilogue"),
        ("JAX", "--no-compile --processes 2", "leave out --no-compile"),
    ],
)
def test_unsupported_options_are_refused_with_a_message(
    framework: str, words: str, message: str
) -> None:
    with pytest.raises(OptionError, match=f"^{framework}: .*{message}"):
        supported(parse_run_options(words.split()), Framework(framework))


@pytest.mark.parametrize(
    ("framework", "layout", "compiles"),
    [
        (Framework.PYTORCH, Layout.NCHW, False),
        (Framework.KERAS, Layout.NHWC, False),
        (Framework.JAX, Layout.NHWC, True),
    ],
)
def test_each_framework_has_its_own_defaults(
    framework: Framework, layout: Layout, compiles: bool
) -> None:
    found = supported(RunOptions(), framework)
    assert (found.layout, found.compile) == (layout, compiles)
    other = Layout.NHWC if layout is Layout.NCHW else Layout.NCHW
    given = supported(RunOptions(layout=other, compile=True), framework)
    assert (given.layout, given.compile) == (other, True)


def test_the_layers_of_a_process_have_its_share_of_the_batch() -> None:
    manifest = manifest_of(RunOptions(batch=8, processes=4, layout=Layout.NHWC))
    assert manifest.layers[0].inputs == ((2, 3, 224, 224),)
    assert manifest.layers[0].layout == "channels_last"


def test_the_manifest_lists_the_layers_with_the_batch_first() -> None:
    manifest = manifest_of(RunOptions(batch=4))
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
