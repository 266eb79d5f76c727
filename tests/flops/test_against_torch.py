"""Against PyTorch's own counter, forward and backward, for the operators that both cover."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceana
from traceana.analyze.operator_flops import OperatorCosts, operator_costs

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.flops.models import MODELS  # noqa: E402

pytestmark = pytest.mark.frameworks

# PyTorch counts products alone: the sums of bias gradients are no product.
PRODUCTS = "conv|linear|matmul|matrix_vector|dot|attention"
BATCH = 2


def recorded(step: Any, folder: Path) -> tuple[OperatorCosts, dict[str, int]]:
    """Run ``step`` once under the profiler and once under PyTorch's counter."""
    with FlopCounterMode(display=False) as counter:
        step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profiler:
        step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    counted = counter.get_flop_counts().get("Global", {})
    theirs = {str(name): count for name, count in counted.items()}
    return operator_costs(traceana.open(path).tables.ops), theirs


def products(costs: pl.DataFrame, *parts: str) -> int:
    chosen = costs.filter(
        pl.col("kind").str.contains(PRODUCTS)
        & (pl.col("part") != "bias_grad")
        & (pl.col("part").is_in(parts) if parts else True)
    )
    return int(chosen["flops"].sum())


def training(model: Any, image: Any) -> Any:
    def step() -> None:
        model(image).square().mean().backward()

    return step


@pytest.mark.exhaustive(after=4)
@pytest.mark.parametrize("name", MODELS)
def test_forward_and_backward_equal_pytorch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, side = MODELS[name]
    model = build()
    image = torch.randn(BATCH, 3, side, side)
    forward, theirs = recorded(lambda: model(image), tmp_path)
    assert products(forward.costs) == sum(theirs.values()) > 0
    # Nothing of the model is left out.
    assert forward.gaps.is_empty(), forward.gaps
    both, theirs = recorded(training(model, image), tmp_path)
    assert both.gaps.is_empty(), both.gaps
    grouped = sum(
        (conv.groups - 1) * _wgrad(conv, image_side)
        for conv, image_side in _convolutions(model, image)
        if not isinstance(conv, torch.nn.ConvTranspose2d)
    )
    # Of grouped convolutions PyTorch's counter takes the weight's gradient g times too large.
    assert products(both.costs) == sum(theirs.values()) - grouped
    assert products(both.costs, "forward") == products(forward.costs)


def _convolutions(model: Any, image: Any) -> list[tuple[Any, tuple[int, ...]]]:
    """Return the convolutions of a model and the shapes of their outputs."""
    found: list[tuple[Any, tuple[int, ...]]] = []
    kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
    hooks = [
        module.register_forward_hook(
            lambda module, _, output: found.append((module, tuple(output.shape)))
        )
        for module in model.modules()
        if isinstance(module, kinds)
    ]
    model(image)
    for hook in hooks:
        hook.remove()
    return found


