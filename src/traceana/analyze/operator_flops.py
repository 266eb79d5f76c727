"""The cost of every operator, each counted once, and the executed FLOPs of its convolutions.

``aten::conv2d`` calls ``aten::convolution``, which calls ``aten::_convolution``, which calls a
library's operator. All four have formulas; the outermost counts. A matrix product, a sum or a
multiplication has one name in both passes; the node of autograd's graph around it determines the
part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from traceana.columns.distinct import Texts
from traceana.columns.nesting import NONE, Ints, Tree, from_rows, to_rows
from traceana.enrich.layers.from_order import groups
from traceana.enrich.operators import EarlyStopped
from traceana.flops.call import Call
from traceana.flops.convolution import Convolution, backward_extents, forward_extents
from traceana.flops.cost import LARGEST, Cost, Refusal, Shape, UncountableError
from traceana.flops.executed import Direction, executed
from traceana.flops.registry import NO_FORMULA, cost, named, operators_of, row_of
from traceana.trace import per_small_trace
from traceana.vocabulary.operators import PRODUCTS, Operator, of_kinds, passive, positions

if TYPE_CHECKING:
    from traceana.trace import Trace

OUTPUT: Final = "_output"
"""Column: the shape of the result as JSON text, in a list of one; null where unknown."""
WANTED: Final = "_wanted"
"""Column: bit 0: the gradient of the input was computed; bit 1: that of the weight."""
FORWARD: Final = operators_of("convolution", "convolution_transpose")
BACKWARD: Final = operators_of("convolution_backward", "convolution_transpose_backward")
INPUT_GRADIENTS: Final = operators_of("convolution_dgrad")
WEIGHT_GRADIENTS: Final = operators_of("convolution_wgrad")
NAMES: Final = (*FORWARD, *BACKWARD)
CALL: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT)
"""The columns of an operator that describe its convolution: arguments of ``read``."""

_EXTENTS: Final = pl.List(pl.Int64)
SHAPE: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "batch": pl.Int64,
    "in_channels": pl.Int64,
    "out_channels": pl.Int64,
    "groups": pl.Int64,
    "transposed": pl.Boolean,
    "window": _EXTENTS,
    "input": _EXTENTS,
    "output": _EXTENTS,
    "stride": _EXTENTS,
    "dilation": _EXTENTS,
    "element_bytes": pl.Int64,
}
"""Columns of the extents, as of :class:`Convolution`, and the size of an element."""


def read(
    name: str | None, shapes: str | None, types: str | None, inputs: str | None, output: str | None
) -> tuple[Convolution, int | None] | Refusal:
    """Return the convolution of a call and the bytes of an element, or the reason without."""
    if name is None:
        return Refusal("no launching operator with shapes")
    try:
        hint = None if output is None else Call.decode("", output).shape(0)
        call = named(Call.decode(name, shapes, types, inputs, output=hint))
        extents = backward_extents if "dy" in call.at else forward_extents
        return extents(call), call.size(0)
    except UncountableError as error:
        return Refusal(str(error))


def shapes_of(ops: pl.DataFrame, wanted: pl.Series) -> pl.DataFrame:
    """Return ``operator`` (row of ``ops``) and :data:`SHAPE` of those ``wanted`` that have them."""
    calls = _calls(ops)
    calls = calls.filter(pl.col("op").is_in(wanted.drop_nulls().implode()))
    distinct = calls.select(CALL).unique()
    rows = [
        (None,) * len(SHAPE)
        if isinstance(found, Refusal)
        else (*(getattr(found[0], column) for column in list(SHAPE)[:-1]), found[1])
        for found in (read(*call) for call in distinct.iter_rows())
    ]
    extents = pl.DataFrame(rows, schema=SHAPE, orient="row")
    return (
        calls.join(distinct.hstack(extents), on=CALL, nulls_equal=True)
        .drop_nulls("batch")
        .select(pl.col("op").alias("operator"), *SHAPE)
    )


def _calls(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``op`` (row of ``ops``) and :data:`CALL` of the convolutions and their gradients."""
    named = ops.select(
        *("name", "process", "rank", "sequence", "direction", "parent"),
        *("input_shapes", "input_types", "inputs"),
    )
    # The names of the operators that give hints have the word too.
    convolves = pl.Series(Texts.of(ops["name"]).matching("(?i)conv"), dtype=pl.Boolean)
    rows = named.with_row_index("op").filter(convolves)
    rows = rows.with_columns(pl.col("name").cast(pl.String))
    hinted = rows.join(_hints(rows), on="op", how="left", maintain_order="left")
    return hinted.filter(pl.col("name").is_in(NAMES)).select("op", *CALL)


