"""Layers from the order of operators alone: the third conv2d of a step is ``conv2d_2``.

:func:`position_layers` names them; :func:`_numbered` counts operators, once for all forward passes
of one network in a step: micro-batches and evaluation call the layers of training again.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.layers.from_ranges import OPERAND_POSITIONS
from traceana.enrich.layers.places import Layer
from traceana.enrich.layers.roles import WEIGHTED
from traceana.enrich.nesting import NONE, Ints
from traceana.flops.call import Call
from traceana.flops.cost import Shape, UncountableError

_SHORT: Final = (
    r"^(?:autograd::engine::evaluate_function: |aten::|torch\.nn\.functional\.|torch\.|Tensor\.)"
)
_ROLES: Final = {
    **dict.fromkeys(("to", "_to_copy", "copy_", "cuda", "pin_memory"), "data"),
    # PyTorch's autograd node of module hooks: work of no layer.
    "BackwardHookFunction": "hooks",
    # MXNet's engine frees memory.
    "DeleteVariable": "unattributed",
}
"""Outermost operators that are never a layer, and their role."""

_SCALAR: Final = r"^\[\s*\[\s*\]"
"""Of recorded shapes: a first input without dimensions."""


def short_name(names: pl.Series) -> pl.Series:
    """Return operator names without the namespace: ``aten::conv2d`` is ``conv2d``."""
    return names.str.replace(_SHORT, "").alias("name")


def position_layers(
    ops: pl.DataFrame, root: Ints, step: Ints, settled: Ints, forward: Ints
) -> tuple[Ints, list[Layer]]:
    """Return, for every operator, a layer by the position of its outermost operator in the step.

    ``root`` holds the row of the outermost operator around each, ``step`` the step of each row,
    ``settled`` its layer where that is known otherwise, ``forward`` the forward operator of each
    backward one. A network that does not change runs its operators in the same order each step, so
    equal positions are the same layer; a step may run it several times
    (:func:`_numbered`). The counting of batches belongs to
    the normalization behind it. A backward operator has no position: its layer is its forward
    operator's.
    """
    is_root = root == np.arange(len(root))
    if not len(root):
        return root, []
    linked = np.zeros(len(root), dtype=np.bool_)
    linked[root[forward[forward != NONE]]] = True
    outermost = (
        ops.select(
            *("name", "process", "thread", "start", "input_shapes", "input_types"),
            (pl.col("direction") == "backward").fill_null(False).alias("backward"),
        )
        .with_columns(
            pl.Series("step", step),
            pl.int_range(pl.len()).alias("row"),
            pl.Series("settled", settled != NONE),
            pl.Series("linked", linked),
        )
        .filter(pl.Series(is_root))
        .with_columns(
            short_name(ops["name"].cast(pl.String)).filter(pl.Series(is_root)).alias("short")
        )
        .sort("start", maintain_order=True)
        .with_columns(_counts_batches().alias("counting"))
    )
    passing = ~(pl.col("settled") | pl.col("backward") | pl.col("counting"))
    passing = passing & ~pl.col("short").is_in(list(_ROLES))
    backward = outermost.filter("backward")
    through = outermost.filter(passing).with_columns(pl.lit(0, dtype=pl.Int64).alias("bursts"))
    through = through.with_columns(
        pl.Series(
            "bursts",
            _bursts_before(
                through["process"],
                through["start"].to_numpy(),
                backward["process"],
                backward["start"].to_numpy(),
            ),
        )
    )
    outermost = (
        outermost.with_columns(
            pl.int_range(pl.len())
            .over("process", "thread", "step", "short", passing, "settled")
            .alias("nth")
        )
        .join(_numbered(through), on="row", how="left", maintain_order="left")
        # What is of no forward pass and of no layer known otherwise is numbered behind the passes.
        .with_columns(
            pl.coalesce(
                "position",
                pl.col("nth")
                + (pl.col("position").max().over("process", "step", "short") + 1).fill_null(0),
            ).alias("position")
        )
        .with_columns(
            pl.when(pl.col("short").is_in(list(_ROLES)))
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
    )
    outermost = outermost.filter(~pl.col("backward"))
    distinct = outermost.select("path", "short").unique("path", maintain_order=True)
    numbers = distinct.select("path").with_row_index("layer")
    joined = outermost.join(numbers, on="path", maintain_order="left")
    layer = np.full(len(root), NONE, dtype=np.int64)
    layer[joined["row"].to_numpy()] = joined["layer"].to_numpy()
    layers: list[Layer] = [
        (path, short, _ROLES.get(short, "layer")) for path, short in distinct.iter_rows()
    ]
    return layer[root], layers


def _counts_batches() -> pl.Expr:
    """Return whether operators, in order of time, add one to a normalization's count.

    It is an addition to an integer without dimensions. Where no types were recorded it is one if
    an addition stands before every normalization.
    """
    adds = pl.col("short") == "add_"
    follows = (pl.col("short").shift(-1) == "batch_norm").over("process", "thread").fill_null(False)
    integer = pl.col("input_types").str.contains(r'^\["(?:long|int64)').fill_null(False)
    scalar = pl.col("input_shapes").str.contains(_SCALAR).fill_null(False)
    norms = pl.col("short") == "batch_norm"
    every = (~norms | adds.shift(1).over("process", "thread").fill_null(False)).all()
    recorded = pl.col("input_types").is_not_null() & pl.col("input_shapes").is_not_null()
    return adds & follows & pl.when(recorded).then(integer & scalar).otherwise(every)


_OF_ACTIVATIONS: Final = re.compile(
    r"(?:^|::|\.)_?(?:matmul|bmm|baddbmm_?|scaled_dot_product_\w+)$"
)
"""Weighted operators whose second operand may be an activation: its shape depends on the batch."""

_THREAD: Final = ("process", "thread", "step")
_PASS: Final = (*_THREAD, "segment", "copy")
_UNIT: Final = " | "


def _numbered(forward: pl.DataFrame) -> pl.DataFrame:
    """Return ``row`` and ``position`` of forward operators: how many of its name stand before it.

    ``forward`` has a row an outermost operator in order of time: ``row``, ``process``, ``thread``,
    ``step``, ``name``, ``short``, ``input_shapes``, ``bursts`` (operators of the backward pass that
    began before it) and ``linked`` (it has a backward pass). Operators are counted through the
    step, but passes of one network are counted once. A pass ends where its backward pass begins.
    Two passes are of one network if their weighted operators have the same names and weights in
    the same order; their other operators meet by name and order behind the same weighted operator.

    Where several passes stand before one backward pass, or behind the last, they are separated by
    a pass that stands alone elsewhere. Repetition alone does not separate passes, so repeated
    blocks within a pass stay apart.
    """
    cut = _cut(_described(forward))
    slots = cut.with_columns(
        pl.col("weighted").cast(pl.Int64).cum_sum().over(_PASS).alias("slot")
    ).with_columns(pl.int_range(pl.len()).over(*_PASS, "slot", "short").alias("nth"))
    passes = (
        slots.group_by(_PASS, maintain_order=True)
        .agg(
            pl.when(pl.col("weighted").any())
            .then(pl.col("key").filter("weighted").str.join(_UNIT))
            .alias("network"),
            pl.col("linked").any().alias("trained"),
            pl.len().alias("size"),
            pl.col("row").first().alias("first"),
        )
        # Work without a weighted operator is what it is in its step: it is never met again there.
        .with_columns(
            pl.coalesce(
                "network",
                pl.format(
                    "({})", pl.col("network").is_null().cast(pl.Int64).cum_sum().over(_THREAD)
                ),
            ).alias("network")
        )
        .with_columns(pl.col("trained").any().over("network").alias("of_training"))
    )
    networks = (
        passes.sort(["of_training", "first"], descending=[True, False], maintain_order=True)
        .select("network")
        .unique(maintain_order=True)
        .with_row_index("order")
    )
    passes = passes.join(networks, on="network", maintain_order="left")
    # The fullest pass of a training counts a network's operators; others add what it lacks.
    fullest = (
        passes.sort(["trained", "size", "first"], descending=[True, True, False])
        .unique("order", keep="first", maintain_order=True)
        .select(*_PASS, pl.lit(True).alias("fullest"))
    )
    placed = slots.join(
        passes.select(*_PASS, "order").join(
            fullest, on=_PASS, how="left", maintain_order="left", nulls_equal=True
        ),
        on=_PASS,
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    place = ["order", "slot", "short", "nth"]
    counted = (
        placed.with_columns(pl.int_range(pl.len()).alias("when"))
        .group_by(place)
        .agg(pl.col("fullest").fill_null(False).any(), pl.col("when").min())
        .sort(["order", "fullest", "when"], descending=[False, True, False])
        .with_columns(pl.int_range(pl.len()).over("order", "short").alias("number"))
    )
    sizes = counted.group_by("order", "short").agg(pl.len().cast(pl.Int64).alias("count"))
    before = (
        placed.select(*_THREAD, "order")
        .unique()
        .join(sizes, on="order")
        .sort("order")
        .with_columns(
            (pl.col("count").cum_sum() - pl.col("count")).over(*_THREAD, "short").alias("before")
        )
        .select(*_THREAD, "order", "short", "before")
    )
    return (
        placed.join(counted.select(*place, "number"), on=place, how="left", maintain_order="left")
        .join(
            before,
            on=[*_THREAD, "order", "short"],
            how="left",
            maintain_order="left",
            nulls_equal=True,
        )
        .select("row", (pl.col("number") + pl.col("before")).alias("position"))
    )


def _described(forward: pl.DataFrame) -> pl.DataFrame:
    """Return ``forward`` with ``weighted``, ``key`` (name and weight) and ``taken``, ``made``: how
    many features a weighted operator takes and gives, null where that is not known."""
    kinds = (
        forward.select("name", "input_shapes")
        .unique()
        .filter(pl.col("name").cast(pl.String).str.contains(WEIGHTED))
    )
    described = [(name, text, True, *_of_call(str(name), text)) for name, text in kinds.iter_rows()]
    frame = pl.DataFrame(
        described,
        schema={
            "name": kinds.schema["name"],
            "input_shapes": pl.String,
            "weighted": pl.Boolean,
            "key": pl.String,
            "taken": pl.Int64,
            "made": pl.Int64,
        },
        orient="row",
    )
    return forward.join(
        frame, on=["name", "input_shapes"], how="left", maintain_order="left", nulls_equal=True
    ).with_columns(
        pl.col("weighted").fill_null(False),
        pl.coalesce("key", "short").alias("key"),
        # Bursts that began between two operators of the thread end a pass.
        (pl.col("bursts") != pl.col("bursts").shift(1))
        .fill_null(False)
        .cast(pl.Int64)
        .over(_THREAD)
        .cum_sum()
        .over(_THREAD)
        .alias("segment"),
    )


def _of_call(name: str, text: str | None) -> tuple[str, int | None, int | None]:
    """Return the name with its weight's shape, and the features taken and made."""
    short = name.rpartition("::")[2]
    if _OF_ACTIVATIONS.search(name):
        return short, None, None
    at, weight_at = OPERAND_POSITIONS.get(name, (0, 1))
    try:
        call = Call.decode(name, text)
        weight = call.shape(weight_at)
    except UncountableError:
        return short, None, None
    taken = _shape(call, at)
    key = f"{short} {list(weight)}"
    if short == "embedding":
        # Its input is integers, which no layer makes.
        return key, -1, weight[-1]
    if taken is None:
        return key, None, None
    if "norm" in short:
        features = taken[1] if "batch" in short or "group" in short else taken[-1]
        return key, features, features
    if short.startswith("conv"):
        transposed = "transpose" in short
        return key, taken[1] if len(taken) > 1 else None, None if transposed else weight[0]
    if short == "linear":
        return key, taken[-1], weight[0]
    return key, taken[-1], weight[-1]


