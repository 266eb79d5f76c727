"""The cost of every operator, each counted once.

``aten::conv2d`` calls ``aten::convolution``, which calls ``aten::_convolution``, which calls a
library's operator. All four have formulas; the outermost counts. A matrix product, a sum or a
multiplication has one name in both passes; the node of autograd's graph around it determines the
part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, groups
from traceana.columns.nesting import NONE, Flags, Ints, Tree, from_rows, to_rows
from traceana.enrich.operators import EarlyStopped
from traceana.flops.call import PRODUCT, Call, Cost, Refusal, Shape, UncountableError
from traceana.flops.registry import NO_FORMULA, cost, operators_of
from traceana.vocabulary.operators import (
    MATRIX_PRODUCTS,
    Operator,
    of_kinds,
    operator_row,
    passive,
    positions,
)

OUTPUT: Final = "_output"
"""Column: the shape of the result as JSON text, in a list of one; null where unknown."""
_WANTED: Final = ("_of_input", "_of_weight")
"""Columns: whether the gradient of the input, and of the weight, was computed."""
_CONVOLUTIONS: Final = operators_of("convolution", "convolution_transpose")
_BACKWARD: Final = operators_of("convolution_backward", "convolution_transpose_backward")
_INPUT_GRADIENTS: Final = operators_of("convolution_dgrad")
_WEIGHT_GRADIENTS: Final = operators_of("convolution_wgrad")

PART = pl.Enum(["forward", "backward", "dgrad", "wgrad", "bias_grad"])

COSTS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "op": pl.UInt32,  # row of `ops`
    "part": PART,
    "kind": pl.String,  # "conv2d", "linear", "batch_norm"
    "flops": pl.Int64,  # a multiply-accumulate is two
    "bytes": pl.Int64,  # compulsory; null where a type or a shape is unknown
    "formula": pl.String,
    "skipped": pl.Int64,  # the part of `flops` outside a causal mask; null where unknown
}
GAPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "op": pl.UInt32,  # row of `ops`
    "reason": pl.String,
    "whole": pl.Boolean,  # a refused call: includes its child operators
}

_ATEN: Final = re.compile(r"^(?:torch\.nn\.functional\.|torch\.|Tensor\.|(?=[a-z_]\w*$))")
"""Prefixes of the names of ATen's operators by PyProf and old versions of emit_nvtx."""

_INPUTS: Final = ("input_shapes", "input_types", "inputs", "input_strides")
_KEY: Final = ("name", *_INPUTS, OUTPUT, *_WANTED)
"""The columns that describe a call."""


class OperatorCosts(msgspec.Struct, frozen=True):
    """The costs of the operators of a trace, and the operators without a count.

    ``counted`` are the operators with costs; ``tree`` is the nesting. ``costs`` has the columns
    :data:`COSTS`, one row per operator and part; children of a counted operator have no rows.
    ``gaps`` has the columns :data:`GAPS`, one row per operator without a count.
    """

    tree: Tree
    counted: Flags
    costs: pl.DataFrame
    gaps: pl.DataFrame