EXECUTED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "episode": pl.UInt32,  # row of `episodes`
    "operator": pl.UInt32,  # row of `ops` with the shapes
    "direct_flops": pl.Int64,  # of a direct convolution; null where the shapes are unknown
    "executed_flops": pl.Int64,  # null with a `reason`
    "reason": pl.String,
}

_STRIDE_OF_ONE: Final = ("fft", "fft_tiling", "winograd", "winograd_nonfused")
_BEYOND: Final = "FLOP count exceeds 64 bits"
_EXECUTED_KEY: Final = (*CALL, "algorithm", "direction")


@per_small_trace
def executed_convolutions(trace: Trace) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``trace``: :func:`executed_by_episode`."""
    return executed_by_episode(trace.tables.ops, trace.tables.episodes)


def executed_by_episode(ops: pl.DataFrame, episodes: pl.DataFrame) -> pl.DataFrame:
    """Return the FLOPs of each convolution of ``episodes``: columns of :data:`EXECUTED`.

    The shapes are those of the operator that launched it, or of the nearest parent that has them.
    Where the stride was not recorded and the algorithm supports only a stride of 1, it was 1.
    Formulas are evaluated once per distinct pair of call and algorithm.
    """
    calls = _calls(ops)
    distinct = calls.select(CALL).unique()
    read_calls = [not isinstance(read(*row), Refusal) for row in distinct.iter_rows()]
    readable = calls.join(
        distinct.filter(pl.Series(read_calls, dtype=pl.Boolean)),
        on=CALL,
        how="semi",
        nulls_equal=True,
        maintain_order="left",
    )
    has_shapes = np.zeros(ops.height, dtype=np.bool_)
    has_shapes[readable["op"].to_numpy()] = True
    operator = Tree.of_table(ops).nearest(has_shapes, from_rows(episodes["op"]))
    rows = (
        episodes.select("algorithm", "direction")
        .with_row_index("episode")
        .with_columns(to_rows(operator).alias("operator"))
        .join(calls.rename({"op": "operator"}), on="operator", how="left", maintain_order="left")
    )
    distinct = rows.select(_EXECUTED_KEY).unique()
    results = pl.DataFrame(
        [_executed(*row) for row in distinct.iter_rows()],
        schema=[(name, dtype) for name, dtype in EXECUTED.items()][2:],
        orient="row",
    )
    return rows.join(
        pl.concat([distinct, results], how="horizontal"),
        on=_EXECUTED_KEY,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    ).select(pl.col(name).cast(dtype) for name, dtype in EXECUTED.items())


def _executed(*key: Any) -> tuple[int | None, int | None, str | None]:
    """Return the direct FLOPs of a call, those that its algorithm executes, and why not."""
    *call, algorithm, direction = key
    found = read(*call)
    if isinstance(found, Refusal):
        return None, None, found.reason
    conv, size = found
    flops = 2 * conv.macs
    if flops > LARGEST:
        return None, None, _BEYOND
    way = next((one for one in get_args(Direction) if one == direction), None)
    if algorithm is None or way is None:
        return flops, None, "algorithm or direction unknown"
    if conv.stride is None and algorithm in _STRIDE_OF_ONE:
        ones = (1,) * len(conv.window)
        conv = replace(conv, stride=ones, dilation=ones)
    result = executed(conv, algorithm, way, size=size or 4)
    if isinstance(result, Refusal):
        return flops, None, result.reason
    if max(result.flops, result.workspace or 0) > LARGEST:
        return flops, None, _BEYOND
    return flops, result.flops, None


Flags = npt.NDArray[np.bool_]


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

_SPARSE: Final = "sparse"
_KEY: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT, WANTED, _SPARSE)


class OperatorCosts(msgspec.Struct, frozen=True):
    """The costs of the operators of a trace, and the operators without a count.

    ``costs`` has the columns of :data:`COSTS`, one row per operator and part; children of a counted
    operator have no rows. ``gaps`` has those of :data:`GAPS`, one row per operator without a count.
    """

    costs: pl.DataFrame
    gaps: pl.DataFrame


def operator_costs(ops: pl.DataFrame, rules: Sequence[tuple[str, str, str]] = ()) -> OperatorCosts:
    """Return the costs of ``ops``, the whole table of a trace with its nesting.

    ``rules`` are a user's own rows: pattern of the operator's name, formula, operands.
    Formulas are evaluated once per distinct call. The outermost of nested operators with a cost
    counts; inside a node of the backward pass, the part is the node's.
    """
    named = ops.select(
        # A trace may have lost the names of its operators.
        pl.col("name").fill_null(""),
        *("process", "rank", "start", "parent", "sequence", "direction"),
        *("input_shapes", "input_types", "inputs"),
    )
    repeats = Repeats.of(ops)
    if repeats.twice.any():
        named = named.with_columns(
            named[column].gather(repeats.source)
            for column in ("input_shapes", "input_types", "inputs")
        )
    rows = named.with_row_index("op")
    hints = _hints(rows)
    none = pl.repeat(None, rows.height, dtype=pl.UInt32, eager=True)
    at = none.scatter(hints["op"], pl.int_range(hints.height, dtype=pl.UInt32, eager=True))
    rows = rows.with_columns(*(hints[name].gather(at) for name in (OUTPUT, WANTED)), _sparse(ops))
    calls = _Calls.of(rows.select(_KEY), rules)
    tree = Tree.of_table(ops)
    left = EarlyStopped.of(ops)
    has_cost = calls.parts[calls.of_op] > 0
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
    gaps = _gaps(calls, tree, counted, has_cost)
    return OperatorCosts(_with_parts(costs, rows, tree), gaps)


class Repeats(msgspec.Struct, frozen=True):
    """The operators that are recorded again right inside their own record.

    ``again`` are the inner records, ``twice`` those of them whose inputs are recorded more than
    once; ``source`` is for each operator the row whose inputs are the operator's own, once.
    ``shards`` are inner records of smaller inputs: an operator of a ``DTensor`` is recorded with
    the shapes of the whole tensors, and inside it with those of the shards, which are what runs.
    """

    again: Flags
    twice: Flags
    shards: Flags
    source: Ints

    @classmethod
    def of(cls, ops: pl.DataFrame) -> Repeats:
        """Return those of ``ops``.

        functorch calls an operator again for every transformation (``vmap``, ``grad``, ``jvp``),
        often with the inputs once more in the record.
        """
        parent = from_rows(ops["parent"])
        name = Texts.of(ops["name"]).code_of_row
        (rows,) = np.nonzero((parent != NONE) & (name == name[parent]))
        shapes = ops["input_shapes"]
        pairs = pl.DataFrame(
            {"own": shapes.gather(rows), "of_parent": shapes.gather(parent[rows])}
        ).cast(pl.String)
        distinct = pairs.unique().with_columns(
            pl.struct("own", "of_parent")
            .map_elements(lambda pair: _times(**pair), return_dtype=pl.Int64)
            .alias("times")
        )
        times = pairs.join(distinct, on=["own", "of_parent"], how="left", nulls_equal=True)["times"]
        again, twice, shards = np.zeros((3, ops.height), dtype=np.bool_)
        source = np.arange(ops.height)
        again[rows[(times > 0).to_numpy()]] = True
        shards[rows[(times < 0).to_numpy()]] = True
        more = (times > 1).to_numpy()
        twice[rows[more]] = True
        if more.any():
            # Parents come first. The repeated inputs may themselves be recorded again.
            repeated = pl.DataFrame({"row": rows, "times": times}).filter(pl.col("times") > 0)
            for row, number in repeated.iter_rows():
                above = parent[row]
                if number > 1 or twice[above]:
                    twice[row], source[row] = True, source[above]
        return cls(again, twice, shards, source)


_EXTENT: Final = re.compile(r"\d+")


def _times(own: str | None, of_parent: str | None) -> int:
    """Return how often the shapes ``of_parent`` are in ``own``; -1 where ``own`` are those of
    shards, 0 where it has others.

    Scalars have no extents that show whether there are more of them or the same ones again.
    """
    if own is None or own == of_parent:
        return int(own is not None)
    if of_parent is None or not any(sign.isdigit() for sign in of_parent):
        return 0
    if _EXTENT.sub("n", own) == _EXTENT.sub("n", of_parent):
        extents = zip(_EXTENT.findall(own), _EXTENT.findall(of_parent), strict=True)
        return -int(all(int(one) <= int(whole) for one, whole in extents))
    once = f"{of_parent[1:-1]}, "
    number = (len(own) - len("[]") + len(", ")) // len(once)
    return number if f"{own[1:-1]}, " == number * once else 0


_PRODUCT_FORMULA: Final = r"^(?:matmul|convolution\.|attention\.|recurrent\.)|\*"
_ROUNDING: Final = 1 + 1e-9


def _around_more(calls: _Calls, tree: Tree, has_cost: Flags, repeats: Repeats) -> Flags:
    """Return which operators compute less than the operators inside them, under functorch.

    ``vmap`` records an operator with the shapes of one example, and inside it those on the whole
    batch; ``jvp`` records one around those of the value and of the tangent. The inner ones are what
    runs. Only products are compared where an operator is one: a convolution that adds its bias in
    an operator of its own computes no more. Operators outside of functorch are not compared.
    """
    found, moves = np.zeros((2, len(has_cost)), dtype=np.bool_)
    again = repeats.again & has_cost
    if not again.any():
        return found
    transformed = again | tree.inside(again) | tree.holding(again)
    measures = ("products", "flops", "bytes")
    per_call = calls.costs.group_by("_call").agg(
        pl.col("flops")
        .filter(pl.col("formula").str.contains(_PRODUCT_FORMULA))
        .sum()
        .alias("products"),
        pl.col("flops", "bytes").sum(),
    )
    # Sums of large counts exceed 64 bits.
    by_call = np.zeros((len(calls.names), len(measures)))
    by_call[per_call["_call"].to_numpy()] = per_call.select(measures).to_numpy()
    within = np.zeros((len(has_cost), len(measures)))
    for level in reversed(tree.levels):
        rows = level[transformed[level]]
        own = np.where(has_cost[rows, None], by_call[calls.of_op[rows]], 0.0)
        inner = within[rows]
        products, flops, size = (inner > _ROUNDING * own).T
        has_products, has_flops, _ = (own > 0).T
        computes = has_cost[rows] & np.where(has_products, products, flops)
        around = computes | (has_cost[rows] & ~has_flops & size)
        found[rows], moves[rows] = computes, around
        counts = np.where((has_cost[rows] & ~around)[:, None], own, inner)
        parent = tree.parent[rows]
        np.add.at(within, parent[parent != NONE], counts[parent != NONE])
    # Without functorch, torch.where of scalars calls itself, with the scalars as tensors.
    return moves if found.any() or repeats.twice.any() else found


_CONVOLUTION_NODE: Final = r"Conv\w*Backward\d*$"


def _hints(ops: pl.DataFrame) -> pl.DataFrame:
    """Return :data:`OUTPUT` and :data:`WANTED` of those of ``ops`` (row numbers in ``op``) that
    have one of them."""
    # Hints come from convolutions, their gradients and the nodes around these, which are few.
    names = ops["name"].unique()
    related = names.filter(names.cast(pl.String).str.contains("(?i)conv"))
    rows = ops.filter(pl.col("name").is_in(related.implode()))
    rows = rows.with_columns(pl.col("name").cast(pl.String))
    unrecorded = rows.filter(pl.col("inputs").is_null())
    forward, backward = (
        unrecorded.filter(pl.col("name").is_in(sorted(known))) for known in (FORWARD, BACKWARD)
    )
    return pl.concat([_output_shapes(rows, forward), _wanted(rows, backward)], how="diagonal")


def _output_shapes(ops: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the output shapes of convolutions, from backward nodes of the same sequence number.

    Each thread has its own sequence numbers: a number of several nodes with different gradients is
    ambiguous and gives no hint.
    """
    keys = ["process", "rank", "sequence"]
    names = ops.filter(pl.col("direction") == "backward").select(pl.col("name").unique())
    nodes = names.filter(pl.col("name").str.contains(_CONVOLUTION_NODE))["name"]
    if forward.is_empty() or nodes.is_empty():
        return pl.DataFrame(schema={"op": pl.UInt32, OUTPUT: pl.String})
    gradients = (
        ops.filter(pl.col("name").is_in(nodes.implode()) & (pl.col("sequence") >= 0))
        .filter(pl.col("input_shapes").is_not_null())
        .group_by(keys)
        .agg(pl.col("input_shapes").unique().alias("_shapes"))
        .filter(pl.col("_shapes").list.len() == 1)
        .select(*keys, pl.col("_shapes").list.first().alias(OUTPUT))
    )
    return (
        forward.select("op", *keys).join(gradients, on=keys, nulls_equal=True).select("op", OUTPUT)
    )


