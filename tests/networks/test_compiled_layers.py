"""Layers of networks that ``torch.compile`` compiled, beside those of the same networks without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from traceana.analyze.layers import layers
from traceana.report.render import Format, render
from traceana.trace import Trace

torch = pytest.importorskip("torch")

from tests.networks import torch_models as models  # noqa: E402
from tests.networks.torch_recording import recorded  # noqa: E402

pytestmark = pytest.mark.frameworks

Make = tuple[Callable[[], Any], Callable[[], Any]]
NETWORKS: dict[str, Make] = {
    "depthwise": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            models.Inverted(8, 32, 16, 3, 2, torch.nn.ReLU6, squeeze=False),
            models.Inverted(16, 64, 16, 3, 1, torch.nn.Hardswish, squeeze=True),
        ),
        lambda: torch.randn(4, 3, 32, 32),
    ),
    "U-Net": (models.UNet, lambda: torch.randn(2, 3, 32, 32)),
    "VGG11": (models.vgg11, lambda: torch.randn(2, 3, 64, 64)),
    "GPT": (models.GPT, lambda: torch.randint(0, 100, (4, 16))),
    "GPT, plain attention": (
        lambda: models.GPT(fused=False),
        lambda: torch.randint(0, 100, (4, 16)),
    ),
}
STEPS = 2


def opened(network: Make, folder: Path, backend: str | None) -> Trace:
    """Record steps of a network, and open them with its manifest."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    make, data = network
    model, inputs = make(), data()
    run = model if backend is None else torch.compile(model, backend=backend)

    def step() -> None:
        run(inputs).square().mean().backward()
        model.zero_grad()

    step()
    kind = str(inputs.dtype).rpartition(".")[2]
    manifest = folder / "network.layers.json"
    traceana.describe(model, tuple(inputs.shape), dtype=kind).write(manifest)
    return traceana.open(recorded(step, folder / f"{backend}.json", STEPS), model=manifest)


def of_products(trace: Trace) -> dict[str, int]:
    """Return the FLOPs of the convolutions and linear layers."""
    frame = layers(trace).frame
    products = frame.filter(pl.col("type").str.contains(r"(?i)conv|linear"))
    return dict(products.select("layer", "flops").iter_rows())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_product_is_on_the_layer_that_it_was_on_before(name: str, tmp_path: Path) -> None:
    """Forward and backward: the FLOPs of each layer are equal, but for the sums of its bias."""
    before = of_products(opened(NETWORKS[name], tmp_path, None))
    after = of_products(opened(NETWORKS[name], tmp_path, "aot_eager"))
    assert list(after) == list(before)
    assert after == pytest.approx(before, rel=0.02)


@pytest.mark.filterwarnings("ignore")
def test_generated_kernels_are_on_layers(tmp_path: Path) -> None:
    """On a CPU they have no events of their own: they are where the manifest has other layers."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no compiler of C++")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1),
    )
    both = lambda: network, lambda: torch.randn(16, 3, 32, 32)
    trace = opened(both, tmp_path, "inductor")
    table = layers(trace).frame.filter(pl.col("role") == "layer")
    names = table["layer"].cast(pl.String)
    assert [name for name in names if name[0].isdigit()] == ["0", "1+2", "3"]
    fused = table.filter(names == "1+2")
    assert (fused["forward_ns"] > 0).all()
    assert (fused["backward_ns"] > 0).all()
    # Beside the network without a compiler, its layers are those of this row together.
    eager = opened(both, tmp_path, None)
    pairs = traceana.diff(eager, trace).layers.filter(pl.col("role") == "layer")
    alike = pairs.filter(pl.col("a") == pl.col("b"))["a"].to_list()
    assert {"0", "1+2", "3"} <= set(alike)
    apart = layers(eager).frame.filter(pl.col("layer").is_in(["1", "2"]))["time_ns"].sum()
    time = pairs.filter(pl.col("a") == "1+2")["time_a_ns"].item()
    assert time == pytest.approx(apart / STEPS, abs=STEPS)
    # The page divides the row among them.
    page = render(trace.layer_times().page(), Format.JSON)
    inside = json.loads(page)["sections"]["fused_rows"]
    assert [one["layer"] for one in inside] == ["1", "2"]
    assert sum(one["time_ns"] for one in inside) == fused["time_ns"].item()
    # The region itself has its guards and its prologue alone.
    path = trace.layers["path"].gather(trace.activities["layer"]).cast(pl.String)
    name = trace.names["name"].gather(trace.activities["name_id"]).cast(pl.String)
    in_region = set(name.filter(path.str.starts_with("Torch-Compiled")))
    assert in_region
    assert not in_region & {"CompiledFunction", "CompiledFunctionBackward"}
