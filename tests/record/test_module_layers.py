"""The modules that are layers of a recording: those with operators of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from traceana.runs import read_run
from traceana.runs.layer_manifest import read
from traceana.trace import Trace

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn
F: Any = torch.nn.functional

pytestmark = pytest.mark.frameworks

PRODUCTS = r"mm$|convolution"


class Products(nn.Module):  # type: ignore[misc]
    """Computes with parameters of its own, beside a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(16, 16, 3))
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        x = F.conv1d(x.transpose(1, 2), self.kernel, padding=1).transpose(1, 2)
        x = torch.einsum("bli,oi->blo", x, self.weight)
        return F.linear(self.norm(x), self.weight)


class Weights(nn.Module):  # type: ignore[misc]
    """Has no module inside, and several products."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 16))
        self.second = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Any) -> Any:
        return F.linear(F.linear(x, self.first), self.second)


class Tied(nn.Module):  # type: ignore[misc]
    """Computes with the parameters of modules inside, which are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 16)

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.embedding.weight)


class Shared(nn.Module):  # type: ignore[misc]
    """Calls a module of another."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = (of,)

    def forward(self, x: Any) -> Any:
        return self.of[0](x)


def recorded(model: Any, x: Any, folder: Path) -> Trace:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Other tests of the same process may have imported JAX.
    recorder = traceana.recorder(folder / "run", warm_up=1, steps=2, model=model, profiler="torch")
    with recorder:
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            recorder.step()
    return traceana.open(folder / "run")


def work(trace: Trace) -> pl.DataFrame:
    """Return the calls of each layer's operators by direction and name."""
    return (
        trace.tables.activities.join(
            trace.tables.layers.with_row_index("row").select("row", "path", "role"),
            left_on="layer",
            right_on="row",
        )
        .join(
            trace.tables.ops.with_row_index("row").select("row", pl.col("name").cast(pl.String)),
            left_on="op",
            right_on="row",
        )
        .group_by("path", "role", pl.col("direction").cast(pl.String), "name")
        .agg(calls=pl.len())
    )


def names(found: pl.DataFrame, path: str, direction: str = "forward") -> set[str]:
    chosen = found.filter(pl.col("path") == path, pl.col("direction") == direction)
    return set(chosen["name"])


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    blocks = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2)]
    model = nn.Sequential(nn.Sequential(*blocks), nn.Linear(16, 3))
    return recorded(model, torch.randn(4, 8, 16), tmp_path_factory.mktemp("transformer"))


def test_attention_is_a_layer_forward_and_backward(transformer: Trace) -> None:
    found = work(transformer)
    for block in ("0.0", "0.1"):
        attention = found.filter(pl.col("path") == f"{block}.self_attn")
        assert attention["name"].str.contains("scaled_dot_product|softmax").any()
        products = attention.filter(pl.col("name").str.contains(PRODUCTS))
        calls = dict(products.group_by("direction").agg(pl.col("calls").sum()).iter_rows())
        # Of two steps, with and without bias: the projections, and both gradients of each.
        assert calls["forward"] >= 4
        assert calls["backward"] >= 8
        paths = found["path"].unique().to_list()
        assert {f"{block}.linear1", f"{block}.linear2", f"{block}.norm1"} <= set(paths)


def test_all_work_of_a_block_is_in_its_layers(transformer: Trace) -> None:
    """The sums around attention and products, and the activation between, are of the block."""
    found = work(transformer).filter(pl.col("role") == "layer")
    for direction in ("forward", "backward"):
        assert re.search("relu|clamp_min|threshold", " ".join(names(found, "0.0", direction)))
    assert "aten::add" in names(found, "0.0")
    outside = found.filter(~pl.col("path").str.contains(r"^(?:0\.[01](?:\..*)?|1)$"))
    # The loss is of no module.
    assert set(outside["path"]) == {"square_0", "mean_0", "ones_like_0"}


def test_a_container_without_work_is_no_layer_of_any_work(transformer: Trace) -> None:
    found = work(transformer)
    assert "0" not in set(found["path"])
    parents = dict(
        zip(transformer.tables.layers["path"], transformer.tables.layers["parent"], strict=True)
    )
    rows = transformer.tables.layers["path"].to_list()
    assert rows[parents["0.0.linear1"]] == "0.0"


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize(
    ("module", "path", "forward"),
    [
        (Products, "1", 3),
        (Weights, "1", 2),
        (Tied, "1", 1),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)), "1", 1),
    ],
)
def test_a_module_with_products_of_its_own_is_a_layer(
    module: Any, path: str, forward: int, tmp_path: Path
) -> None:
    found = work(recorded(nn.Sequential(nn.Tanh(), module()), torch.randn(4, 8, 16), tmp_path))
    products = found.filter(pl.col("name").str.contains(PRODUCTS))
    assert set(products["path"]) == {path}
    calls = dict(products.group_by("direction").agg(pl.col("calls").sum()).iter_rows())
    assert calls["forward"] == 2 * forward
    assert calls["backward"] >= 2 * forward


def test_a_module_has_its_own_path_wherever_it_is_called(tmp_path: Path) -> None:
    inner = nn.Linear(16, 16)
    model = nn.Sequential(inner, Shared(inner))
    paths = work(recorded(model, torch.randn(4, 16), tmp_path)).filter(
        pl.col("name").str.contains(PRODUCTS)
    )["path"]
    assert set(paths) == {"0"}


def test_the_original_of_a_compiled_model_has_no_ranges(tmp_path: Path) -> None:
    """Hooks of its modules would be compiled again within the window."""
    model = Products()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    folder = tmp_path / "run"
    with traceana.recorder(folder, warm_up=1, steps=2, model=model, profiler="torch") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            compiled(torch.ones(2, 5, 16)).sum().backward()
            optimizer.step()
            recorder.step()
    run = read_run(folder)
    assert "no ranges around layers: the model is compiled" in run.run.notes
    assert run.layers is not None
    assert "norm" in [one.path for one in read(run.layers).layers]