def _wanted(ops: pl.DataFrame, backward: pl.DataFrame) -> pl.DataFrame:
    if backward.is_empty():
        return pl.DataFrame(schema={"op": pl.UInt32, WANTED: pl.Int8})
    inner = (
        ops.select("parent", "name")
        .filter(pl.col("name").is_in([*INPUT_GRADIENTS, *WEIGHT_GRADIENTS]))
        .group_by(pl.col("parent").alias("op"))
        .agg(
            (
                pl.col("name").is_in(INPUT_GRADIENTS).any().cast(pl.Int8)
                + 2 * pl.col("name").is_in(WEIGHT_GRADIENTS).any().cast(pl.Int8)
            ).alias(WANTED)
        )
    )
    return backward.select("op").join(inner, on="op")


def _sparse(ops: pl.DataFrame) -> pl.Series:
    """Return True for products with an operand that is recorded without strides, else null.

    A sparse matrix has a shape and no strides; how many of its elements are stored is not recorded.
    """
    calls = ops.select("input_shapes", "input_strides").with_row_index("op")
    calls = calls.filter(
        pl.Series(Texts.of(ops["name"]).matching(of_kinds(*PRODUCTS)), dtype=pl.Boolean)
    )
    distinct = calls.select("input_shapes", "input_strides").drop_nulls().unique()
    sparse = [_lacks_strides(*texts) for texts in distinct.iter_rows()]
    found = calls.join(
        distinct.filter(pl.Series(sparse, dtype=pl.Boolean)),
        on=("input_shapes", "input_strides"),
        how="semi",
    )["op"]
    return (
        pl.repeat(None, ops.height, dtype=pl.Boolean, eager=True)
        .scatter(found, True)
        .alias(_SPARSE)
    )


