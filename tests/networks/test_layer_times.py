"""The time of each layer compared with hooks in the same steps, PyTorch on the CPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from traceana.analyze.layers import layers
from traceana.timeline.steps import select

torch = pytest.importorskip("torch")

from tests.networks import torch_models as models  # noqa: E402
from tests.networks.hooks import Key  # noqa: E402
from tests.networks.torch_recording import clocked  # noqa: E402

pytestmark = pytest.mark.frameworks

MATTERS = 0.02
"""Layers of less of the time are left out: Python takes longer around them than they do."""
SEVERAL = "VGG11"
"""The network of which three steps are recorded at once, of the others one: it is the quickest."""

NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "VGG11": (models.vgg11, lambda: torch.randn(16, 3, 64, 64)),
    "DenseNet-121": (lambda: models.densenet121(8), lambda: torch.randn(24, 3, 96, 96)),
    "MobileNetV2": (models.mobilenet_v2, lambda: torch.randn(16, 3, 160, 160)),
    "MobileNetV3": (models.mobilenet_v3_small, lambda: torch.randn(24, 3, 192, 192)),
    "U-Net": (models.UNet, lambda: torch.randn(8, 3, 96, 96)),
    "GPT": (lambda: models.GPT(width=192), lambda: torch.randint(0, 100, (16, 64))),
    "LSTM": (lambda: models.Tagger(64, 128), lambda: torch.randint(0, 50, (32, 32))),
    "shared layers": (models.Shared, lambda: torch.randn(32, 3, 64, 64)),
    "reentrant checkpoint": (
        lambda: models.Checkpointed(reentrant=True),
        lambda: torch.randn(32, 3, 64, 64).requires_grad_(),
    ),
    "checkpoint": (
        lambda: models.Checkpointed(reentrant=False),
        lambda: torch.randn(32, 3, 64, 64),
    ),
}


CASES = [(name, reported) for name in NETWORKS for reported in ("ranges", "modules")]


Times = dict[str, defaultdict[str, int]]
"""The time of each layer, by pass."""


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize(("name", "reported"), CASES)
def test_the_times_of_layers_are_those_of_the_hooks(
    name: str, reported: str, tmp_path: Path
) -> None:
    """Within 5 % in sum, of each pass, every layer in the step in which it comes closest.

    Another process can take the processor between an operator and its hook, in one step or the
    other: up to 60 steps are recorded. Work on a wrong layer is wrong in all of them.
    """
    torch.manual_seed(0)
    # What a checkpoint runs again is of the one pass here and of the other there.
    whole = "checkpoint" in name
    steps: list[tuple[Times, Times]] = []
    apart: dict[str, float] = {}
    count = 3 if name == SEVERAL else 1
    for attempt in range(60 // count):
        model, inputs = (make() for make in NETWORKS[name])
        path = tmp_path / f"{attempt}.json"
        steps += timed(model, inputs, path, count, reported == "ranges", whole)
        apart = {
            which: distance(steps, which)
            for which in (("both",) if whole else ("forward", "backward"))
        }
        if max(apart.values()) <= 0.05:
            return
    pytest.fail(f"the times of layers and of hooks are apart: {apart}")


def timed(
    model: Any, inputs: Any, path: Path, count: int, ranges: bool, whole: bool
) -> list[tuple[Times, Times]]:
    """Record ``count`` steps; return the times of layers and of hooks of each."""
    measured = clocked(model, inputs, path, ranges=ranges, steps=count)
    trace = traceana.open(path)
    numbers = trace.tables.steps["number"].to_list()
    assert len(numbers) == len(measured) == count
    named = None if ranges else class_names(model)
    return [
        (
            by_pass(layers(select(trace, steps=[number])).frame, named, whole),
            of_hooks(hooks, named, whole),
        )
        for number, hooks in zip(numbers, measured, strict=True)
    ]


def distance(steps: list[tuple[Times, Times]], which: str) -> float:
    """Return how far apart the two sums are, relative, of each layer's closest step."""
    first = steps[0][1][which]
    total = sum(sum(hooks[which].values()) for _, hooks in steps)
    matter = [
        layer for layer in first if sum(hooks[which][layer] for _, hooks in steps) > MATTERS * total
    ]
    assert matter
    closest = [
        min(
            ((own[which][layer], hooks[which][layer]) for own, hooks in steps),
            key=lambda pair: abs(pair[0] - pair[1]) / pair[1],
        )
        for layer in matter
    ]
    own, hooks = (sum(times) for times in zip(*closest, strict=True))
    return float(abs(own - hooks) / hooks)


def by_pass(frame: pl.DataFrame, named: dict[str, str] | None, whole: bool) -> Times:
    """Return what traceana gives each layer; by the last part of its path where modules tell."""
    last = pl.col("layer") if named is None else pl.col("layer").str.split(".").list.last()
    columns = {"both": "time_ns"} if whole else {"forward": "forward_ns", "backward": "backward_ns"}
    rows = (
        frame.filter(pl.col("role") == "layer").group_by(last).agg(pl.col(columns.values()).sum())
    )
    return {
        which: defaultdict(int, zip(rows["layer"], rows[column], strict=True))
        for which, column in columns.items()
    }


def of_hooks(measured: dict[Key, int], named: dict[str, str] | None, whole: bool) -> Times:
    """Return the hooks' times, by the same passes and names."""
    times: Times = defaultdict(lambda: defaultdict(int))
    for (which, path), time in measured.items():
        times["both" if whole else which][path if named is None else named[path]] += time
    return times


def class_names(model: Any) -> dict[str, str]:
    """Return what torch.profiler calls each leaf module: its class, and how many ran before it."""
    seen: defaultdict[str, int] = defaultdict(int)
    names: dict[str, str] = {}
    for path, module in model.named_modules():
        kind = type(module).__name__
        names[path] = f"{kind}_{seen[kind]}"
        seen[kind] += 1
    return names