def _shape(call: Call, at: int) -> Shape | None:
    try:
        return call.shape(at) or None
    except UncountableError:
        return None


def _cut(ops: pl.DataFrame) -> pl.DataFrame:
    """Return ``ops`` with ``copy``: which pass of its segment each operator is in.

    Only distinct sequences are looked at one by one.
    """
    at = [*_THREAD, "segment"]
    segments = (
        ops.group_by(at, maintain_order=True)
        .agg(
            pl.col("key").filter("weighted").str.join(_UNIT).alias("weights"),
            pl.col("linked").filter("weighted").alias("links"),
            pl.col("key").str.join(_UNIT).alias("all"),
            pl.col("weighted").arg_max().alias("prefix"),
            pl.col("taken").filter("weighted").first(),
            pl.col("made").filter("weighted").last(),
            pl.col("weighted").sum().alias("count"),
        )
        .filter(pl.col("count") > 0)
    )
    alone = set(segments.filter(pl.col("links").list.last())["weights"])
    cuts: dict[str, int] = {}
    units: list[int] = []
    for step, weights, links, whole, taken, made, count in segments.select(
        "step", "weights", "links", "all", "taken", "made", "count"
    ).iter_rows():
        if weights not in cuts:
            cuts[weights] = _unit(weights, alone)
        unit = cuts[weights]
        if any(links[: count - unit]):
            unit = count
        unmarked = step == NONE and not any(links) and unit == count
        if unmarked and taken is not None and made is not None and taken != made:
            unit = count // _repeats(whole.split(_UNIT))
        units.append(unit)
    known = segments.select(*at, "prefix", pl.Series("unit", units, dtype=pl.Int64))
    weighted = pl.col("weighted").cast(pl.Int64)
    seen = weighted.cum_sum().over(at)
    return (
        ops.join(known, on=at, how="left", maintain_order="left", nulls_equal=True)
        .with_columns(seen.alias("seen"))
        .with_columns(
            # What stands behind the last weighted operator of a copy is of that copy, but for as
            # much as stands before the first of the segment.
            pl.int_range(pl.len(), 0, -1).over(*at, "seen").alias("left"),
            pl.col("seen").max().over(at).alias("most"),
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


def _unit(weights: str, alone: set[str]) -> int:
    """Return how many weighted operators a pass has, of a segment that may be several passes."""
    keys = weights.split(_UNIT)
    for other in sorted(alone, key=len):
        unit = other.split(_UNIT)
        times, rest = divmod(len(keys), len(unit))
        if not rest and times > 1 and unit * times == keys:
            return len(unit)
    return len(keys)


def _repeats(keys: list[str]) -> int:
    """Return how often the shortest sequence stands in ``keys`` that is all of it, repeated."""
    codes = np.unique(np.array(keys), return_inverse=True)[1]
    for period in range(1, len(keys) // 2 + 1):
        if len(keys) % period == 0 and bool((codes[period:] == codes[:-period]).all()):
            return len(keys) // period
    return 1


def _bursts_before(
    process: pl.Series, start: Ints, backward_process: pl.Series, backward_start: Ints
) -> Ints:
    """Return how many operators of the backward pass of its process began before each start."""
    found = np.zeros(len(start), dtype=np.int64)
    for one in process.unique().to_list():
        mine = process.eq_missing(one).to_numpy()
        theirs = np.sort(backward_start[backward_process.eq_missing(one).to_numpy()])
        found[mine] = np.searchsorted(theirs, start[mine])
    return found