def operator_costs(ops: pl.DataFrame, rules: Sequence[tuple[str, str, str]] = ()) -> OperatorCosts:
    """Return the costs of ``ops``, the whole table of a trace with its nesting.

    ``rules`` are a user's own rows: pattern of the operator's name, formula, operands.
    Formulas are evaluated once per distinct call. The outermost of nested operators with a cost
    counts; inside a node of the backward pass, the part is the node's.
    """
    repeats = _repeats(ops)
    tree = Tree.of_table(ops)
    is_product = Texts.of(ops["name"]).matching(of_kinds(*MATRIX_PRODUCTS))
    rows = ops.select(
        # A trace may have lost the names of its operators.
        pl.col("name").fill_null(""),
        *("process", "rank", "start", "parent", "sequence", "direction"),
        pl.col(_INPUTS).gather(repeats.source) if repeats.twice else pl.col(_INPUTS),
    ).with_row_index("op")
    rows = rows.with_columns(_types_inside(rows["input_types"], ops["name"], tree))
    # Only of products they count: a sparse matrix has a shape and no strides.
    strides = pl.when(pl.lit(pl.Series(is_product))).then("input_strides").alias("input_strides")
    rows = rows.with_columns(strides).join(hints(rows), on="op", how="left", maintain_order="left")
    calls = _Calls.of(rows.select(_KEY), rules)
    left = EarlyStopped.of(ops)
    has_parts = np.bincount(calls.costs["_call"], minlength=len(calls.names)) > 0
    has_cost = has_parts[calls.of_op]
    has_cost &= ~(left.innermost | left.around)
    has_cost &= ~_around_more(calls, tree, has_cost, repeats)
    has_cost &= ~tree.holding(repeats.shards)
    counted = tree.outermost(has_cost)
    op = np.flatnonzero(counted)
    costs = (
        pl.DataFrame({"op": op, "_call": calls.of_op[op]}, schema_overrides={"op": pl.UInt32})
        .join(calls.costs, on="_call", maintain_order="left")
        .select(pl.col(name).cast(dtype) for name, dtype in COSTS.items())
    )
    # The composite implementation computes all scores, and masks them afterwards.
    math = (calls.names == "aten::_scaled_dot_product_attention_math").to_numpy()[calls.of_op]
    square = pl.Series(math | tree.holding(math)).gather(costs["op"])
    costs = costs.with_columns(pl.when(square).then(0).otherwise("skipped").alias("skipped"))
    gaps = _gaps(calls, tree, counted)
    return OperatorCosts(tree, counted, _with_parts(costs, rows, tree), gaps)


_FP32: Final = '"float"'
_HALVES: Final = ('"c10::BFloat16"', '"c10::Half"')


def _types_inside(types: pl.Series, names: pl.Series, tree: Tree) -> pl.Series:
    """Return the input types of each operator, of a product in FP32 those in which it computes.

    Autocast casts the inputs of a product inside its operator: the product inside has them.
    """
    is_product = Texts.of(names).matching(of_kinds("convolution", *MATRIX_PRODUCTS))
    if types.null_count() == len(types) or not is_product.any():
        return types
    rows = np.flatnonzero(is_product)
    given = types.gather(rows)
    in_fp32 = np.zeros(len(types), dtype=np.bool_)
    in_fp32[rows] = given.str.contains(_FP32, literal=True).fill_null(False).to_numpy()
    for half in _HALVES:
        inner = np.zeros(len(types), dtype=np.bool_)
        inner[rows] = given.str.contains(half, literal=True).fill_null(False).to_numpy()
        cast = pl.Series(in_fp32 & tree.holding(inner & ~in_fp32))
        if cast.any():
            types = types.to_frame().select(
                pl.when(cast)
                .then(pl.col(types.name).str.replace_all(_FP32, half, literal=True))
                .otherwise(types.name)
                .alias(types.name)
            )[types.name]
    return types


class _Repeats(NamedTuple):
    """The operators that are recorded again right inside their own record.

    ``again`` are the inner records. ``source`` is for each operator the row that has its inputs
    once: the operator itself, or an outer record where the inputs are recorded ``twice`` or more.
    ``shards`` are inner records of smaller inputs: an operator of a ``DTensor`` is recorded with
    the shapes of the whole tensors, and inside it with the shapes of the shards, which run.
    """

    again: Flags
    shards: Flags
    source: Ints
    twice: bool


