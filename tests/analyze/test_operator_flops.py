"""The operators of a trace, each counted once: nesting, parts, left-out operators with reasons."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.support.opened import opened
from tests.support.traces import TraceBuilder
from traceana.analyze.operator_flops import COSTS, GAPS, operator_costs
from traceana.flops.registry import formulas
from traceana.trace.schema import conform

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
SHARED = ROOT.parent / "shared" / "traces" / "kineto"
KINETO = sorted(FIXTURES.glob("*.json.gz"))


class Ops:
    """Rows of ``ops``, nested by hand."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(
        self,
        name: str,
        shapes: object = None,
        scalars: list[str] | None = None,
        parent: int | None = None,
        types: list[str] | None = None,
        **more: object,
    ) -> int:
        listed = shapes if isinstance(shapes, list) else []
        if types is None and isinstance(shapes, list):
            types = ["float" if one else "" for one in listed]
        depth = 0
        if parent is not None:
            depth = int(str(self.rows[parent]["depth"])) + 1
        self.rows.append(
            {
                "name": name,
                "input_shapes": json.dumps(shapes) if isinstance(shapes, list) else shapes,
                "input_types": None if types is None else json.dumps(types),
                "inputs": None if scalars is None else json.dumps(scalars),
                "parent": parent,
                "depth": depth,
                "start": 10 * len(self.rows),
                "duration": 100 // (depth + 1),
                "process": 1,
                **more,
            }
        )
        return len(self.rows) - 1

    def frame(self) -> pl.DataFrame:
        return conform("ops", pl.DataFrame(self.rows, infer_schema_length=None))


CONV = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []]
STRIDES = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
FLOPS = 2 * (2 * 4 * 64) * 27


def test_the_outermost_of_nested_convolutions_counts() -> None:
    ops = Ops()
    outer = ops.add("aten::conv2d", CONV, STRIDES)
    middle = ops.add(
        "aten::convolution", [*CONV, [], []], [*STRIDES[:6], "False", "[0]", "1"], outer
    )
    ops.add(
        "aten::mkldnn_convolution", CONV, ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"], middle
    )
    alone = ops.add("aten::convolution", [*CONV, [], []], [*STRIDES[:6], "False", "[0]", "1"])
    result = operator_costs(ops.frame())
    assert result.costs.schema == pl.Schema(COSTS)
    assert result.costs.select("op", "part", "kind", "flops").rows() == [
        (outer, "forward", "conv2d", FLOPS),
        (alone, "forward", "conv2d", FLOPS),
    ]
    assert result.gaps.is_empty()


def test_where_the_outer_one_cannot_be_counted_the_inner_one_does() -> None:
    """``padding='same'`` is a text, which the profiler does not record."""
    ops = Ops()
    outer = ops.add("aten::conv2d", CONV, ["", "", "", "[1, 1]", "", "[1, 1]", "1"])
    inner = ops.add(
        "aten::convolution", [*CONV, [], []], [*STRIDES[:6], "False", "[0]", "1"], outer
    )
    result = operator_costs(ops.frame())
    assert result.costs.select("op", "flops").rows() == [(inner, FLOPS)]
    assert result.gaps.is_empty()


@pytest.mark.parametrize(("inside", "size"), [("c10::BFloat16", 2), ("c10::Half", 2), ("float", 4)])
def test_a_product_under_autocast_moves_the_types_in_which_it_computes(
    inside: str, size: int
) -> None:
    ops = Ops()
    shapes = [[64, 32], [16, 32], [16]]
    outer = ops.add("aten::linear", shapes, types=["float"] * 3)
    ops.add("aten::_to_copy", [[16, 32]], parent=outer, types=["float"])
    product = [[16], [64, 32], [32, 16], [], []]
    ops.add("aten::addmm", product, parent=outer, types=[*[inside] * 3, "Scalar", "Scalar"])
    costs = operator_costs(ops.frame()).costs
    (row,) = costs.filter(pl.col("kind") == "linear").to_dicts()
    assert row["bytes"] == size * (64 * 32 + 16 * 32 + 16 + 64 * 16)


