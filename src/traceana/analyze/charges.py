"""The costs of the selected work: FLOPs and bytes by unit and layer, and the unit of each activity,
or the reason why it has no count.

A unit is a counted operator, an instruction of a compiled program (XLA), or a direction of a layer
that the layer manifest counts. Layers, operators, kernels, the roofline and the utilization of a
step are sums over these charges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.coverage import (
    BY_MODEL,
    ELSEWHERE,
    PARTLY,
    coverage,
    incomplete,
    of_instructions,
    of_operators,
    with_manifest,
    without_count,
)
from traceana.analyze.executed_flops import executed_by_instruction, executed_convolutions
from traceana.analyze.model_charges import NO_STEPS, model_charges
from traceana.analyze.operator_flops import PART, OperatorCosts, operator_costs
from traceana.columns.nesting import NONE, Tree, from_rows, to_rows
from traceana.flops.call import PRODUCT
from traceana.table import whole_sum
from traceana.timeline.work import work
from traceana.trace import per_small_trace
from traceana.trace.schema import ROW
from traceana.trace.taxonomy import PRODUCTS, SEARCH

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

CHARGES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "unit": pl.Int64,  # an operator, an instruction or a pass of a layer: `_unit_of_layer`
    "op": pl.UInt32,  # row of `ops`; null for others
    "instruction": ROW,  # row of `instructions`; null for others
    "layer": ROW,  # row of `layers`; null for work without a layer
    "part": PART,  # null for instructions of neither pass
    "kind": pl.String,
    "formula": pl.String,
    "count": pl.Int64,  # calls
    "flops": pl.Int64,  # of a direct computation; a multiply-accumulate is two
    "executed_flops": pl.Int64,  # of the algorithm; null where unknown
    "bytes": pl.Int64,  # compulsory; null where a shape or a type is unknown
    "partial": pl.Boolean,  # some of the unit's work has no count
    "product": pl.Boolean,  # of a convolution, matrix product, attention or recurrent layer
    "precision": pl.String,  # of the unit's kernels of products, most time; null without
    "tensor_core": pl.Boolean,
}
COUNTS: Final = ("flops", "executed_flops", "bytes")

UNCOUNTED: Final = -1
"""The unit of operators without a count: a trace has millions, and nothing asks which one it is."""


class Charges(msgspec.Struct, frozen=True):
    """The costs of the selected work, and their sources.

    ``frame`` has the columns of :data:`CHARGES`, a row per counted operator and part, per
    instruction, layer and pass, and per part of a layer that the manifest counts. ``layer`` is the
    operator's (``ops.layer``). The time of a kernel is in the row of the kernel's layer
    (``activities.layer``), which a name scope may make another. ``coverage`` has a row for each of
    ``work(trace)``: ``op``, the counted operator around it, else its own; ``reason`` why it has no
    count, null where it has one; ``unit``, null without an operator, :data:`UNCOUNTED` without a
    count. ``notes`` name the source of the shapes.
    """

    frame: pl.DataFrame
    coverage: pl.DataFrame
    notes: tuple[str, ...]


@per_small_trace
def charges(trace: Trace, model: Manifest | None) -> Charges:
    """Return the costs of the selected work of ``trace``.

    Shapes are from the trace's operators, for a compiled program (XLA) from its instructions.
    Layers that have no shapes there, or not all, have the shapes of ``model``.
    """
    # Few traces have instructions.
    from traceana.flops.hlo import instruction_flops

    (operators, reasons), holders = _operators(trace.whole), _holders(trace)
    # The count of a loop and those of its body are of the same work.
    by_run = instruction_flops(trace.tables.instructions).filter(
        ~pl.col("instruction").is_in(holders.implode())
    )
    covered = coverage(trace, operators, reasons, of_instructions(trace, by_run, holders))
    charged = [_of_operators(trace, operators), _of_instructions(trace, by_run)]
    on_shapes: tuple[str, ...] = ()
    if model is not None:
        layer = work(trace, "layer")["layer"]
        partial = layer.filter(covered.select(incomplete(pl.col("reason"))).to_series())
        counts = pl.concat(rows.select("layer", "formula", "flops") for rows in charged)
        of_model, on_shapes, fused = model_charges(
            trace, model, counts, set(partial.drop_nulls().unique())
        )
        replaced = of_model["layer"].unique().implode()
        charged = [
            rows.filter(~pl.col("layer").is_in(replaced).fill_null(False)) for rows in charged
        ]
        covered = with_manifest(covered, layer.is_in(replaced), layer.is_in(sorted(fused)))
        unit = _unit_of_layer(trace, of_model["layer"], of_model["part"] != "forward")
        charged.append(of_model.with_columns(unit.alias("unit"), pl.lit(False).alias("partial")))
    frame = pl.concat(charged, how="diagonal")
    frame, covered = _with_units(trace, operators.tree, frame, covered)
    frame = _with_precision(trace, frame, covered).select(
        pl.col(name).cast(dtype) for name, dtype in CHARGES.items()
    )
    return Charges(frame, covered, on_shapes)


@per_small_trace
def _operators(trace: Trace) -> tuple[OperatorCosts, pl.Series]:
    """Return the costs of all operators of a trace, and the reasons without, whatever work is
    selected."""
    costs = operator_costs(trace.tables.ops, trace.meta.operator_rules)
    return costs, of_operators(costs)


def _of_operators(trace: Trace, operators: OperatorCosts) -> pl.DataFrame:
    """Return the charges of the operators that launched the selected work.

    An operator counts if it has selected work, or an operator inside it. On a CPU an operator also
    counts if one around it has selected work, whose time can include the operators inside. An
    operator without kernels, inside an operator that launched kernels, did not compute. An operator
    without a layer is charged to the layer of the nearest operator around it.
    """
    costs, tree, ops = operators.costs, operators.tree, trace.tables.ops
    has_work, has_cpu_work = (np.zeros(ops.height, dtype=np.bool_) for _ in range(2))
    activities = work(trace, "op", "kind", "episode", "role")
    launching = activities.drop_nulls("op")
    has_work[launching["op"].to_numpy()] = True
    has_cpu_work[launching.filter(pl.col("kind") == "op")["op"].to_numpy()] = True
    selected = has_work | tree.inside(has_cpu_work) | tree.holding(has_work)
    # What the algorithms of its convolutions execute, minus direct ones; null where one is unknown.
    of_episode = executed_convolutions(trace.whole)
    # Trials repeat the computation, which counts once.
    ran = activities.filter(pl.col("role").ne_missing(SEARCH))["episode"].drop_nulls().unique()
    saved = (
        of_episode.with_columns(
            pl.Series("op", tree.nearest(operators.counted, from_rows(of_episode["operator"]))),
            trace.tables.episodes["direction"]
            .replace_strict(PART_OF, default=None, return_dtype=PART)
            .alias("part"),
            (pl.col("executed_flops") - pl.col("direct_flops")).alias("saved"),
        )
        .filter(pl.col("episode").is_in(ran.implode()) & (pl.col("op") != NONE))
        .group_by(pl.col("op").cast(pl.UInt32), "part")
        .agg(whole_sum("saved"))
    )
    costs = costs.filter(pl.Series(selected).gather(costs["op"]))
    located = tree.nearest(ops["layer"].is_not_null().to_numpy(), from_rows(costs["op"]))
    return costs.join(saved, on=["op", "part"], how="left", maintain_order="left").with_columns(
        ops["layer"].gather(to_rows(located)).alias("layer"),
        pl.lit(1, pl.Int64).alias("count"),
        # The gradient of a bias is a sum, which no algorithm shortens.
        pl.when(pl.col("kind").str.contains(r"^conv") & (pl.col("part") != "bias_grad"))
        .then(pl.col("flops") + pl.col("saved"))
        .otherwise(pl.col("flops") - pl.col("skipped"))
        .alias("executed_flops"),
    )


PART_OF: Final = {"fprop": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}
"""Parts by the direction of a convolution's kernels."""


