"""Layers from the order of operators: the third conv2d of a step is ``conv2d_2``.

:func:`positions` names the layers. :func:`_positions_in_networks` counts operators, once for all
forward passes of a network in a step, because micro-batches and evaluation call the same layers
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, groups, nth, running_sum
from traceana.columns.nesting import NONE, Ints
from traceana.enrich.layers.source import SEPARATOR, Layer, OpLayers, Program
from traceana.flops.call import Call, Shape, UncountableError
from traceana.vocabulary.operators import GENERATED, WEIGHTED, of_kinds, operator_row

_NAMESPACE: Final = (
    r"^(?:autograd::engine::evaluate_function: |aten::|torch\.nn\.functional\.|torch\.|Tensor\.)|"
    + GENERATED
)
"""A namespace, or a generated kernel's backend and number."""
_COPIES: Final = ("to", "_to_copy", "copy_", "cuda", "pin_memory")
_CONVERSION_INPUTS: Final = 5
"""Inputs of ``to(dtype)``: the tensor, the type and three options. With a device there are more."""

_ROLE_OF_OPERATOR: Final = {
    **dict.fromkeys(_COPIES, "data"),
    # PyTorch's autograd node of module hooks, outside layers.
    "BackwardHookFunction": "hooks",
    # MXNet's engine frees memory.
    "DeleteVariable": "unattributed",
    # Dynamo looks for the compiled code that fits the inputs.
    "TorchDynamo Cache Lookup": "unattributed",
}
"""Roles of outermost operators that are not layers."""

_SCALAR: Final = r"^\[\s*\[\s*\]"
"""Recorded shapes in which the first input is a scalar."""


def short_name(names: pl.Series) -> pl.Series:
    """Return the texts of a categorical column without namespace or backend and number.

    ``aten::conv2d`` is ``conv2d``, ``triton_poi_fused_relu_3`` is ``fused_relu``.
    """
    return Texts.of(names).replaced(_NAMESPACE, "$1").alias("name")


def positions(
    program: Program, root: Ints, known_layer: Ints, several_range: Ints, ranges: Sequence[Layer]
) -> OpLayers:
    """Return a layer of each operator, by the position of its outermost operator in the step.

    ``root`` is the row of each operator's outermost operator, ``known_layer`` its layer if known
    otherwise, ``several_range`` its range of several layers, as index into ``ranges``, or NONE. A
    network runs its operators in the same order in each step, so equal positions are the same
    layer. A step may run the network several times (:func:`_positions_in_networks`). The update of
    ``num_batches_tracked`` belongs to the normalization after it. A backward operator has no
    position: it has the layer of its forward operator. Layers in several ranges have the path of
    their range, and their number in it; one range around all of them, such as ``generate``, tells
    none from another.
    """
    ops, forward, copying = program.ops, program.forward, program.copying
    rows = np.flatnonzero(root == np.arange(len(root)))
    if not len(root):
        return OpLayers(root, [])
    has_backward = np.zeros(len(root), dtype=np.bool_)
    has_backward[root[forward[forward != NONE]]] = True
    # Without recorded calls any conversion may have copied.
    may_copy = np.full(len(root), copying is None)
    if copying is not None:
        may_copy[root[copying]] = True
    outermost = (
        ops.select(
            *("name", "process", "thread", "start", "input_shapes", "input_types"),
            (pl.col("direction") == "backward").fill_null(False).alias("backward"),
        )[rows]
        .with_columns(
            pl.Series("step", program.step[rows]),
            pl.Series("row", rows),
            pl.Series("resolved", known_layer[rows] != NONE),
            pl.Series("linked", has_backward[rows]),
            pl.Series("copied", may_copy[rows]),
            short_name(ops["name"].gather(rows)).alias("short"),
        )
        .sort("start", maintain_order=True)
        .with_columns(_is_batch_counter().alias("counting"), _has_role().alias("with_role"))
        .with_columns(
            (~pl.any_horizontal("resolved", "backward", "counting", "with_role")).alias("passing"),
            pl.col("backward").cum_sum().over("process").alias("backward_before"),
        )
    )
    same_name = ("process", "thread", "step", "short", "passing", "resolved")
    outermost = (
        outermost.with_columns(pl.Series("nth", nth(groups(outermost, *same_name))))
        .join(
            _positions_in_networks(outermost.filter("passing")),
            on="row",
            how="left",
            maintain_order="left",
        )
        # Operators outside forward passes are numbered after those of the passes.
        .with_columns(
            pl.coalesce(
                "position",
                pl.col("nth")
                + (pl.col("position").max().over("process", "step", "short") + 1).fill_null(0),
            ).alias("position")
        )
        .with_columns(
            pl.when("with_role")
            .then(pl.col("short"))
            .otherwise(pl.format("{}_{}", "short", "position"))
            .alias("path")
        )
        .with_columns(
            pl.when("counting")
            .then(pl.col(column).shift(-1).over("process", "thread"))
            .otherwise(column)
            .alias(column)
            for column in ("path", "short")
        )
        .filter(~pl.col("backward"))
    )
    distinct = outermost.select("path", "short").unique("path", maintain_order=True)
    numbers = distinct.select("path").with_row_index("layer")
    joined = outermost.join(numbers, on="path", maintain_order="left")
    layer = np.full(len(root), NONE, dtype=np.int64)
    layer[joined["row"].to_numpy()] = joined["layer"].to_numpy()
    layer = layer[root]
    layers: list[Layer] = [
        (path, short, _ROLE_OF_OPERATOR[short] if path == short else "layer")
        for path, short in distinct.iter_rows()
    ]
    is_layer = np.array([role == "layer" for *_, role in layers], dtype=np.bool_)
    with_layer = np.flatnonzero(layer != NONE)
    several_range = several_range[root]
    if len(np.unique(several_range[with_layer[is_layer[layer[with_layer]]]])) < 2:
        return OpLayers(layer, layers)
    pairs = pl.DataFrame({"around": several_range, "layer": layer})
    in_both = (pl.col("around") != NONE) & (pl.col("layer") != NONE)
    found = pairs.filter(in_both).unique().sort("around", "layer")
    layer_in_range = []
    number_in_range: Counter[tuple[str, str]] = Counter()
    for range_number, number in found.iter_rows():
        _, kind, role = layers[number]
        path, short = ranges[range_number][0], str(kind)
        layer_in_range.append(len(layers) if role == "layer" else number)
        if role == "layer":
            layers.append((f"{path}{SEPARATOR}{short}_{number_in_range[path, short]}", kind, role))
            number_in_range[path, short] += 1
    in_ranges = pairs.join(
        found.with_columns(pl.Series("own", layer_in_range, dtype=pl.Int64)),
        on=["around", "layer"],
        how="left",
        maintain_order="left",
    )
    return OpLayers(in_ranges.select(pl.coalesce("own", "layer")).to_series().to_numpy(), layers)


