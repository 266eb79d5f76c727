"""Tiny runs, really recorded by torch.profiler on the CPU, hold the events that name layers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from workloads.network import Conv
from workloads.networks import NETWORKS
from workloads.options import OptionError, RunOptions
from workloads.pytorch.__main__ import main
from workloads.pytorch.record import cuda_profiler

pytestmark = pytest.mark.frameworks

TINY = ["--batch=1", "--image-size=67", "--width-divisor=16", "--classes=10", "--threads=1"]
LAYERS = [layer.name for layer in NETWORKS["alexnet"]().layers]

Event = dict[str, Any]


def record(folder: Path, *options: str) -> list[Event]:
    file = folder / "tiny.json.gz"
    assert main([*TINY, "--trace", str(file), *options]) == 0
    assert [path.name for path in folder.iterdir()] == [file.name]
    events: list[Event] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return events


def named(events: list[Event], start: str) -> list[Event]:
    found = [
        event for event in events if event.get("ph") == "X" and event["name"].startswith(start)
    ]
    return sorted(found, key=lambda event: float(event["ts"]))


def within(inner: Event, outer: Event) -> bool:
    start, end = float(outer["ts"]), float(outer["ts"]) + float(outer["dur"])
    return start <= float(inner["ts"]) and float(inner["ts"]) + float(inner["dur"]) <= end + 0.001


def test_ranges_name_every_layer_forward_and_backward_in_every_step(tmp_path: Path) -> None:
    events = record(tmp_path, "--steps=2", "--warm-up=2", "--ranges=record-function")
    steps = named(events, "ProfilerStep#")
    assert [step["name"] for step in steps] == ["ProfilerStep#2", "ProfilerStep#3"]
    forward = [event["name"] for event in named(events, "forward: ")]
    backward = [event["name"] for event in named(events, "backward: ")]
    assert forward == [f"forward: {layer}" for layer in LAYERS] * 2
    assert backward == [f"backward: {layer}" for layer in reversed(LAYERS)] * 2
    assert [each["name"] for each in named(events, "iteration ")] == ["iteration 0", "iteration 1"]
    assert not named(events, "warm-up")


def test_a_layers_work_lies_in_its_ranges(tmp_path: Path) -> None:
    events = record(tmp_path, "--steps=1", "--warm-up=1", "--ranges=record-function")
    work = {
        "conv": ("aten::conv2d", "ConvolutionBackward0"),
        "fc": ("aten::addmm", "AddmmBackward0"),
    }
    for kind, (forward_operator, backward_operator) in work.items():
        layers = [layer for layer in LAYERS if layer.startswith(kind)]
        for direction, operator in (("forward", forward_operator), ("backward", backward_operator)):
            order = layers if direction == "forward" else layers[::-1]
            for layer, event in zip(order, named(events, operator), strict=True):
                (range_,) = [
                    each
                    for each in named(events, f"{direction}: ")
                    if each["name"] == f"{direction}: {layer}"
                ]
                assert within(event, range_), (direction, layer)
    # Of the first layer too, whose input has no gradient, the parameters' gradients are inside.
    (first,) = (each for each in named(events, "backward: ") if each["name"] == "backward: conv1")
    end = float(first["ts"]) + float(first["dur"])
    inside = [
        float(first["ts"]) < float(each["ts"]) < end
        for each in named(events, "torch::autograd::AccumulateGrad")
    ]
    assert inside == [False] * 14 + [True] * 2


def test_the_gradient_of_the_images_is_computed_on_request(tmp_path: Path) -> None:
    one = ["--steps=1", "--warm-up=1", "--ranges=record-function", "--fused-optimizer"]
    gradients = {}
    for options in ([], ["--first-data-gradient"]):
        events = record(tmp_path, *one, *options)
        (range_,) = (each for each in named(events, "backward: conv1"))
        (work,) = (
            each
            for each in named(events, "aten::convolution_backward")
            if float(range_["ts"]) < float(each["ts"]) < float(range_["ts"]) + range_["dur"]
        )
        gradients[len(options)] = work["args"]["Concrete Inputs"][-1]
        assert [event["name"] for event in named(events, "aten::_fused_sgd_")]
        for file in tmp_path.iterdir():
            file.unlink()
    assert gradients == {0: "[False, True, True]", 1: "[True, True, True]"}


def test_branches_have_their_ranges_and_their_work_in_them(tmp_path: Path) -> None:
    network = NETWORKS["resnet18"]()
    words = ["--network=resnet18", "--steps=1", "--warm-up=1", "--ranges=record-function"]
    events = record(tmp_path, *words)
    names = [layer.name for layer in network.layers]
    forward = [event["name"] for event in named(events, "forward: ")]
    backward = [event["name"] for event in named(events, "backward: ")]
    assert forward == [f"forward: {name}" for name in names]
    assert sorted(backward) == sorted(f"backward: {name}" for name in names)
    convolutions = [layer.name for layer in network.layers if isinstance(layer, Conv)]
    work = named(events, "ConvolutionBackward0")
    assert len(work) == len(convolutions)
    around = {
        range_["name"].removeprefix("backward: ")
        for range_ in named(events, "backward: ")
        if sum(within(each, range_) for each in work) == 1
    }
    assert around == set(convolutions)


def test_ranges_of_the_forward_pass_alone_run_no_hooks_in_the_other(tmp_path: Path) -> None:
    words = ["--steps=1", "--warm-up=1", "--ranges=record-function", "--forward-only"]
    events = record(tmp_path, *words)
    assert [each["name"] for each in named(events, "forward: ")] == [
        f"forward: {layer}" for layer in LAYERS
    ]
    assert not named(events, "backward: ")
    assert not named(events, "BackwardHookFunction")


def test_a_layer_without_weights_before_any_has_no_backward_range(tmp_path: Path) -> None:
    words = ["--network=mlp", "--image-size=28", "--steps=1", "--warm-up=1"]
    events = record(tmp_path, *words, "--ranges=record-function")
    backward = [event["name"] for event in named(events, "backward: ")]
    layers = [layer.name for layer in NETWORKS["mlp"]().layers]
    assert backward == [f"backward: {layer}" for layer in reversed(layers[1:])]


def test_compilation_is_handed_the_whole_network(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled: list[Any] = []

    def compile_(model: Any) -> Any:
        compiled.append(model)
        return model

    monkeypatch.setattr("torch.compile", compile_)
    assert main([*TINY, "--steps=1", "--compile", "--epilogue=fused"]) == 0
    assert [type(model).__name__ for model in compiled] == ["DescribedNetwork"]


@pytest.mark.parametrize(
    "options",
    [
        ["--precision=amp-bf16"],
        ["--precision=amp-fp16"],
        ["--epilogue=separate"],
        ["--host-memory=per-operator"],
    ],
)
def test_options_that_a_cpu_can_serve(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--steps=1", "--warm-up=0", *options]) == 0
    assert capsys.readouterr().out.endswith(" ms a step\n")


def test_shapes_are_recorded(tmp_path: Path) -> None:
    events = record(tmp_path, "--steps=1", "--warm-up=1", "--layout=nhwc")
    first = named(events, "aten::conv2d")[0]["args"]
    assert first["Input Dims"][:2] == [[1, 3, 67, 67], [4, 3, 11, 11]]
    assert first["Input Strides"][0] == [3 * 67 * 67, 1, 3 * 67, 3]


def test_stacks_name_modules_by_class_and_number(tmp_path: Path) -> None:
    events = record(tmp_path, "--steps=1", "--warm-up=1", "--stack", "--precision=amp-bf16")
    modules = [event["name"] for event in named(events, "nn.Module: ")]
    assert [name for name in modules if "Conv2d" in name] == [
        f"nn.Module: Conv2d_{number}" for number in range(5)
    ]
    assert len(modules) == len(LAYERS) + 2  # and the container and the loss


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchscript_names_layers_in_the_module_hierarchy(tmp_path: Path) -> None:
    events = record(tmp_path, "--steps=1", "--warm-up=2", "--torchscript")
    paths = {event["args"].get("Module Hierarchy") for event in named(events, "aten::")}
    assert "TOP(DescribedNetwork)::forward.conv1(Conv2d)::forward." in paths


def test_a_plain_run_prints_the_time_of_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--steps=2", "--warm-up=0", "--network=alexnet_2012"]) == 0
    line = capsys.readouterr().out.strip()
    assert line.startswith("alexnet_2012, batch 1, cpu: ")
    assert len(line.removesuffix(" ms a step").partition("cpu: ")[2].split(", ")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stack"], "--stack needs a recording: add --trace FILE"),
        (["--trace", "x.txt"], "must end in .json or .json.gz"),
        (["--trace", "/no/such/folder/x.json"], "directory /no/such/folder does not exist"),
        (["--trace", "x.json", "--warm-up=0"], "give --warm-up 1"),
        (["--torchscript", "--ranges=record-function"], "--torchscript runs no hooks"),
        (["--compile", "--ranges=record-function"], "--compile runs no hooks"),
        (
            ["--torchscript", "--processes=1", "--compile"],
            "--torchscript cannot be combined with --compile",
        ),
        (["--forward-only"], "--forward-only needs ranges: add --ranges"),
        (["--epilogue=fused"], "add --compile"),
        (["--manifest", "/no/such/folder/x.json"], "directory /no/such/folder does not exist"),
        (["--image-size=20"], "does not fit into"),
        (["--precision=tf32"], "--precision tf32 needs a GPU"),
        (["--network=lenet"], "invalid choice: 'lenet'"),
    ],
)
def test_invalid_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*TINY, *options])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_missing_gpu_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        main([*TINY, "--device=cuda"])
    assert "PyTorch found no CUDA device: use --device cpu" in capsys.readouterr().err


def test_the_cuda_profiler_starts_after_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    monkeypatch.setattr("torch.cuda.profiler.start", lambda: happened.append("start"))
    monkeypatch.setattr("torch.cuda.profiler.stop", lambda: happened.append("stop"))
    step_done = cuda_profiler(RunOptions(warm_up=2, steps=2))
    for number in range(4):
        happened.append(f"step {number}")
        step_done()
    assert happened == ["step 0", "step 1", "start", "step 2", "step 3", "stop"]
    with pytest.raises(OptionError, match="--warm-up 1 or more"):
        cuda_profiler(RunOptions(warm_up=0))


def test_a_graph_is_replayed_on_new_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the graph, which PyTorch captures on a GPU only."""
    captured: list[Callable[[], None]] = []
    replays: list[int] = []

    def capture(compute: Callable[[], None]) -> Any:
        captured.append(compute)
        return SimpleNamespace(replay=lambda: replays.append(1))

    monkeypatch.setattr("workloads.pytorch.train.captured", capture)
    monkeypatch.setattr("workloads.pytorch.run.Recording.check", lambda *_: None)
    events = record(tmp_path, "--steps=2", "--warm-up=1", "--cuda-graph")
    assert (len(captured), len(replays)) == (1, 3)
    assert len(named(events, "aten::copy_")) == 2 * len(("images", "labels"))
    assert not named(events, "aten::conv2d")
    captured[0]()


@pytest.mark.parametrize("option", ["--cuda-profiler", "--cuda-graph"])
def test_what_is_for_gpus(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*TINY, option])
    assert f"{option} needs --device cuda" in capsys.readouterr().err