def _lacks_strides(shapes: str, strides: str) -> bool:
    try:
        call, recorded = Call.decode("", shapes), Call.decode("", strides)
    except UncountableError:
        return False
    return len(call.shapes) == len(recorded.shapes) and any(
        bool(shape) and not steps for shape, steps in zip(call.shapes, recorded.shapes, strict=True)
    )


class _Calls(msgspec.Struct, frozen=True):
    """The distinct calls of operators: ``names``, number of ``parts`` and ``reasons`` without a
    count by call, ``costs`` by ``_call``, and the call of each operator."""

    of_op: Ints
    names: pl.Series
    parts: Ints
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
        parts: list[int] = []
        reasons: list[str | None] = []
        costs: list[tuple[int, str, str, int, int | None, str, int | None]] = []
        # The user's rules come first, and of several the first.
        ruled = np.full(calls.height, NONE)
        for rule in reversed(range(len(rules))):
            ruled[calls["name"].str.contains(rules[rule][0]).to_numpy()] = rule
        own = [Operator(formula=formula, operands=positions(at)) for _, formula, at in rules]
        for number, (name, *call) in enumerate(calls.iter_rows()):
            row = row_of(name) if ruled[number] == NONE else own[ruled[number]]
            if not row.formula:
                name = _ATEN.sub("aten::", name, count=1)
                row = row_of(name)
            if not row.formula:
                parts.append(0)
                reasons.append(NO_FORMULA)
                continue
            result = _cost_of(row, name, *call)
            if isinstance(result, Refusal):
                parts.append(0)
                reasons.append(result.reason)
                continue
            parts.append(len(result))
            reasons.append(None)
            costs += (
                (number, one.part, one.kind, one.flops, one.bytes, one.formula, one.skipped)
                for one in result
            )
        schema = {"_call": pl.Int64, **{name: COSTS[name] for name in COSTS if name != "op"}}
        return cls(
            (np.cumsum(is_first) - 1)[first],
            calls["name"],
            np.array(parts, dtype=np.int64),
            pl.Series(reasons, dtype=pl.String),
            pl.DataFrame(costs, schema=schema, orient="row"),
        )