def _repeats(ops: pl.DataFrame) -> _Repeats:
    """Return the operators of ``ops`` that are recorded again.

    functorch calls an operator again for every transformation (``vmap``, ``grad``, ``jvp``), often
    with the inputs once more in the record.
    """
    parent = from_rows(ops["parent"])
    name = Texts.of(ops["name"]).code_of_row
    (rows,) = np.nonzero((parent != NONE) & (name == name[parent]))
    shapes = ops["input_shapes"]
    pairs = pl.DataFrame({"inner": shapes.gather(rows), "outer": shapes.gather(parent[rows])}).cast(
        pl.String
    )
    distinct = pairs.unique().with_columns(
        pl.struct("inner", "outer")
        .map_elements(lambda pair: _times(**pair), return_dtype=pl.Int64)
        .alias("times")
    )
    times = pairs.join(distinct, on=["inner", "outer"], how="left", nulls_equal=True)["times"]
    again, shards = np.zeros((2, ops.height), dtype=np.bool_)
    again[rows[(times > 0).to_numpy()]] = True
    shards[rows[(times < 0).to_numpy()]] = True
    source, twice = np.arange(ops.height), bool((times > 1).any())
    if twice:
        # Parents come first. The repeated inputs may themselves be recorded again.
        repeated = pl.DataFrame({"row": rows, "times": times}).filter(pl.col("times") > 0)
        for row, number in repeated.iter_rows():
            above = parent[row]
            if number > 1 or source[above] != above:
                source[row] = source[above]
    return _Repeats(again, shards, source, twice)


_EXTENT: Final = re.compile(r"\d+")


def _times(inner: str | None, outer: str | None) -> int:
    """Return how often the shapes ``inner`` repeat the shapes ``outer``: 0 where they are others.

    -1 where ``inner`` are the shapes of shards. Scalars have no extents that show whether there are
    more of them or the same ones again.
    """
    if inner is None or inner == outer:
        return int(inner is not None)
    if outer is None or not any(sign.isdigit() for sign in outer):
        return 0
    if _EXTENT.sub("n", inner) == _EXTENT.sub("n", outer):
        extents = zip(_EXTENT.findall(inner), _EXTENT.findall(outer), strict=True)
        return -int(all(int(shard) <= int(whole) for shard, whole in extents))
    once = f"{outer[1:-1]}, "
    number = (len(inner) - len("[]") + len(", ")) // len(once)
    return number if f"{inner[1:-1]}, " == number * once else 0


_ROUNDING: Final = 1 + 1e-9


def _around_more(calls: _Calls, tree: Tree, has_cost: Flags, repeats: _Repeats) -> Flags:
    """Return which operators compute less than the operators inside them, under functorch.

    ``vmap`` records an operator with the shapes of one example, and inside it operators on the
    whole batch. ``jvp`` records an operator around the operators of the value and of the tangent.
    The inner operators are what runs. A product is compared by the FLOPs of products alone: a
    convolution that adds its bias in a separate operator computes no more. Operators without FLOPs
    are compared by bytes. Operators outside of functorch are not compared.
    """
    computes_less, counts_less = np.zeros((2, len(has_cost)), dtype=np.bool_)
    again = repeats.again & has_cost
    if not again.any():
        return computes_less
    transformed = again | tree.inside(again) | tree.holding(again)
    product = pl.col("formula").str.contains(PRODUCT)
    figures = (
        pl.col("flops").filter(product).sum().alias("products"),
        pl.col("flops", "bytes").sum(),
    )
    per_call = calls.costs.group_by("_call").agg(figures)
    # Sums of large counts exceed 64 bits.
    by_call = np.zeros((len(calls.names), 3))
    by_call[per_call["_call"].to_numpy()] = per_call.drop("_call").to_numpy()
    # What the operators inside each operator count, added up from the innermost ones.
    inside = np.zeros((len(has_cost), 3))
    for level in reversed(tree.levels):
        rows = level[transformed[level]]
        alone = np.where(has_cost[rows, None], by_call[calls.of_op[rows]], 0.0)
        fewer_products, fewer_flops, fewer_bytes = (inside[rows] > _ROUNDING * alone).T
        is_product, has_flops = alone[:, 0] > 0, alone[:, 1] > 0
        by_flops = has_cost[rows] & np.where(is_product, fewer_products, fewer_flops)
        less = by_flops | (has_cost[rows] & ~has_flops & fewer_bytes)
        computes_less[rows], counts_less[rows] = by_flops, less
        counts = np.where((has_cost[rows] & ~less)[:, None], alone, inside[rows])
        parent = tree.parent[rows]
        np.add.at(inside, parent[parent != NONE], counts[parent != NONE])
    # Without functorch, torch.where of scalars calls itself, with the scalars as tensors.
    return counts_less if computes_less.any() or repeats.twice else computes_less


