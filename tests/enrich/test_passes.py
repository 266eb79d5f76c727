"""Layers identified by position in recorded steps of several passes: one row per layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from tests.support.decoder import Decoder, accumulating, recorded
from traceana.analyze.layers import layers
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks


def calls(trace: Trace, type_: str) -> list[tuple[str, int]]:
    """Return (layer, forward operators of its own name) of the layers of one operator."""
    ops = trace.tables.ops.filter(
        (trace.tables.ops["name"].cast(pl.String) == f"aten::{type_}")
        & (trace.tables.ops["direction"] == "forward")
    )
    counted = ops.group_by("layer").len().sort("layer")
    paths = trace.tables.layers["path"].gather(counted["layer"])
    return list(zip(paths, counted["len"], strict=True))


class Block(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """A residual block without modules for its functions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


def residual(blocks: int = 4) -> nn.Module:
    """Return a network of equal blocks."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        *(Block(8) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


@pytest.mark.parametrize(("evaluations", "before"), [(1, False), (3, False), (1, True), (2, True)])
def test_micro_batches_and_evaluation_call_the_same_layers(
    tmp_path: Path, evaluations: int, before: bool
) -> None:
    """Four micro-batches and evaluation: 9 convolutions, not 9 times as many passes."""
    images = torch.zeros(2, 3, 8, 8)
    step = accumulating(residual(), images, micro=4, evaluations=evaluations, before=before)
    trace = recorded(tmp_path, step)
    passes = 2 * (4 + evaluations)
    assert calls(trace, "conv2d") == [(f"conv2d_{i}", passes) for i in range(9)]
    assert calls(trace, "batch_norm") == [(f"batch_norm_{i}", passes) for i in range(8)]
    assert calls(trace, "relu_") == [(f"relu__{i}", passes) for i in range(8)]
    assert calls(trace, "linear") == [("linear_0", passes)]
    # Of the additions four are the blocks' and the others count the batches of normalizations.
    adds = calls(trace, "add_")
    assert [one for one in adds if one[0].startswith("add_")] == [
        (f"add__{i}", passes) for i in range(4)
    ]
    assert [one for one in adds if one[0].startswith("batch_norm")] == [
        (f"batch_norm_{i}", 8) for i in range(8)
    ]
    frame = layers(trace, costs=False).frame
    assert frame["time_ns"].sum() == trace.tables.activities["duration"].sum()


def test_equal_blocks_stay_apart(tmp_path: Path) -> None:
    """Twelve equal blocks and nothing else, in one pass: twelve layers each."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.zeros(3, 6)).sum().backward()
        optimizer.step()

    assert calls(recorded(tmp_path, step), "linear") == [(f"linear_{i}", 2) for i in range(12)]

    def inference() -> None:
        with torch.no_grad():
            model(torch.zeros(3, 6))

    trace = recorded(tmp_path, inference)
    assert calls(trace, "linear") == [(f"linear_{i}", 2) for i in range(12)]
    untold = recorded(tmp_path, inference, steps=1, marks=False)
    assert len(calls(untold, "linear")) == 12


def test_two_networks_of_a_step_stay_apart(tmp_path: Path) -> None:
    """Generator and discriminator, of which a step runs the latter three times."""
    one = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 6))
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 1))

    def step() -> None:
        other(torch.zeros(3, 6)).sum().backward()
        other(one(torch.zeros(3, 4)).detach()).sum().backward()
        other(one(torch.zeros(3, 4))).sum().backward()

    trace = recorded(tmp_path, step)
    rows = calls(trace, "linear")
    assert sum(count for _, count in rows) == 2 * (2 + 4 + 4)
    linear = trace.tables.ops.filter(
        (trace.tables.ops["name"].cast(pl.String) == "aten::linear")
        & (trace.tables.ops["direction"] == "forward")
    )
    shapes = linear.group_by("layer").agg(pl.col("input_shapes").unique())["input_shapes"]
    assert [len(one) for one in shapes] == [1] * linear["layer"].n_unique()


