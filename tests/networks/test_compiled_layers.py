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
from traceana import Trace
from traceana.analyze.layers import layers
from traceana.report.render import Format, render

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


def opened(network: Make, folder: Path, backend: str | None, code: Path | None = None) -> Trace:
    """Record steps of a network, and open them with its manifest and the generated ``code``."""
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
    trace = recorded(step, folder / f"{backend}.json", STEPS)
    return traceana.open(trace, model=manifest, inductor_cache=code)


def of_products(trace: Trace) -> dict[str, int]:
    """Return the FLOPs of the convolutions and linear layers."""
    frame = layers(trace).frame
    products = frame.filter(pl.col("type").str.contains(r"(?i)conv|linear"))
    return dict(products.select("layer", "flops").iter_rows())


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_product_is_on_the_layer_that_it_was_on_before(name: str, tmp_path: Path) -> None:
    """Forward and backward: the FLOPs of each layer are equal, but for the sums of its bias."""
    before = of_products(opened(NETWORKS[name], tmp_path, None))
    after = of_products(opened(NETWORKS[name], tmp_path, "aot_eager"))
    assert list(after) == list(before)
    assert after == pytest.approx(before, rel=0.02)


@pytest.fixture
def compiler() -> None:
    """Skip where Inductor cannot compile for the CPU."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no compiler of C++")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_generated_kernels_are_on_layers(tmp_path: Path) -> None:
    """On a CPU they have no events of their own: they are where the manifest has other layers."""
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
    pairs = traceana.diff(eager, trace).frame.filter(pl.col("role") == "layer")
    alike = pairs.filter(pl.col("a") == pl.col("b"))["a"].to_list()
    assert {"0", "1+2", "3"} <= set(alike)
    apart = layers(eager).frame.filter(pl.col("layer").is_in(["1", "2"]))["time_ns"].sum()
    time = pairs.filter(pl.col("a") == "1+2")["time_a_ns"].item()
    assert time == pytest.approx(apart / STEPS, abs=STEPS)
    # The page divides the row among them.
    page = render(trace.layers().page(), Format.JSON)
    inside = json.loads(page)["sections"]["fused_rows"]
    assert [one["layer"] for one in inside] == ["1", "2"]
    assert sum(one["time_ns"] for one in inside) == fused["time_ns"].item()
    # The region itself has its guards and its prologue alone.
    path = trace.tables.layers["path"].gather(trace.tables.activities["layer"]).cast(pl.String)
    name = trace.tables.names["name"].gather(trace.tables.activities["name_id"]).cast(pl.String)
    in_region = set(name.filter(path.str.starts_with("Torch-Compiled")))
    assert in_region
    assert not in_region & {"CompiledFunction", "CompiledFunctionBackward"}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_generated_code_names_the_layers_of_a_residual_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor calls the convolution of a shortcut before the second one of its block."""
    network = models.residual, lambda: torch.randn(4, 3, 64, 64)
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    # As where several threads run: the gradient of a pooling calls a scatter.
    with torch._inductor.config.patch({"cpp.dynamic_threads": True}):
        trace = opened(network, tmp_path, "inductor", cache)
    eager = opened(network, tmp_path, None)
    table = layers(trace).frame.filter((pl.col("role") == "layer") & (pl.col("type") == "fused"))
    names = set(table["layer"])
    assert {"1+2+3", "4.bn1+relu", "4.bn2+relu", "5.bn1+relu", "6.bn1+relu"} <= names
    assert "5.bn2+downsample.1+relu" in names
    assert not table.filter(pl.col("layer").str.contains(r"^fused_\d+$")).height
    # The code of a block's sum runs in both passes on one row.
    joined = table.filter(pl.col("layer") == "5.bn2+downsample.1+relu")
    assert (joined["forward_ns"] > 0).item()
    assert (joined["backward_ns"] > 0).item()
    # It is amid generated code, and not of the convolution.
    work = trace.tables.activities.select(
        "layer", operator=trace.tables.ops["name"].gather(trace.tables.activities["op"])
    )
    operators = work.group_by(path=trace.tables.layers["path"].gather(work["layer"])).agg(
        "operator"
    )
    of_layer = {path: set(names) for path, names in operators.iter_rows()}
    assert "aten::scatter_reduce_" in of_layer["1+2+3"]
    assert of_layer["0"] == {"aten::mkldnn_convolution", "aten::convolution_backward"}
    # Convolutions and the linear layer are those of the network without a compiler.
    assert of_products(trace) == pytest.approx(of_products(eager), rel=0.02)
    pairs = traceana.diff(eager, trace).frame.filter(pl.col("role") == "layer")
    alike = pairs.filter(pl.col("a") == pl.col("b"))["a"].to_list()
    # The activation is one layer, called twice.
    assert {"0", "1+2+3", "4.conv1", "5.downsample.0"} <= set(alike)
    assert {
        "4.bn1+relu+bn2",
        "5.bn1+relu+bn2+downsample.1",
        "6.bn1+6.relu+6.bn2+6.downsample.1+7",
    } <= set(alike)
    page = json.loads(render(trace.layers().page(), Format.JSON))
    inside = [
        one["layer"]
        for one in page["sections"]["fused_rows"]
        if one["row"] == joined["layer"].item()
    ]
    assert inside == ["5.bn2", "5.downsample.1", "5.relu"]
    # The folder of a run has a copy.
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(tmp_path / "inductor.json", run / "trace.json")
    shutil.copy(tmp_path / "network.layers.json", run / "layers.json")
    shutil.copytree(cache, run / "inductor", ignore=lambda _, names: [
        one for one in names if "." in one and not one.endswith(".py")
    ])  # fmt: skip
    copied = traceana.open(run / "trace.json")
    assert layers(copied).frame.equals(layers(trace).frame)
    copied.save(tmp_path / "bundle")
    assert layers(traceana.open(tmp_path / "bundle")).frame.equals(layers(trace).frame)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("compiler")
def test_convolutions_that_run_as_products_keep_their_layers(tmp_path: Path) -> None:
    """As with ``max-autotune``, where the window is one pixel; their gradients are convolutions."""
    before = of_products(opened(NETWORKS["depthwise"], tmp_path, None))
    with torch._inductor.config.patch(conv_1x1_as_mm=True):
        trace = opened(NETWORKS["depthwise"], tmp_path, "inductor")
    names = trace.tables.ops.filter(trace.tables.ops["direction"] == "forward")["name"].cast(
        pl.String
    )
    assert names.str.contains(r"^aten::(?:add)?mm$").any()
    after = of_products(trace)
    assert list(after) == list(before)
    assert after == pytest.approx(before, rel=0.02)