_CONVOLUTION_NODE: Final = r"Conv\w*Backward\d*$"


def hints(ops: pl.DataFrame) -> pl.DataFrame:
    """Return what replaces the scalar inputs of ``ops`` (row numbers in ``op``) where they are not
    recorded: the :data:`OUTPUT` of a convolution, and the gradients that were :data:`_WANTED`.

    The output's shape is from the backward node of the same sequence number. Each thread has its
    own sequence numbers: a number of several nodes with different gradients is ambiguous and gives
    no hint. The library's operators inside a backward operator are the computed gradients.
    """
    names = ops["name"].unique()
    related = names.filter(names.cast(pl.String).str.contains("(?i)conv"))
    rows = ops.filter(pl.col("name").is_in(related.implode()))
    rows = rows.with_columns(pl.col("name").cast(pl.String))
    name, keys = pl.col("name"), ["process", "rank", "sequence"]
    unrecorded = rows.filter(pl.col("inputs").is_null())
    output = (
        rows.filter(name.str.contains(_CONVOLUTION_NODE), pl.col("sequence") >= 0)
        .drop_nulls("input_shapes")
        .group_by(keys)
        .agg(pl.col("input_shapes").unique())
        .filter(pl.col("input_shapes").list.len() == 1)
        .select(*keys, pl.col("input_shapes").list.first().alias(OUTPUT))
        .join(unrecorded.filter(name.is_in(_CONVOLUTIONS)), on=keys, nulls_equal=True)
    )
    of_input, of_weight = _WANTED
    wanted = (
        rows.filter(name.is_in([*_INPUT_GRADIENTS, *_WEIGHT_GRADIENTS]))
        .group_by(pl.col("parent").alias("op"))
        .agg(
            name.is_in(_INPUT_GRADIENTS).any().alias(of_input),
            name.is_in(_WEIGHT_GRADIENTS).any().alias(of_weight),
        )
        .join(unrecorded.filter(name.is_in(_BACKWARD)), on="op")
    )
    return pl.concat([output.select("op", OUTPUT), wanted.select("op", *_WANTED)], how="diagonal")


class _Calls(msgspec.Struct, frozen=True):
    """The distinct calls of operators: ``names`` and ``reasons`` without a count by call, ``costs``
    by ``_call``, and the call of each operator."""

    of_op: Ints
    names: pl.Series
    reasons: pl.Series
    costs: pl.DataFrame

    @classmethod
    def of(cls, rows: pl.DataFrame, rules: Sequence[tuple[str, str, str]]) -> _Calls:
        """Return the calls of ``rows``, whose columns are the key."""
        # What is recorded nowhere distinguishes nothing.
        recorded = [name for name in _KEY if rows[name].null_count() < rows.height]
        first = groups(rows, *recorded or _KEY)
        is_first = first == np.arange(len(first))
        calls = rows.filter(pl.Series(is_first, dtype=pl.Boolean))
        calls = calls.with_columns(pl.col("name").cast(pl.String))
        reasons: list[str | None] = []
        costs: list[tuple[int, str, str, int, int | None, str, int | None]] = []
        # The user's rules come first, and of several the first.
        ruled = np.full(calls.height, NONE)
        for rule in reversed(range(len(rules))):
            ruled[calls["name"].str.contains(rules[rule][0]).to_numpy()] = rule
        by_user = [Operator(formula=formula, operands=positions(at)) for _, formula, at in rules]
        for number, (name, *call) in enumerate(calls.iter_rows()):
            row = operator_row(name) if ruled[number] == NONE else by_user[ruled[number]]
            if not row.formula:
                name = _ATEN.sub("aten::", name, count=1)
                row = operator_row(name)
            result = _cost_of(row, name, *call)
            if isinstance(result, Refusal):
                reasons.append(result.reason)
                continue
            reasons.append(None)
            costs += (
                (number, p.part, p.kind, p.flops, p.bytes, p.formula, p.skipped) for p in result
            )
        schema = {"_call": pl.Int64, **{name: COSTS[name] for name in COSTS if name != "op"}}
        return cls(
            (np.cumsum(is_first) - 1)[first],
            calls["name"],
            pl.Series(reasons, dtype=pl.String),
            pl.DataFrame(costs, schema=schema, orient="row"),
        )


