"""Layers identified by position get the manifest's names: recorded runs, every layer checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import traceana
from tests.enrich.test_passes import residual
from tests.support.command_line import run
from tests.support.decoder import Decoder, accumulating, recorded
from traceana.analyze.layers import layers
from traceana.runs.layer_manifest import read
from traceana.trace import Trace

pytestmark = pytest.mark.frameworks


def operators(trace: Trace, model: Any, name: str) -> dict[str, int]:
    """Return by layer how many forward operators of this name it called."""
    from traceana.analyze.manifest_layers import named_in_order

    named = named_in_order(trace, model)
    of_layer = named.tables.layers["role"].gather(named.tables.ops["layer"]) == "layer"
    ops = named.tables.ops.filter(
        of_layer
        & (named.tables.ops["name"].cast(pl.String) == f"aten::{name}")
        & (named.tables.ops["direction"] == "forward")
    )
    paths = named.tables.layers["path"].gather(ops["layer"])
    return dict(paths.value_counts().iter_rows())


def test_a_residual_network_has_the_names_of_its_manifest(tmp_path: Path) -> None:
    """Equal blocks with shared in-place activations, counted batches and residual sums."""
    model, images = residual(3), torch.zeros(2, 3, 8, 8)
    manifest = traceana.describe(model, (2, 3, 8, 8))
    trace = recorded(tmp_path, accumulating(model, images, micro=2, evaluations=1))
    blocks = [str(number) for number in (1, 2, 3)]
    assert operators(trace, manifest, "conv2d") == {
        "0": 6,
        **{f"{block}.{name}": 6 for block in blocks for name in ("conv1", "conv2")},
    }
    assert operators(trace, manifest, "batch_norm") == {
        f"{block}.{name}": 6 for block in blocks for name in ("bn1", "bn2")
    }
    assert operators(trace, manifest, "relu_") == {f"{block}.relu": 12 for block in blocks}
    # Counts of batches in training, and the sums of the blocks in every pass.
    assert operators(trace, manifest, "add_") == {
        **{f"{block}.{name}": 4 for block in blocks for name in ("bn1", "bn2")},
        **dict.fromkeys(blocks, 6),
    }
    frame = layers(trace, model=manifest).frame
    assert frame["time_ns"].sum() == trace.tables.activities["duration"].sum()
    described = [layer.path for layer in manifest.layers]
    assert [path for path in frame["layer"] if path in described] == described
    assert not frame["layer"].str.contains(r"^(?:conv2d|batch_norm|relu_|add_|linear)_").any()


@pytest.mark.parametrize("fused", [True, False])
def test_the_functions_of_a_module_are_in_its_block(tmp_path: Path, fused: bool) -> None:
    """All that a block computes is below it, its attention at the attention's module."""
    model, words = Decoder(fused=fused), torch.zeros(2, 8, dtype=torch.long)
    manifest = traceana.describe(model, (2, 8), dtype="int64")
    trace = recorded(tmp_path, accumulating(model, words, micro=4, evaluations=1))
    attention = {f"h.{number}.attn": 10 for number in range(3)}
    if fused:
        assert operators(trace, manifest, "scaled_dot_product_attention") == attention
    else:
        assert operators(trace, manifest, "matmul") == {
            **dict.fromkeys(attention, 20),
            "head": 10,
        }
        assert operators(trace, manifest, "softmax") == attention
    assert operators(trace, manifest, "gelu") == {f"h.{number}": 10 for number in range(3)}
    frame = layers(trace, model=manifest, depth=2).frame
    within = [path for path in frame["layer"] if path.startswith("h.")]
    assert within == ["h.0", "h.1", "h.2"]
    flat = layers(trace, model=manifest).frame
    for block in within:
        below = (flat["layer"] == block) | flat["layer"].str.starts_with(f"{block}.")
        (whole,) = frame.filter(pl.col("layer") == block)["time_ns"]
        assert whole == flat.filter(below)["time_ns"].sum()


class Shared(nn.Module):  # type: ignore[misc]  # not checked: an extra
    """Calls one of two equal layers before and behind the other, with an attention between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(6, 6) for _ in range(3))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        x = self.first(self.second(self.first(x)))
        return self.last(self.attention(x, x, x, need_weights=False)[0])


def test_a_shared_layer_is_one_row_with_both_its_calls(tmp_path: Path) -> None:
    """All matrices are equal: only the order of the calls distinguishes the layers."""
    model = Shared()
    manifest = traceana.describe(model, (2, 5, 6))
    assert {layer.path: (layer.calls, layer.order) for layer in manifest.layers} == {
        "first": (2, (0, 2)),
        "second": (1, ()),
        "attention": (1, ()),
        "last": (1, ()),
    }
    data = torch.zeros(2, 5, 6)
    trace = recorded(tmp_path, lambda: model(data).sum().backward())
    assert operators(trace, manifest, "linear") == {
        "first": 4,
        "second": 2,
        "attention": 4,
        "last": 2,
    }
    assert operators(trace, manifest, "scaled_dot_product_attention") == {"attention": 2}
    path = tmp_path / "shared.layers.json"
    manifest.write(path)
    assert read(path) == manifest
    words = ["layers", str(tmp_path / "trace.json"), "--model", str(path), "--format", "json"]
    shown = run(*words)
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.stdout)["rows"]
    of_first = [row for row in rows if row["layer"] == "first"]
    assert [row["type"] for row in of_first] == ["Linear"]
    (by_depth,) = layers(trace, model=manifest, depth=1).frame.filter(pl.col("layer") == "first")[
        "calls"
    ]
    assert by_depth == of_first[0]["calls"]


def test_an_attention_beside_normalizations_is_found(tmp_path: Path) -> None:
    """Its products are as many as its weights have rows, between operators of one layer each."""
    block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
    model, data = nn.TransformerEncoder(block, 2), torch.zeros(2, 5, 6)
    manifest = traceana.describe(model, (2, 5, 6))
    trace = recorded(tmp_path, lambda: model(data).sum().backward())
    blocks = [f"layers.{number}" for number in range(2)]
    assert operators(trace, manifest, "layer_norm") == {
        f"{block}.{name}": 2 for block in blocks for name in ("norm1", "norm2")
    }
    assert operators(trace, manifest, "linear") == {
        **{f"{block}.{name}": 2 for block in blocks for name in ("linear1", "linear2")},
        **{f"{block}.self_attn": 4 for block in blocks},
    }
    assert operators(trace, manifest, "scaled_dot_product_attention") == {
        f"{block}.self_attn": 2 for block in blocks
    }


def test_a_manifest_of_another_network_gives_no_names(tmp_path: Path) -> None:
    """One convolution more, or other widths: the rows keep their positions."""
    model, images = residual(2), torch.zeros(2, 3, 8, 8)
    trace = recorded(tmp_path, accumulating(model, images, micro=1, evaluations=0))
    other = traceana.describe(residual(3), (2, 3, 8, 8))
    assert set(operators(trace, other, "conv2d")) == {f"conv2d_{i}" for i in range(5)}
    wider = nn.Sequential(
        *(nn.Conv2d(8 if i else 3, 8, 1) for i in range(5)), nn.Flatten(), nn.Linear(8 * 64, 10)
    )
    found = operators(trace, traceana.describe(wider, (2, 3, 8, 8)), "conv2d")
    assert set(found) == {f"conv2d_{i}" for i in range(5)}