def _of_instructions(trace: Trace, counts: pl.DataFrame) -> pl.DataFrame:
    """Return the charges of the instructions that the selected work ran.

    ``counts`` is the count of each instruction (:func:`traceana.flops.hlo.instruction_flops`). The
    elementwise part and the bytes of an instruction are not counted.
    """
    ran = work(trace, "instruction", "layer", "direction", "name_id", "duration")
    runs = (
        executions(ran.drop_nulls("instruction"))
        .join(counts, on="instruction", how="inner", maintain_order="left")
        .join(executed_by_instruction(trace), on="instruction", how="left", maintain_order="left")
    )
    opcode = trace.tables.instructions["opcode"].cast(pl.String).gather(runs["instruction"])
    # A routine of cuDNN computes one gradient.
    direction = pl.coalesce("gradient", pl.col("direction").cast(pl.String))
    return runs.select(
        unit_of_instruction(trace, runs["instruction"]).alias("unit"),
        "instruction",
        "layer",
        direction.cast(PART, strict=False).alias("part"),
        opcode.alias("kind"),
        "formula",
        "count",
        pl.col("flops") * pl.col("count"),
        pl.col("executed_flops") * pl.col("count"),
        pl.col("at_least").alias("partial"),
    )


def executions(ran: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Return how often each instruction ran, by layer and direction, and the time of its work.

    The columns ``more`` split its work further. An instruction of several kernels ran as often as
    the kernel with the fewest calls.
    """
    keys = ("instruction", "layer", "direction", *more)
    return (
        ran.group_by(*keys, "name_id")
        .agg(pl.len().alias("count"), pl.col("duration").sum().alias("time_ns"))
        .group_by(keys)
        .agg(pl.col("count").min().cast(pl.Int64), pl.col("time_ns").sum())
    )


# A unit is one integer, in three ranges that follow each other: the rows of `ops`, the rows of
# `instructions`, and for each row of `layers` its forward and its backward work.


def unit_of_instruction(trace: Trace, instruction: pl.Series) -> pl.Series:
    """Return the unit of each of the rows ``instruction`` of a trace's instructions."""
    return instruction.cast(pl.Int64) + trace.tables.ops.height


def _unit_of_layer(trace: Trace, layer: pl.Series, backward: pl.Series) -> pl.Series:
    """Return the unit of each of the rows ``layer`` of a trace's layers, by pass."""
    first = trace.tables.ops.height + trace.tables.instructions.height
    return first + 2 * layer.cast(pl.Int64) + backward.fill_null(False).cast(pl.Int64)


def _with_units(
    trace: Trace, tree: Tree, frame: pl.DataFrame, covered: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the charges and the coverage with ``unit``.

    ``frame`` has the units of instructions and layers. The unit of an operator is its row if it
    covers work. Else its work is on an operator around it: the unit is the nearest one with work.
    On a CPU the operator of the work may have counted children.
    """
    activities = work(trace, "op", "instruction", "layer", "direction")
    instruction, by_model = activities["instruction"], covered["reason"].eq_missing(BY_MODEL)
    has_work = np.zeros(len(tree.parent), dtype=np.bool_)
    has_work[activities["op"].drop_nulls().to_numpy()] = True
    nearest = to_rows(tree.nearest(has_work, from_rows(frame["op"])))

    covering = covered.filter(~by_model & instruction.is_null())["op"].unique().implode()
    partly = covered.filter(pl.col("reason") == PARTLY)["op"].cast(pl.Int64).unique().implode()
    op, is_operator = pl.col("op"), pl.col("op").is_not_null()
    row = pl.when(op.is_in(covering)).then(op).otherwise(pl.lit(nearest)).cast(pl.Int64)
    frame = frame.with_columns(pl.when(is_operator).then(row).otherwise("unit").alias("unit"))
    partial = pl.col("unit").is_in(partly).fill_null(False)
    frame = frame.with_columns(
        pl.when(is_operator).then(partial).otherwise("partial").alias("partial")
    )

    is_unit = np.zeros(trace.tables.ops.height, dtype=np.bool_)
    is_unit[pl.concat([frame["op"], nearest]).drop_nulls().to_numpy()] = True
    counted = pl.Series(is_unit).gather(covered["op"])
    return frame, covered.with_columns(
        pl.when(by_model)
        .then(_unit_of_layer(trace, activities["layer"], activities["direction"] == "backward"))
        .when(instruction.is_not_null())
        .then(unit_of_instruction(trace, instruction))
        .when(counted)
        .then(op.cast(pl.Int64))
        .when(is_operator)
        .then(UNCOUNTED)
        .alias("unit")
    )


def _with_precision(trace: Trace, frame: pl.DataFrame, covered: pl.DataFrame) -> pl.DataFrame:
    """Return the charges with ``product``, and the precision of its kernels.

    The precision is from the kernels of the gradient where they are known, else of the whole unit.
    """
    columns = ["precision", "tensor_core"]
    gradient = pl.when(pl.col("kernel_direction").is_in(["dgrad", "wgrad"])).then(
        pl.col("kernel_direction").cast(pl.String)
    )
    ran = (
        work(trace, "category", "kernel_direction", *columns, "duration")
        .with_columns(covered["unit"])
        .filter(
            pl.col("category").is_in(PRODUCTS),
            pl.col("precision").is_not_null(),
            pl.col("unit") >= 0,
        )
        .group_by("unit", "kernel_direction", *columns)
        .agg(pl.col("duration").sum())
        .with_columns(gradient.cast(PART).alias("part"), pl.col("precision").cast(pl.String))
    )

    def most(*keys: str) -> pl.DataFrame:
        """Return the precision of most of the time, by ``keys``."""
        return (
            ran.group_by(*keys, *columns)
            .agg(pl.col("duration").sum())
            .sort(["duration", *columns], descending=[True, False, False])
            .unique(keys, keep="first", maintain_order=True)
            .drop("duration")
        )

    product = pl.col("instruction").is_not_null() | pl.col("formula").str.contains(PRODUCT)
    has_precision = pl.col("precision").is_not_null()
    return (
        frame.with_columns(product.alias("product"))
        .join(most("unit", "part"), on=["unit", "part"], how="left", maintain_order="left")
        .join(most("unit"), on="unit", how="left", maintain_order="left", suffix="_whole")
        .with_columns(
            pl.when("product")
            .then(pl.when(has_precision).then(column).otherwise(f"{column}_whole"))
            .alias(column)
            for column in columns
        )
    )


def _holders(trace: Trace) -> pl.Series:
    """Return the instructions that contain others with events of their own.

    On the CPU a loop (``scan``, ``while_loop``, ``fori_loop``), a conditional and a call have an
    event, and each instruction of their body has an event every time it runs, on any thread, during
    the loop's event or after it. The body's events count all iterations. A fusion's instructions
    have no events.
    """
    recorded = trace.whole
    instructions = pl.concat(
        [recorded.tables.ops["instruction"], recorded.tables.activities["instruction"]]
    )
    parents = trace.tables.instructions["parent"]
    holders = parents.clear()
    above = parents.gather(instructions.drop_nulls().unique()).drop_nulls().unique()
    while len(above):
        holders = pl.concat([holders, above])
        above = parents.gather(above).drop_nulls().unique()
        above = above.filter(~above.is_in(holders.implode()))
    return holders


CAUSAL: Final = (
    "causal attention: flops and rates count all scores, executed_flops only those that the mask "
    "keeps"
)
MACS: Final = "1 multiply-accumulate = 2 FLOPs"
NO_SHAPES: Final = "no FLOPs: shapes in neither the trace nor a layer manifest (--model)"
NO_PRODUCTS: Final = "no FLOPs: no convolution or matrix product among the XLA instructions"


def on_flops(trace: Trace, charged: Charges) -> tuple[str, ...]:
    """Return the notes on the FLOPs of ``trace``, the same in every command that prints them."""
    if charged.coverage.is_empty():
        return ()
    frame, flops = charged.frame, pl.col("flops")
    masked = frame.filter((pl.col("kind") == "attention") & (pl.col("executed_flops") < flops))
    source: str | None = MACS
    if not frame["flops"].max():
        # Copies and views with known shapes have no FLOPs.
        shaped = frame.height or trace.tables.ops["input_shapes"].count()
        why = NO_PRODUCTS if trace.tables.instructions.height else None if shaped else NO_SHAPES
        source = None if NO_STEPS in charged.notes else why
    rows = work(trace, "duration").with_columns(charged.coverage["reason"])
    total = int(rows["duration"].sum())
    labels = (
        ("time without FLOP counts", without_count(pl.col("reason"))),
        ("time with partial FLOP counts", pl.col("reason") == PARTLY),
        ("no rate, fused into a following layer's row", pl.col("reason") == ELSEWHERE),
    )
    parts = [(label, int(rows.filter(which)["duration"].sum())) for label, which in labels]
    return (
        *([source] if source else []),
        *([CAUSAL] if masked.height else []),
        *(f"{label}: {100 * part / total:.1f} %" for label, part in parts if part),
    )