def _counted(ops: Ops) -> list[tuple[int, int]]:
    costs = operator_costs(ops.frame()).costs
    return list(costs.select("op", "flops").iter_rows())


def test_under_vmap_the_operators_on_the_whole_batch_count() -> None:
    """As functorch records a linear layer of [64, 256] for 16 examples: no inputs twice."""
    ops, example = Ops(), [[64, 256], [256, 32]]
    row = ops.add("aten::linear", [[64, 256], [32, 256], []])
    for name in ("aten::matmul", "aten::matmul", "aten::mm"):
        row = ops.add(name, example, parent=row)
    batch = row = ops.add("aten::matmul", [[16, 64, 256], [16, 256, 32]], parent=row)
    row = ops.add("aten::matmul", [[16, 64, 256], [16, 256, 32]], parent=row)
    ops.add("aten::bmm", [[16, 64, 256], [16, 256, 32]], parent=row)
    assert _counted(ops) == [(batch, 2 * 16 * 64 * 256 * 32)]


def test_of_a_dtensor_the_shard_counts() -> None:
    """The operator is recorded with the whole tensors, and inside it with those of this rank."""
    ops, whole = Ops(), [[2048, 1024], [1024, 1024]]
    row = ops.add("aten::linear", [[128, 16, 1024], [1024, 1024], []])
    for name, shapes in (("aten::matmul", [[128, 16, 1024], [1024, 1024]]), ("aten::mm", whole)):
        row = ops.add(name, shapes, parent=row)
    shard = ops.add("aten::mm", [[2048, 1024], [1024, 512]], parent=row)
    assert _counted(ops) == [(shard, 2 * 2048 * 1024 * 512)]


def test_an_operator_inside_itself_with_other_ranks_is_no_shard() -> None:
    """A number where the operator around it has a vector."""
    ops = Ops()
    row = ops.add("aten::mul", [[5], [5]])
    ops.add("aten::mul", [[], []], parent=row)
    assert _counted(ops) == [(row, 5)]


def test_inputs_twice_with_nothing_inside_are_the_operator_itself() -> None:
    """As ``torch.func.grad`` records a product."""
    ops, product = Ops(), [[256, 64], [64, 256]]
    node = ops.add("MmBackward0", [[64, 256]])
    outer = ops.add("aten::mm", product, parent=node)
    row = ops.add("aten::mm", product, parent=outer)
    ops.add("aten::mm", product * 2, parent=row)
    frame = ops.frame()
    costs = operator_costs(frame)
    assert costs.costs.select("op", "flops").rows() == [(outer, 2 * 256 * 64 * 256)]
    assert costs.gaps.is_empty()


def test_a_product_of_tangents_counts_beside_that_of_the_values() -> None:
    """As ``torch.func.jvp`` records it, inside another transform."""
    ops, product = Ops(), [[4, 6], [6, 3]]
    row = ops.add("aten::mm", product)
    for _ in range(2):
        row = ops.add("aten::mm", product * 2, parent=row)
    inner = [ops.add("aten::mm", product, parent=row) for _ in range(2)]
    for row in inner:
        ops.add("aten::mm", product * 2, parent=row)
    assert _counted(ops) == [(op, 2 * 4 * 6 * 3) for op in inner]


def test_under_functorch_what_has_no_count_is_listed() -> None:
    ops, product = Ops(), [[4, 6], [5, 3]]
    row = ops.add("aten::mm", product)
    ops.add("aten::mm", product * 2, parent=row)
    gaps = operator_costs(ops.frame()).gaps
    assert gaps["op"].to_list() == [row]
    assert gaps["whole"].to_list() == [True]