def _has_role() -> pl.Expr:
    """Return which operators have a role instead of a layer.

    Copies and conversions that the backward pass goes through are the network's, and so are those
    that change the type alone: they move no data to a device. Without recorded inputs they are
    those that called for no copy.
    """
    types_alone = pl.col("input_shapes").str.count_matches(r"\[") == 1 + _CONVERSION_INPUTS
    of_network = pl.col("linked") | (
        (pl.col("short") == "to") & types_alone.fill_null(~pl.col("copied"))
    )
    return pl.col("short").is_in(list(_ROLE_OF_OPERATOR)) & ~(
        pl.col("short").is_in(_COPIES) & of_network
    )


def _is_batch_counter() -> pl.Expr:
    """Return which operators, in order of time, increment ``num_batches_tracked``.

    They are in-place additions to an integer scalar before a normalization. Without recorded types,
    they are recognized if such an addition precedes every normalization.
    """
    is_addition = pl.col("short") == "add_"
    before_norm = (
        (pl.col("short").shift(-1) == "batch_norm").over("process", "thread").fill_null(False)
    )
    integer = pl.col("input_types").str.contains(r'^\["(?:long|int64)').fill_null(False)
    scalar = pl.col("input_shapes").str.contains(_SCALAR).fill_null(False)
    is_norm = pl.col("short") == "batch_norm"
    before_every_norm = (
        ~is_norm | is_addition.shift(1).over("process", "thread").fill_null(False)
    ).all()
    recorded = pl.col("input_types").is_not_null() & pl.col("input_shapes").is_not_null()
    return (
        is_addition
        & before_norm
        & pl.when(recorded).then(integer & scalar).otherwise(before_every_norm)
    )


_PASS: Final = ("piece", "copy")
_SEPARATOR_OF_KEYS: Final = " | "
_FEATURES: Final = ("in_features", "out_features")