def _cost_of(
    row: Operator,
    name: str,
    shapes: str | None,
    types: str | None,
    inputs: str | None,
    strides: str | None,
    output: str | None,
    *wanted: bool | None,
) -> tuple[Cost, ...] | Refusal:
    if not row.formula:
        return Refusal(NO_FORMULA)
    try:
        call = Call.decode(
            name,
            shapes,
            types,
            inputs,
            output=None if output is None else Call.decode("", output).shape(0),
            wanted=None if None in wanted else tuple(map(bool, wanted)),
        )
        steps = () if strides is None else Call.decode("", strides).shapes
    except UncountableError as error:
        return Refusal(str(error))
    if len(steps) == len(call.shapes) and any(
        shape and not step for shape, step in zip(call.shapes, steps, strict=True)
    ):
        return Refusal("sparse operand: number of stored elements not recorded")
    return cost(call, row)


def _gaps(calls: _Calls, tree: Tree, counted: Flags) -> pl.DataFrame:
    """Return the operators that are neither counted, nor children of a counted one, nor passive.

    An operator with a formula that could not be counted is listed, with its children, unless
    children are counted. An operator without a formula is counted by its children, and listed for
    its self work. A call without a requested gradient costs nothing, and is not a gap.
    """
    idle = pl.select(passive(pl.lit(calls.names))).to_series().to_numpy()
    settled = calls.reasons.is_null().to_numpy()
    active = ~idle[calls.of_op] & ~counted & ~tree.inside(counted)
    active &= ~settled[calls.of_op]
    without_formula = (
        active & (calls.reasons == NO_FORMULA).fill_null(False).to_numpy()[calls.of_op]
    )
    refused = tree.outermost(active & ~without_formula & ~tree.holding(counted))
    without_formula &= ~tree.inside(refused)
    op = np.flatnonzero(refused | without_formula)
    return pl.DataFrame(
        {"op": op, "reason": calls.reasons[calls.of_op[op]], "whole": refused[op]}, schema=GAPS
    )


# A checkpoint runs the forward pass again inside its node.
_NODE: Final = (
    r"^autograd::engine::evaluate_function: |Backward\d*$|"
    r"(?:AccumulateGrad|CopySlices|CopyBackwards)$"
)
_RECOMPUTING: Final = r"Checkpoint\w*Backward\d*$"
# An operator of the backward pass itself, as aten::conv_tbc_backward, recomputes nothing.
_GRADIENT: Final = r"^aten::\w+_backward$"
_LINEAR_NODE: Final = r"(?:^|: )(?:Addmm|Mm|Linear)Backward\d*$"
# Most layers have separate operators for the backward pass: forward operators inside it recompute.
# Only these kinds are the same in both passes.
_GENERIC: Final = (
    "elementwise",
    "matmul",
    "batched_matmul",
    "matrix_vector",
    "dot",
    "outer",
    "reduction",
    "copy",
    "fill",
    "indexing",
)