def _cost_of(
    row: Operator,
    name: str,
    shapes: str | None,
    types: str | None,
    inputs: str | None,
    output: str | None,
    wanted: int | None,
    sparse: bool | None,
) -> tuple[Cost, ...] | Refusal:
    if sparse:
        return Refusal("sparse operand: number of stored elements not recorded")
    try:
        call = Call.decode(
            name,
            shapes,
            types,
            inputs,
            output=None if output is None else Call.decode("", output).shape(0),
            wanted=None if wanted is None else (bool(wanted & 1), bool(wanted & 2)),
        )
    except UncountableError as error:
        return Refusal(str(error))
    return cost(call, row)


def _gaps(calls: _Calls, tree: Tree, counted: Flags, has_cost: Flags) -> pl.DataFrame:
    """Return the operators that are neither counted, nor children of a counted one, nor passive.

    An operator with a formula that could not be counted is listed, with its children, unless
    children are counted. An operator without a formula is counted by its children, and listed for
    its self work. A call without a requested gradient costs nothing, and is not a gap.
    """
    idle = pl.select(passive(pl.lit(calls.names))).to_series().to_numpy()
    settled = calls.reasons.is_null().to_numpy()
    active = ~idle[calls.of_op] & ~counted & ~tree.inside(counted)
    active &= ~settled[calls.of_op] | has_cost
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
    autograd engine itself, without a node around it, adds up gradients. What a checkpoint's node
    recomputes is of the forward pass.
    """
    if costs.is_empty():
        return costs
    texts = Texts.of(ops["name"])
    op = costs["op"]
    node = to_rows(tree.nearest(texts.matching(_NODE), from_rows(op)))
    gradient_around = tree.nearest(texts.matching(_GRADIENT), from_rows(op)) != NONE
    node_name = ops["name"].gather(node).cast(pl.String)
    recomputes = node_name.str.contains(_RECOMPUTING).fill_null(False)
    of_engine = node.is_null() & (ops["direction"].gather(op) == "backward").fill_null(False)
    kind, named = costs["kind"], node_name.is_not_null()
    linear_node = node_name.str.contains(_LINEAR_NODE).fill_null(False) & ~recomputes
    same = kind.is_in(_GENERIC) | (pl.Series(gradient_around) & (kind == "linear"))
    generic = (
        (costs["part"] == "forward")
        & ((named & same) | (of_engine & kind.is_in(_GENERIC)))
        & ~recomputes
    )
    is_bias = (kind == "reduction") & linear_node
    linear = pl.DataFrame({"op": op, "node": node}).filter(linear_node & (kind == "matmul"))
    gradient = pl.col("_gradient")
    in_linear = pl.lit(generic) & (gradient.is_not_null() | pl.lit(is_bias))
    return (
        costs.join(_products(linear, ops), on="op", how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.lit(generic))
            .then(
                pl.coalesce(
                    gradient,
                    pl.when(pl.lit(is_bias))
                    .then(pl.lit("bias_grad"))
                    .otherwise(pl.lit("backward")),
                )
            )
            .otherwise(pl.col("part").cast(pl.String))
            .cast(PART)
            .alias("part"),
            pl.when(in_linear).then(pl.lit("linear")).otherwise("kind").alias("kind"),
        )
        .select(costs.columns)
    )


def _products(linear: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the gradient of each product in a linear layer's node: ``op``, ``_gradient``.

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
    ).select("op", gradient.alias("_gradient"))


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