def test_what_cannot_be_counted_is_listed_once_with_reason() -> None:
    ops = Ops()
    outer = ops.add("aten::conv2d", CONV)
    ops.add("aten::cudnn_convolution", CONV, parent=outer)
    ops.add("aten::conv2d", None)
    ops.add("aten::conv2d", "[[-1]]")
    ops.add("aten::view", [[2, 3]])
    custom = ops.add("my::kernel", [[2, 3]])
    ops.add("aten::mul", [[2, 3], [2, 3]], parent=custom)
    ops.add("my::kernel", [[2, 3]])
    result = operator_costs(ops.frame())
    assert result.gaps.schema == pl.Schema(GAPS)
    names = ops.frame()["name"].cast(pl.String).gather(result.gaps["op"])
    assert sorted(zip(names, result.gaps["reason"], strict=True)) == [
        ("aten::conv2d", "input 3: value not recorded"),
        ("aten::conv2d", "malformed shapes"),
        ("aten::conv2d", "shapes not recorded"),
        # One holds a product: it is listed for its own work.
        ("my::kernel", "no FLOP formula for this operator"),
        ("my::kernel", "no FLOP formula for this operator"),
    ]
    assert result.gaps["whole"].sum() == 3
    assert result.costs["flops"].to_list() == [6]


def test_gradients_of_an_old_trace_follow_from_the_operators_inside() -> None:
    """PyTorch before 1.11: no scalars, and the library's operators inside."""
    x, weight, gradient = [2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 8, 8]
    ops = Ops()
    for of_input in (True, False):
        node = ops.add("CudnnConvolutionBackward", [gradient], direction="backward")
        both = ops.add(
            "aten::cudnn_convolution_backward",
            [x, gradient, weight, *[[]] * 8],
            parent=node,
            direction="backward",
        )
        if of_input:
            ops.add("aten::cudnn_convolution_backward_input", [[], gradient, weight], parent=both)
        ops.add("aten::cudnn_convolution_backward_weight", [[], gradient, x], parent=both)
    costs = operator_costs(ops.frame()).costs
    assert costs.select("op", "part", "flops").rows() == [
        (1, "dgrad", FLOPS),
        (1, "wgrad", FLOPS),
        (5, "wgrad", FLOPS),
    ]


def test_the_output_of_an_old_convolution_follows_from_its_backward_node() -> None:
    ops = Ops()
    for number, (sequence, gradients) in enumerate(
        ((7, [[2, 4, 4, 4]]), (8, [[2, 4, 8, 8], [2, 4, 4, 4]]))
    ):
        ops.add("aten::conv2d", CONV, sequence=sequence, direction="forward")
        for gradient in gradients:
            name = "CudnnConvolutionBackward" if number else "ConvolutionBackward0"
            ops.add(name, [gradient], sequence=sequence, direction="backward")
    result = operator_costs(ops.frame())
    # The second number is that of two nodes with different gradients: it is ambiguous.
    assert result.costs.select("op", "flops").rows() == [(0, 2 * (2 * 4 * 16) * 27)]
    names = ops.frame()["name"].cast(pl.String).gather(result.gaps["op"])
    assert names.to_list().count("aten::conv2d") == 1


def test_a_checkpoint_recomputes_the_forward_pass() -> None:
    ops = Ops()
    node = ops.add("CheckpointFunctionBackward", direction="backward")
    ops.add("aten::conv2d", CONV, STRIDES, node, direction="backward")
    ops.add("aten::mul", [[4], [4]], parent=node, direction="backward")
    other = ops.add("MulBackward0", [[4]], direction="backward")
    ops.add("aten::mul", [[4], [4]], parent=other, direction="backward")
    ops.add("aten::relu", [[4]], parent=other, direction="backward")
    costs = operator_costs(ops.frame()).costs
    assert costs["part"].to_list() == ["forward", "forward", "backward", "forward"]


def test_the_engine_adds_up_gradients_without_a_node() -> None:
    ops = Ops()
    ops.add("aten::add", [[4], [4], []], direction="forward")
    ops.add("aten::add", [[4], [4], []], direction="backward")
    costs = operator_costs(ops.frame()).costs
    assert costs["part"].to_list() == ["forward", "backward"]


def test_products_of_a_backward_operator_are_of_its_pass() -> None:
    ops = Ops()
    product = [[18, 8], [18, 6], [6, 8], [], []]
    forward = ops.add("aten::conv_tbc", [[9, 2, 6], [3, 6, 8], [8], []], direction="forward")
    ops.add("aten::addmm_", product, parent=forward, direction="forward")
    node = ops.add("ConvTbcBackward0", [[9, 2, 8]], direction="backward")
    both = ops.add("aten::conv_tbc_backward", [[9, 2, 8]], parent=node, direction="backward")
    ops.add("aten::addmm_", product, parent=both, direction="backward")
    # A checkpoint recomputes inside the node that needs the activations.
    ops.add("aten::linear", [[18, 6], [8, 6], [8]], parent=node, direction="backward")
    costs = operator_costs(ops.frame()).costs
    assert costs["part"].to_list() == ["forward", "backward", "forward"]