@pytest.mark.parametrize("shapes", [True, False])
def test_a_decoder_has_its_layers_once(tmp_path: Path, shapes: bool) -> None:
    """Four micro-batches and an evaluation of three equal blocks: three, each called ten times."""
    words = torch.zeros(2, 8, dtype=torch.long)
    step = accumulating(Decoder(), words, micro=4, evaluations=1)
    trace = recorded(tmp_path, step, shapes=shapes)
    assert calls(trace, "addmm") == [(f"addmm_{i}", 10) for i in range(12)]
    assert calls(trace, "layer_norm") == [(f"layer_norm_{i}", 10) for i in range(7)]
    assert calls(trace, "scaled_dot_product_attention") == [
        (f"scaled_dot_product_attention_{i}", 10) for i in range(3)
    ]
    assert calls(trace, "linear") == [("linear_0", 10)]


def test_passes_without_steps_are_separated_by_their_input(tmp_path: Path) -> None:
    """Inference that nothing marks: no layer makes the integers that an embedding takes."""
    model, words = Decoder().eval(), torch.zeros(2, 8, dtype=torch.long)

    def inference() -> None:
        with torch.no_grad():
            model(words)

    trace = recorded(tmp_path, inference, steps=3, marks=False)
    assert calls(trace, "addmm") == [(f"addmm_{i}", 3) for i in range(12)]
    assert calls(trace, "linear") == [("linear_0", 3)]


def test_functions_of_the_backward_pass_are_no_layer_of_the_forward_pass(tmp_path: Path) -> None:
    """Sums between two backward passes without weights, and sums in a pass: none is another's."""
    model = nn.Linear(4, 4)

    def step() -> None:
        loss = model(torch.zeros(3, 4)).sum()
        (gradient,) = torch.autograd.grad(loss, [model.weight], create_graph=False)
        gradient.sum()
        model(torch.zeros(3, 4)).sum().backward()
        gradient.sum()

    trace = recorded(tmp_path, step)
    assert calls(trace, "linear") == [("linear_0", 4)]
    # The sum of the pass, called twice a step, and the two that stand behind its backward passes;
    # each sum calls another.
    assert dict(calls(trace, "sum")) == {"sum_0": 8, "sum_1": 4, "sum_2": 4}


def test_a_closure_runs_the_layers_that_the_loop_runs(tmp_path: Path) -> None:
    """``optimizer.step(closure)``, as Lightning calls it, beside the usual order of calls."""
    model, images = residual(2), torch.zeros(2, 3, 6, 6)
    optimizer = torch.optim.Adam(model.parameters())

    def closure() -> Any:
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss

    def loop() -> None:
        closure()
        optimizer.step()

    one, other = (
        layers(recorded(tmp_path, run)).frame.select("layer", "role", "calls", "flops")
        for run in (loop, lambda: optimizer.step(closure))
    )
    assert one.rows() == other.rows()


class Normalization(nn.Module):  # type: ignore[misc]
    """An RMS normalization as Llama has it, in single precision within a network of half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x: Any) -> Any:
        found = x.to(torch.float32)
        found = found * torch.rsqrt(found.square().mean(-1, keepdim=True))
        return self.weight * found.to(x.dtype)


@pytest.mark.parametrize("training", [True, False])
def test_conversions_of_a_network_are_no_copies_of_data(training: bool, tmp_path: Path) -> None:
    linear = nn.Linear(8, 8, dtype=torch.bfloat16)
    model = nn.Sequential(Normalization(8), linear, Normalization(8))
    words = torch.ones(3, 8, dtype=torch.bfloat16)

    def step() -> None:
        with torch.set_grad_enabled(training):
            loss = model(words).sum()
        if training:
            loss.backward()

    trace = recorded(tmp_path, step)
    converting = trace.tables.layers.filter(type="to")["path"]
    assert converting.to_list() == ["to_0", "to_1", "to_2", "to_3"]
    assert trace.tables.layers.filter(role="data").is_empty()
    # Without shapes the conversions of the backward pass are known alone.
    unknown = recorded(tmp_path, step, shapes=False)
    assert (unknown.tables.layers["role"] == "data").sum() == 1
    assert ("to_0" in set(unknown.tables.layers["path"])) == training