def _wgrad(conv: Any, output: tuple[int, ...]) -> int:
    return 2 * prod(map(int, conv.weight.shape)) * output[0] * prod(output[2:])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_pytorch_takes_the_weight_gradient_of_groups_too_large(groups: int, tmp_path: Path) -> None:
    """Closed form: dw[k, c, r, s] sums N·P·Q products, and w has K·(C/g)·R·S elements."""
    conv = torch.nn.Conv2d(4, 8, 3, padding=1, groups=groups, bias=False)
    image = torch.randn(2, 4, 6, 6)
    both, theirs = recorded(training(conv, image), tmp_path)
    right = 2 * (8 * (4 // groups) * 3 * 3) * (2 * 6 * 6)
    assert products(both.costs, "wgrad") == right
    assert products(both.costs, "dgrad") == 0  # the image needs no gradient
    assert theirs["aten.convolution_backward"] == groups * right


@pytest.mark.parametrize("groups", [1, 2])
def test_the_gradients_of_a_transposed_convolution(groups: int, tmp_path: Path) -> None:
    """Closed form: each of the N·C·H·W inputs meets (K/g)·R·S weights, in every direction."""
    conv = torch.nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=groups)
    image = torch.randn(2, 4, 5, 5, requires_grad=True)
    both, theirs = recorded(training(conv, image), tmp_path)
    right = 2 * (2 * 4 * 5 * 5) * (6 // groups) * 3 * 3
    for part in ("forward", "dgrad", "wgrad"):
        assert products(both.costs, part) == right
    bias = both.costs.filter(
        (pl.col("part") == "bias_grad") & (pl.col("kind") == "conv_transpose2d")
    )
    assert bias["flops"].to_list() == [2 * 6 * 9 * 9]
    # Again their gradient of the weight, and theirs alone, is g times too large.
    assert theirs["aten.convolution"] == right
    assert theirs["aten.convolution_backward"] == right + groups * right


def test_linear_layers_have_gradients_of_input_weight_and_bias(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 7), torch.nn.Linear(7, 3)
    )
    both, _ = recorded(training(model, torch.randn(7, 5)), tmp_path)
    linear = both.costs.filter(pl.col("kind") == "linear")
    got = {
        part: sorted(linear.filter(pl.col("part") == part)["flops"].to_list())
        for part in ("forward", "dgrad", "wgrad", "bias_grad")
    }
    one, two, three = 2 * 7 * 5 * 7, 2 * 7 * 7 * 7, 2 * 7 * 7 * 3
    assert got == {
        "forward": sorted([one, two, three]),
        "dgrad": sorted([two, three]),  # none of the first layer
        "wgrad": sorted([one, two, three]),
        "bias_grad": sorted([49, 49, 21]),
    }


def test_fused_attention_on_the_cpu_is_what_its_products_are(tmp_path: Path) -> None:
    """PyTorch's counter does not support the CPU's fused kernel: closed form."""
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()

    both, _ = recorded(step, tmp_path)
    attention = both.costs.filter(pl.col("kind") == "attention")
    pairs = 2 * 3 * 8 * 8
    assert attention.select("part", "flops").rows() == [
        ("forward", 2 * pairs * (4 + 4)),
        ("backward", 2 * pairs * (3 * 4 + 2 * 4)),
    ]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bkj->bik", ((2, 3, 4), (2, 5, 4))),
        ("bchw,kc->bkhw", ((2, 3, 4, 4), (5, 3))),
        ("ij,jk->ik", ((3, 4), (4, 5))),
    ],
)
def test_einsum_counts_by_the_products_inside(
    equation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], tmp_path: Path
) -> None:
    left, right = (torch.randn(shape) for shape in shapes)
    ours, theirs = recorded(lambda: torch.einsum(equation, left, right), tmp_path)
    assert products(ours.costs) == sum(theirs.values()) > 0


def test_products_of_all_forms(tmp_path: Path) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    batch = torch.randn(2, 3, 4)

    def step() -> None:
        torch.mm(a, b)
        torch.addmm(torch.randn(5), a, b)
        torch.bmm(batch, b.expand(2, 4, 5))
        torch.baddbmm(torch.randn(2, 3, 5), batch, b.expand(2, 4, 5))
        torch.matmul(batch, b)
        torch.matmul(torch.randn(7, 1, 3, 4), b.expand(2, 4, 5))

    ours, theirs = recorded(step, tmp_path)
    assert products(ours.costs) == sum(theirs.values()) == 2 * 3 * 4 * 5 * (1 + 1 + 2 + 2 + 2 + 14)


def test_the_products_of_experts_are_those_of_each_alone(tmp_path: Path) -> None:
    """PyTorch's counter has no grouped products: the same network as one product an expert."""
    if not hasattr(torch, "_grouped_mm"):
        pytest.skip("no grouped products")
    make = {"dtype": torch.bfloat16, "requires_grad": True}
    tokens, experts = torch.randn(24, 16, **make), torch.randn(3, 16, 32, **make)
    ends = torch.tensor([4, 12, 24], dtype=torch.int32)

    def grouped() -> None:
        torch._grouped_mm(tokens, experts, offs=ends).square().sum().backward()

    def alone() -> None:
        parts = zip(tokens.split([4, 8, 12]), experts, strict=True)
        torch.cat([one @ expert for one, expert in parts]).square().sum().backward()

    found, _ = recorded(grouped, tmp_path)
    _, theirs = recorded(alone, tmp_path)
    assert products(found.costs) == sum(theirs.values()) == 3 * 2 * 24 * 16 * 32