def test_what_nodes_of_views_compute_is_of_the_backward_pass() -> None:
    """Their names do not end in Backward."""
    ops = Ops()
    evaluates = "autograd::engine::evaluate_function: torch::autograd::CopySlices"
    called = ops.add(evaluates, direction="backward")
    node = ops.add("torch::autograd::CopySlices", parent=called, direction="backward")
    ops.add("aten::copy_", [[4, 8], [4, 8]], parent=node, direction="backward")
    inner = ops.add("torch::autograd::CopyBackwards", parent=node, direction="backward")
    ops.add("aten::mul", [[4], [4]], parent=inner, direction="backward")
    # Gradients are summed in the engine's call of a node, whatever its name.
    other = ops.add("autograd::engine::evaluate_function: Mine", direction="backward")
    ops.add("aten::add_", [[4], [4]], parent=other, direction="backward")
    costs = operator_costs(ops.frame()).costs
    assert costs["part"].to_list() == ["backward"] * 3


def test_the_only_product_of_a_square_first_layer_is_of_the_weight() -> None:
    ops = Ops()
    node = ops.add("AddmmBackward0", [[4, 4]], direction="backward")
    ops.add("aten::mm", [[4, 4], [4, 4]], parent=node, direction="backward")
    two = ops.add("AddmmBackward0", [[4, 4]], direction="backward")
    ops.add("aten::mm", [[4, 4], [4, 4]], parent=two, direction="backward")
    ops.add("aten::mm", [[4, 4], [4, 4]], parent=two, direction="backward")
    costs = operator_costs(ops.frame()).costs
    assert costs["part"].to_list() == ["wgrad", "dgrad", "wgrad"]


def test_an_operator_without_a_name_has_no_formula() -> None:
    builder = TraceBuilder()
    builder.row("ops", name=None, start=0, duration=10)
    result = operator_costs(builder.build().tables.ops)
    assert result.costs.is_empty()
    assert result.gaps["op"].to_list() == [0]


def test_no_operators_cost_nothing() -> None:
    result = operator_costs(TraceBuilder().build().tables.ops)
    assert result.costs.is_empty()
    assert result.costs.schema == pl.Schema(COSTS)
    assert result.gaps.is_empty()
    assert result.gaps.schema == pl.Schema(GAPS)


# Elements of the weights and positions of the outputs, of a batch of 8.
ALEXNET = {
    "alexnet": (
        (64 * 3 * 121, 55 * 55),
        (192 * 64 * 25, 27 * 27),
        (384 * 192 * 9, 13 * 13),
        (256 * 384 * 9, 13 * 13),
        (256 * 256 * 9, 13 * 13),
    ),
    # The two columns of 2012: groups in the second, fourth and fifth convolution.
    "alexnet_2012": (
        (96 * 3 * 121, 55 * 55),
        (256 * 48 * 25, 27 * 27),
        (384 * 256 * 9, 13 * 13),
        (384 * 192 * 9, 13 * 13),
        (256 * 192 * 9, 13 * 13),
    ),
}
LINEAR = (9216 * 4096, 4096 * 4096, 4096 * 1000)
BATCH, STEPS = 8, 3


@pytest.mark.parametrize("path", KINETO, ids=lambda path: path.name)
def test_the_fixtures_cost_what_their_layers_do(path: Path) -> None:
    costs = operator_costs(opened(path).tables.ops).costs
    convs = [2 * BATCH * weights * positions for weights, positions in ALEXNET[_network(path)]]
    linears = [2 * BATCH * weights for weights in LINEAR]
    scripted = "torchscript" in path.name
    # TorchScript's gradients of linear layers are products in no layer's node.
    assert _flops(costs, "conv2d", "forward") == sorted(convs * STEPS)
    assert _flops(costs, "conv2d", "wgrad") == sorted(convs * STEPS)
    assert _flops(costs, "conv2d", "dgrad") == sorted(convs[1:] * STEPS)
    assert _flops(costs, "linear", "forward") == sorted(linears * STEPS)
    if scripted:
        assert _flops(costs, "matmul", "backward") == sorted(linears * 2 * STEPS)
    else:
        assert _flops(costs, "linear", "wgrad") == sorted(linears * STEPS)
        assert _flops(costs, "linear", "dgrad") == sorted(linears * STEPS)