def _with_parts(costs: pl.DataFrame, ops: pl.DataFrame, tree: Tree) -> pl.DataFrame:
    """Return ``costs`` (columns ``op``, ``part``, ``kind`` …) with the parts of backward operators.

    Kinds with formulas for the backward pass keep the part of the formula. An operator of the
    autograd engine itself, without a node around it, adds up gradients. Work that a checkpoint's
    node recomputes is forward work.
    """
    texts, op = Texts.of(ops["name"]), from_rows(costs["op"])
    around = to_rows(tree.nearest(texts.matching(_NODE), op))
    rows = costs.with_columns(
        around.alias("node"),
        ops["name"].gather(around).cast(pl.String).alias("node_name"),
        pl.Series("in_gradient", tree.nearest(texts.matching(_GRADIENT), op) != NONE),
        (ops["direction"].gather(costs["op"]) == "backward").alias("of_engine"),
    )
    kind, node = pl.col("kind"), pl.col("node_name")
    recomputes, generic = node.str.contains(_RECOMPUTING), kind.is_in(_GENERIC)
    in_linear = node.str.contains(_LINEAR_NODE) & ~recomputes
    linear = rows.filter(in_linear & (kind == "matmul")).select("op", "node")
    backward = (pl.col("part") == "forward") & (
        pl.when(node.is_null())
        .then(generic & pl.col("of_engine"))
        .otherwise((generic | (pl.col("in_gradient") & (kind == "linear"))) & ~recomputes)
    )
    of_bias = pl.when(in_linear & (kind == "reduction")).then(pl.lit("bias_grad"))
    gradient = pl.coalesce("gradient", of_bias)
    return (
        rows.join(_linear_gradients(linear, ops), on="op", how="left", maintain_order="left")
        .with_columns(
            pl.when(backward)
            .then(gradient.fill_null("backward").cast(PART))
            .otherwise("part")
            .alias("part"),
            pl.when(backward & gradient.is_not_null())
            .then(pl.lit("linear"))
            .otherwise("kind")
            .alias("kind"),
        )
        .select(costs.columns)
    )


def _linear_gradients(linear: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the gradient of each product in a linear layer's node: ``op``, ``gradient``.

    The gradient of the output is [N, O]: the product over O is the input's gradient, that over N
    the weight's. Where N equals O, autograd computes the input's first; a single product is then
    the weight's, as in a first layer.
    """
    pairs = linear.join(ops.select("op", "start", "input_shapes"), on="op").join(
        ops.select(pl.col("op").alias("node"), pl.col("input_shapes").alias("_of_node")),
        on="node",
    )
    distinct = pairs.select("input_shapes", "_of_node").unique()
    gradients = [_which_gradient(*row) for row in distinct.iter_rows()]
    first = (pl.col("start") == pl.col("start").min().over("node")) & (pl.len().over("node") > 1)
    either = pl.when(first).then(pl.lit("dgrad")).otherwise(pl.lit("wgrad"))
    which = pl.col("_which")
    gradient = pl.when(which == "either").then(either).otherwise(which)
    return pairs.join(
        distinct.with_columns(pl.Series("_which", gradients, dtype=pl.String)),
        on=["input_shapes", "_of_node"],
        nulls_equal=True,
    ).select("op", gradient.alias("gradient"))


def _which_gradient(product: str | None, node: str | None) -> str | None:
    try:
        left, right = (Call.decode("", product).shape(place, 2) for place in (0, 1))
        gradient: Shape = Call.decode("", node).shape(0, 2)
    except UncountableError:
        return None
    (a, k), (_, b) = left, right
    of_input = (a, k) == gradient
    of_weight = k == gradient[0] and gradient[1] in (a, b)
    if of_input and of_weight:
        return "either"
    if of_input:
        return "dgrad"
    return "wgrad" if of_weight else None