def _positions_in_networks(forward: pl.DataFrame) -> pl.DataFrame:
    """Return ``row`` and ``position`` of forward operators: their number among those of the name.

    ``forward`` has a row per outermost operator in order of time: ``row``, ``process``, ``thread``,
    ``step``, ``name``, ``short``, ``input_shapes``, ``backward_before`` (number of operators of the
    backward pass that started before it) and ``linked`` (whether it has a backward operator).
    Operators are counted through the step, but the passes of a network are counted once. A pass
    ends where its backward pass starts. Two passes belong to one network if their weighted
    operators have the same names and weights in the same order. Their other operators correspond by
    name and order after the same weighted operator.

    Several passes before one backward pass, or after the last one, are separated by comparison with
    a pass that occurs alone elsewhere. Repetition alone does not separate passes, so repeated
    blocks within a pass keep separate numbers.
    """
    texts = (
        forward.select("name", "input_shapes")
        .unique()
        .filter(pl.col("name").cast(pl.String).str.contains(of_kinds(*WEIGHTED)))
    )
    call_keys = pl.DataFrame(
        [(name, text, True, *_weight_key(str(name), text)) for name, text in texts.iter_rows()],
        schema={
            **texts.schema,
            "weighted": pl.Boolean,
            "key": pl.String,
            "in_features": pl.Int64,
            "out_features": pl.Int64,
        },
        orient="row",
    )
    # Grouping by one number takes a fraction of the time of grouping by five columns: that of a
    # thread and step (``line``), and of a stretch of it without backward operators (``piece``).
    first = pl.col("row").first()
    with_passes = _with_passes(
        forward.join(
            call_keys, on=texts.columns, how="left", maintain_order="left", nulls_equal=True
        )
        .with_columns(
            pl.col("weighted").fill_null(False),
            pl.coalesce("key", "short").alias("key"),
            first.over("process", "thread", "step").alias("line"),
            pl.col("short").cast(pl.Categorical).to_physical(),
        )
        .with_columns(first.over("line", "backward_before").alias("piece"))
    )
    weighted = with_passes["weighted"].to_numpy().astype(np.int64)
    slots = with_passes.with_columns(
        pl.Series("slot", running_sum(groups(with_passes, *_PASS), weighted))
    )
    slots = slots.with_columns(pl.Series("nth", nth(groups(slots, *_PASS, "slot", "short"))))
    passes = (
        slots.group_by(_PASS, maintain_order=True)
        .agg(
            pl.col("line").first(),
            pl.col("key").filter("weighted").alias("network"),
            pl.col("linked").any().alias("trained"),
            pl.len().alias("size"),
            pl.col("row").first().alias("first"),
        )
        # Joined for all passes at once; without a weighted operator there is no network.
        .with_columns(pl.col("network").list.join(_SEPARATOR_OF_KEYS).replace("", None))
    )
    # A pass without a weighted operator corresponds to no other pass of its step.
    unweighted = running_sum(
        passes["line"].to_numpy(), passes["network"].is_null().to_numpy().astype(np.int64)
    )
    passes = passes.with_columns(
        pl.coalesce("network", pl.format("({})", pl.Series(unweighted))).alias("network")
    ).with_columns(pl.col("trained").any().over("network").alias("of_training"))
    networks = (
        passes.sort(["of_training", "first"], descending=[True, False], maintain_order=True)
        .select("network")
        .unique(maintain_order=True)
        .with_row_index("order")
    )
    passes = passes.join(networks, on="network", maintain_order="left")
    # The longest training pass numbers a network's operators first; other passes add the operators
    # that it lacks.
    fullest = (
        passes.sort(["trained", "size", "first"], descending=[True, True, False])
        .unique("order", keep="first", maintain_order=True)
        .select(*_PASS, pl.lit(True).alias("fullest"))
    )
    with_pass = slots.join(
        passes.select(*_PASS, "order").join(fullest, on=_PASS, how="left", maintain_order="left"),
        on=_PASS,
        how="left",
        maintain_order="left",
    )
    slot_key = ["order", "slot", "short", "nth"]
    counted = (
        with_pass.with_columns(pl.int_range(pl.len()).alias("when"))
        .group_by(slot_key)
        .agg(pl.col("fullest").fill_null(False).any(), pl.col("when").min())
        .sort(["order", "fullest", "when"], descending=[False, True, False])
        .with_columns(pl.int_range(pl.len()).over("order", "short").alias("number"))
    )
    sizes = counted.group_by("order", "short").agg(pl.len().cast(pl.Int64).alias("count"))
    before = with_pass.select("line", "order").unique().join(sizes, on="order").sort("order")
    sums = running_sum(groups(before, "line", "short"), before["count"].to_numpy())
    before = before.select("line", "order", "short", before=pl.Series(sums) - pl.col("count"))
    return (
        with_pass.join(
            counted.select(*slot_key, "number"), on=slot_key, how="left", maintain_order="left"
        )
        .join(
            before,
            on=["line", "order", "short"],
            how="left",
            maintain_order="left",
        )
        .select("row", (pl.col("number") + pl.col("before")).alias("position"))
    )