def _network(path: Path) -> str:
    return path.name.partition("-")[0]


def _flops(costs: pl.DataFrame, kind: str, part: str) -> list[int]:
    chosen = (pl.col("kind") == kind) & (pl.col("part") == part)
    return sorted(costs.filter(chosen)["flops"].to_list())


@pytest.mark.parametrize("path", KINETO, ids=lambda path: path.name)
def test_nothing_is_counted_inside_of_what_counts(path: Path) -> None:
    trace = opened(path)
    counted = set(operator_costs(trace.tables.ops).costs["op"])
    parents = trace.tables.ops["parent"].to_list()
    for op in counted:
        parent = parents[op]
        while parent is not None:
            assert parent not in counted
            parent = parents[parent]


def test_every_formula_named_is_explained() -> None:
    costs = operator_costs(opened(KINETO[0]).tables.ops).costs
    assert set(costs["formula"]) <= set(formulas())


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip("no shared traces")
    return path


RESNET_50 = 2 * 4_087_136_256
"""Operations of the convolutions of one image of 224 x 224, from the layers' extents below."""


def test_the_figure_of_resnet_50() -> None:
    """7x7 stem, then 3, 4, 6, 3 bottlenecks; the stride stands at the 3x3 (torchvision)."""
    macs, channels, side = 64 * 3 * 49 * 112 * 112, 64, 56
    for blocks, inner, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            out = side // step
            macs += channels * inner * side * side + inner * inner * 9 * out * out
            macs += inner * 4 * inner * out * out
            if block == 0:
                macs += channels * 4 * inner * out * out
            channels, side = 4 * inner, out
    assert 2 * macs == RESNET_50


@pytest.mark.parametrize("name", ["workers0", "workers4"])
def test_a_trace_without_scalars_gives_resnet_50(name: str) -> None:
    trace = opened(shared(f"resnet50_train_v100_{name}.json.gz"))
    costs = operator_costs(trace.tables.ops).costs.filter(pl.col("kind") == "conv2d")
    parts = dict(costs.group_by("part").agg(pl.col("flops").sum()).iter_rows())
    steps, batch = 6, 32
    assert parts["forward"] == parts["wgrad"] == steps * batch * RESNET_50
    stem = 2 * 64 * 3 * 49 * 112 * 112
    assert parts["dgrad"] == steps * batch * (RESNET_50 - stem)


@pytest.mark.parametrize(
    "name",
    [
        "resnet50_train_v100_oldest_schema.json.gz",
        "resnet_act_checkpoint_mi300x.json.gz",
        "timesformer_h100.json.gz",
        "eager_b200.json.gz",
        "recsys_rank0.json.gz",
        "diff_control_a100.json.gz",
    ],
)
def test_shared_traces_are_counted_or_listed(name: str) -> None:
    trace = opened(shared(name))
    result = operator_costs(trace.tables.ops)
    assert result.costs["flops"].sum() > 0
    assert result.costs["op"].is_in(list(range(trace.tables.ops.height))).all()
    assert result.gaps["reason"].str.len_chars().min() > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("strides", "flops"), [("[[4, 1], [6, 1]]", 2 * 3 * 4 * 6), ("[[], [6, 1]]", None), (None, 144)]
)
def test_a_product_of_an_operand_without_strides_is_sparse(
    strides: str | None, flops: int | None
) -> None:
    ops = Ops()
    ops.add("aten::mm", [[3, 4], [4, 6]], input_strides=strides)
    found = operator_costs(ops.frame())
    assert found.costs["flops"].to_list() == ([] if flops is None else [flops])
    assert found.gaps["reason"].to_list() == (
        ["sparse operand: number of stored elements not recorded"] if flops is None else []
    )