def _weight_key(name: str, text: str | None) -> tuple[str, int | None, int | None]:
    """Return the name with its weight's shape, and the numbers of input and output features."""
    short = name.rpartition("::")[2]
    row = operator_row(name)
    # The second operand may be an activation, whose shape depends on the batch.
    if row.kind in ("batched_mm", "attention"):
        return short, None, None
    try:
        call = Call.decode(name, text)
        weight = call.shape(row.weight)
    except UncountableError:
        return short, None, None
    input_shape: Shape | None = None
    with suppress(UncountableError):
        input_shape = call.shape(row.input) or None
    key = f"{short} {list(weight)}"
    if short == "embedding":
        # Its input is integer indices, which are not the output of a layer.
        return key, -1, weight[-1]
    if input_shape is None:
        return key, None, None
    if "norm" in short:
        features = input_shape[1] if "batch" in short or "group" in short else input_shape[-1]
        return key, features, features
    if short.startswith("conv"):
        transposed = "transpose" in short
        in_features = input_shape[1] if len(input_shape) > 1 else None
        return key, in_features, None if transposed else weight[0]
    if short == "linear":
        return key, input_shape[-1], weight[0]
    return key, input_shape[-1], weight[-1]


def _with_passes(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops`` with ``copy``, the number of each operator's pass within its segment."""
    segments = (
        ops.group_by("piece", maintain_order=True)
        .agg(
            pl.col("step").first(),
            pl.col("key").filter("weighted").alias("weights"),
            pl.col("linked").filter("weighted").any().alias("any_link"),
            pl.col("linked").filter("weighted").arg_max().alias("first_link"),
            pl.col("linked").filter("weighted").last().alias("last_link"),
            pl.col("key").alias("all"),
            pl.col("weighted").arg_max().alias("prefix"),
            pl.col("in_features").filter("weighted").first(),
            pl.col("out_features").filter("weighted").last(),
            pl.col("weighted").sum().alias("count"),
        )
        .filter(pl.col("count") > 0)
        .with_columns(pl.col("weights", "all").list.join(_SEPARATOR_OF_KEYS))
    )
    single_passes = sorted(segments.filter("last_link")["weights"].unique().to_list(), key=len)
    # Most segments of a run are alike, and are decided once.
    kind_columns = ["whole_trace", "weights", "any_link", "first_link", "all", *_FEATURES, "count"]
    segments = segments.with_columns((pl.col("step") == NONE).alias("whole_trace"))
    kinds = segments.select(kind_columns).unique(maintain_order=True)
    units: list[int] = []
    for (
        whole_trace, weights, any_link, first_link, whole, in_features, out_features, count
    ) in kinds.iter_rows():  # fmt: skip
        # The number of weighted operators per pass: those of a pass that occurs alone, repeated.
        lengths = (
            (single_pass, single_pass.count(_SEPARATOR_OF_KEYS) + 1)
            for single_pass in single_passes
            if single_pass != weights
        )
        whole_passes = (
            length
            for single_pass, length in lengths
            if weights == _SEPARATOR_OF_KEYS.join([single_pass] * (count // length))
        )
        unit = next(whole_passes, count)
        if any_link and first_link < count - unit:
            unit = count
        unmarked = whole_trace and not any_link and unit == count
        has_features = in_features is not None and out_features is not None
        if unmarked and has_features and in_features != out_features:
            # The shortest period of the operators.
            codes = np.unique(np.array(whole.split(_SEPARATOR_OF_KEYS)), return_inverse=True)[1]
            periods = (
                period
                for period in range(1, len(codes) // 2 + 1)
                if len(codes) % period == 0 and (codes[period:] == codes[:-period]).all()
            )
            unit = count // (len(codes) // next(periods, len(codes)))
        units.append(unit)
    units_of_pieces = segments.join(
        kinds.with_columns(pl.Series("unit", units, dtype=pl.Int64)),
        on=kind_columns,
        how="left",
        maintain_order="left",
        nulls_equal=True,
    ).select("piece", "prefix", "unit")
    piece, weighted = ops["piece"].to_numpy(), ops["weighted"].to_numpy().astype(np.int64)
    with_seen = ops.with_columns(pl.Series("seen", running_sum(piece, weighted)))
    operators_left = nth(groups(with_seen, "piece", "seen")[::-1])[::-1] + 1
    return (
        with_seen.join(units_of_pieces, on="piece", how="left", maintain_order="left")
        .with_columns(
            # Operators after the last weighted operator of a copy belong to that copy, except as
            # many as precede the first weighted operator of the segment.
            pl.Series("left", operators_left),
            pl.col("seen").max().over("piece").alias("most"),
        )
        .with_columns(
            pl.when(pl.col("unit").is_null() | (pl.col("seen") == 0))
            .then(0)
            .when(
                (pl.col("seen") % pl.col("unit") == 0)
                & ~pl.col("weighted")
                & (pl.col("left") <= pl.col("prefix"))
                & (pl.col("seen") < pl.col("most"))
            )
            .then(pl.col("seen") // pl.col("unit"))
            .otherwise((pl.col("seen") - 1) // pl.col("unit"))
            .alias("copy")
        )
        .drop("seen", "left", "most", "prefix", "unit")
    )
