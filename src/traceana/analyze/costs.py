"""FLOPs and compulsory bytes of the selected work, charged to layers.

The shapes are those of the trace's operators, of a compiled program's instructions (XLA), or of the
layer manifest. All charges are rows of one frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.analyze.flop_coverage import (
    BY_MODEL,
    ELSEWHERE,
    PRODUCTS,
    Uncounted,
    coverage,
    coverage_notes,
    flops_by_run,
    incomplete,
)
from traceana.analyze.manifest_names import Pairing
from traceana.analyze.manifest_order import FUSED
from traceana.analyze.manifest_pairing import paired
from traceana.analyze.operator_flops import (
    PART,
    Flags,
    OperatorCosts,
    executed_convolutions,
    operator_costs,
)
from traceana.columns.nesting import NONE, Tree, from_rows, to_rows
from traceana.enrich.keys import SEARCH, SOURCE, category_of
from traceana.enrich.layers.from_scopes import replica_of
from traceana.enrich.layers.layer_intervals import SEPARATOR
from traceana.flops.cost import LARGEST, Refusal
from traceana.flops.layer_formulas import Layer as Shapes
from traceana.flops.layer_formulas import layer_costs
from traceana.model.manifest import Manifest
from traceana.timeline.work import work
from traceana.trace import per_small_trace
from traceana.trace.schema import ROW
from traceana.vocabulary.layer_types import PRODUCTS as LAYERS_OF_PRODUCTS
from traceana.vocabulary.layer_types import kind_of

if TYPE_CHECKING:
    from traceana.trace import Trace

CHARGES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer": ROW,  # row of `layers`; null for work without a layer
    "part": PART,  # null for instructions of neither pass
    "kind": pl.String,
    "formula": pl.String,
    "count": pl.Int64,  # calls
    "flops": pl.Int64,  # of a direct computation; a multiply-accumulate is two
    "executed_flops": pl.Int64,  # of the algorithm; null where unknown
    "bytes": pl.Int64,  # compulsory; null where a shape or a type is unknown
}
KEYS: Final = ("layer", "part", "kind", "formula")
COUNTS: Final = ("flops", "executed_flops", "bytes")

_DOTTED: Final = re.compile(r"[./]+")
_MOST_LISTED: Final = 8


class Charges(msgspec.Struct, frozen=True):
    """The costs of the selected work, and their sources.

    ``frame`` has the columns of :data:`CHARGES`, a row per layer, part, kind and formula: of the
    counted ``operators`` (columns of :func:`priced` and ``layer``), of instructions, and of the
    layers that the manifest counts (``of_model``).
    ``instructions`` are those of :func:`traceana.analyze.flop_coverage.flops_by_run`.
    ``coverage`` has a row for each of ``work(trace)``, with ``op`` and ``reason`` as of
    :func:`traceana.analyze.flop_coverage.coverage`. ``notes`` name the source of the shapes.
    """

    frame: pl.DataFrame
    operators: pl.DataFrame
    instructions: pl.DataFrame
    of_model: pl.DataFrame
    coverage: pl.DataFrame
    notes: tuple[str, ...]


@per_small_trace
def charges(trace: Trace, model: Manifest | None) -> Charges:
    """Return the costs of the selected work of ``trace``.

    Shapes are those of the trace's operators, for a compiled program (XLA) those of its
    instructions. Layers without either, or with a part of them, have the shapes of ``model``.
    """
    known = _operators(trace.whole)
    operators = selected_costs(trace, known)
    instructions = flops_by_run(trace)
    charged = pl.concat([operator_charges(operators), instruction_charges(trace, instructions)])
    covered = coverage(trace, known.tree, known.found.costs, known.uncounted, instructions)
    of_model = charged.clear()
    on_shapes: tuple[str, ...] = ()
    if model is not None:
        layer = work(trace, "layer")["layer"]
        partial = layer.filter(covered.select(incomplete(pl.col("reason"))).to_series())
        of_model, on_shapes = model_charges(
            trace, model, charged, set(partial.drop_nulls().unique())
        )
        replaced = of_model["layer"].unique().implode()
        kept = ~pl.col("layer").is_in(replaced).fill_null(False)
        charged, operators = charged.filter(kept), operators.filter(kept)
        by_model = layer.is_in(replaced).fill_null(False)
        elsewhere = layer.is_in(_fused_products(trace, model, of_model["layer"])).fill_null(False)
        reason = (
            pl.when(elsewhere)
            .then(pl.lit(ELSEWHERE))
            .when(by_model)
            .then(pl.lit(BY_MODEL))
            .otherwise("reason")
        )
        covered = covered.with_columns(reason.alias("reason"))
    return Charges(
        pl.concat([charged, of_model]), operators, instructions, of_model, covered, on_shapes
    )


class _Operators(msgspec.Struct, frozen=True):
    """What is known of all operators of a trace, whatever work is selected."""

    tree: Tree
    found: OperatorCosts
    uncounted: Uncounted


@per_small_trace
def _operators(trace: Trace) -> _Operators:
    tree, found = Tree.of_table(trace.tables.ops), operator_costs(trace.tables.ops)
    return _Operators(tree, found, Uncounted.of(tree, found))


CAUSAL: Final = (
    "causal attention: flops and rates count all scores, executed_flops only those that the mask "
    "keeps"
)
MACS: Final = "1 multiply-accumulate = 2 FLOPs"
NO_SHAPES: Final = "no FLOPs: shapes in neither the trace nor a layer manifest (--model)"
NO_PRODUCTS: Final = "no FLOPs: no convolution or matrix product among the XLA instructions"
NO_STEPS: Final = (
    "no FLOPs from the layer manifest: without steps the number of layer calls is unknown"
)
EXTRA: Final = (
    "several forward passes in a step (such as validation): FLOPs with the batch size of the "
    "layer manifest"
)


def on_flops(trace: Trace, charged: Charges) -> tuple[str, ...]:
    """Return the notes on the FLOPs of ``trace``, the same in every command that prints them."""
    if charged.coverage.is_empty():
        return ()
    frame, flops = charged.frame, pl.col("flops")
    masked = frame.filter((pl.col("kind") == "attention") & (pl.col("executed_flops") < flops))
    counted = bool((frame["flops"] > 0).any())
    why = NO_PRODUCTS if trace.tables.instructions.height else NO_SHAPES
    source = MACS if counted else None if NO_STEPS in charged.notes else why
    return (
        *([source] if source else []),
        *([CAUSAL] if masked.height else []),
        *coverage_notes(charged.coverage["reason"], work(trace, "duration")["duration"]),
    )


_CONVOLUTION: Final = r"^conv"
"""Kinds with an algorithm, on which the executed FLOPs depend."""
_OF_INSTRUCTION: Final = "hlo."
"""Begin of the formulas of XLA's instructions."""

_PART_OF: Final = {"fprop": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}


def operator_charges(costs: pl.DataFrame) -> pl.DataFrame:
    """Return the costs of operators (:func:`selected_costs`) by layer."""
    return summed(costs.with_columns(pl.lit(1, pl.Int64).alias("count")))


def selected_costs(trace: Trace, known: _Operators) -> pl.DataFrame:
    """Return the costs of the operators that launched the selected work, with ``layer``.

    An operator counts if it, its children or its parents have selected work. Parents count on a
    CPU, where an operator's time can include that of its children.
    """
    costs, tree = priced(trace, known), known.tree
    costs = costs.filter(pl.Series(selected_operators(trace, tree)).gather(costs["op"]))
    return costs.with_columns(_layers(trace.tables.ops["layer"], tree, costs["op"]).alias("layer"))


def priced(trace: Trace, known: _Operators) -> pl.DataFrame:
    """Return the cost of each counted operator and part, with ``executed_flops``.

    The other columns are those of :data:`traceana.analyze.operator_flops.COSTS`.
    """
    costs = known.found.costs
    counted = np.zeros(trace.tables.ops.height, dtype=np.bool_)
    counted[costs["op"].to_numpy()] = True
    executed = _executed(trace, known.tree, counted)
    return (
        costs.join(executed, on=["op", "part"], how="left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("kind").str.contains(_CONVOLUTION))
            .then(pl.col("flops") + pl.col("saved"))
            .otherwise(pl.col("flops") - pl.col("skipped"))
            .alias("executed_flops")
        )
        .drop("saved", "skipped")
    )


def _layers(layer: pl.Series, tree: Tree, op: pl.Series) -> pl.Series:
    """Return the layer of each of the operators ``op``, or of the nearest parent that has one."""
    return layer.gather(to_rows(tree.nearest(layer.is_not_null().to_numpy(), from_rows(op))))


def selected_operators(trace: Trace, tree: Tree) -> Flags:
    """Return the operators with selected work of their own, of a child or, on a CPU, of a parent.

    A child without kernels, of an operator that launched kernels, did not compute.
    """
    own, around = (np.zeros(trace.tables.ops.height, dtype=np.bool_) for _ in range(2))
    selected = work(trace, "op", "kind").drop_nulls("op")
    own[selected["op"].to_numpy()] = True
    around[selected.filter(pl.col("kind") == "op")["op"].to_numpy()] = True
    return own | tree.inside(around) | tree.holding(own)


def _executed(trace: Trace, tree: Tree, counted: Flags) -> pl.DataFrame:
    """Return by ``counted`` operator and part the executed FLOPs minus those of a direct
    convolution.

    Null where the executed FLOPs of one of its convolutions are unknown.
    """
    of_episode = executed_convolutions(trace.whole)
    activities = work(trace, "episode", "layer")
    role = trace.tables.layers["role"].cast(pl.String).gather(activities["layer"])
    # Trials repeat the computation, which counts once.
    ran = activities.filter(role.ne_missing(SEARCH))["episode"].drop_nulls().unique()
    op = tree.nearest(counted, from_rows(of_episode["operator"]))
    return (
        of_episode.with_columns(
            pl.Series("op", op),
            trace.tables.episodes["direction"]
            .replace_strict(_PART_OF, default=None, return_dtype=PART)
            .alias("part"),
            (pl.col("executed_flops") - pl.col("direct_flops")).alias("saved"),
        )
        .filter(pl.col("episode").is_in(ran.implode()) & (pl.col("op") != NONE))
        .group_by(pl.col("op").cast(pl.UInt32), "part")
        .agg(pl.when(pl.col("saved").null_count() == 0).then(pl.col("saved").sum()))
    )


def instruction_charges(trace: Trace, known: pl.DataFrame) -> pl.DataFrame:
    """Return the costs of the instructions that the selected work ran.

    ``known`` is of :func:`flops_by_run`. The elementwise part and the bytes of an instruction are
    not counted.
    """
    ran = work(trace, "instruction", "layer", "direction", "name_id", "duration").drop_nulls(
        "instruction"
    )
    runs = executions(ran).join(known, on="instruction", how="inner", maintain_order="left")
    charged = runs.select(
        "layer",
        pl.col("direction").cast(pl.String).cast(PART, strict=False).alias("part"),
        trace.tables.instructions["opcode"]
        .cast(pl.String)
        .gather(runs["instruction"])
        .alias("kind"),
        "formula",
        "count",
        (pl.col("flops") * pl.col("count")).alias("flops"),
        pl.lit(None, pl.Int64).alias("executed_flops"),
        pl.lit(None, pl.Int64).alias("bytes"),
    )
    return summed(charged)


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


def model_charges(
    trace: Trace, model: Manifest, charged: pl.DataFrame, partial: set[int]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the manifest's costs of layers that have no row in ``charged``, and notes.

    For ``partial`` layers ``charged`` counts a part of the work: the manifest's count replaces it
    where it is larger.

    A layer is counted once per direction and pass (:func:`_passes`), also in each replica of
    ``tf.distribute``; ``model`` describes one replica. A layer with an unknown number of passes is
    not counted, nor one without a convolution or product of its own beside XLA programs whose
    products are on no layer: they may be its own, and count there. Layers whose input has no
    gradient count without it; where that is unknown, the first layer with parameters.
    """
    found = paired(trace, model)
    partner = found.layer_of
    each = _executions(trace, partner)
    seen, extra = _passes(each, {row: layer.calls for row, layer in partner.items()})
    apart = _products_apart(trace, charged)
    with_product = set(each.filter("product")["layer"])
    counts = charged.drop_nulls("layer").group_by("layer").agg(pl.col("flops").sum())
    known = dict(counts.filter(pl.col("flops") > 0).iter_rows())
    rows: list[tuple[object, ...]] = []
    # What a compiler left of a layer is not known: a normalization may be in the weights.
    fused = {
        row
        for row, kind in enumerate(trace.tables.layers["type"])
        if (kind or "").startswith(FUSED)
    }
    uncounted = {
        row: layer
        for row, layer in partner.items()
        if (row not in known or row in partial) and row not in fused
    }
    if uncounted and not trace.tables.steps.height:
        return pl.DataFrame(schema=CHARGES), (NO_STEPS,)
    wanted = {row: layer for row, layer in uncounted.items() if row in seen}
    unclear: list[str] = []
    compiled: list[str] = []
    first = min((layer.position for layer in model.layers if layer.parameters), default=None)
    for row, layer in wanted.items():
        directions = seen[row]
        known_gradient = layer.input_gradient
        alone = layer.position == first if known_gradient is None else not known_gradient
        # The kernel of a local response normalization are its channels.
        neighbours = layer.kernel[0] if layer.kernel and len(layer.kernel) == 1 else None
        shapes = Shapes(
            *(layer.type, layer.inputs, layer.outputs, layer.parameters, layer.kernel),
            *(layer.groups, neighbours),
            first=alone,
        )
        costs = layer_costs(shapes, backward=True)
        if isinstance(costs, Refusal):
            continue
        if apart and row not in with_product and any(_is_product(cost.kind) for cost in costs):
            compiled.append(_DOTTED.sub(SEPARATOR, layer.path))
            continue
        if None in directions.values():
            unclear += [_DOTTED.sub(SEPARATOR, layer.path)] if costs else []
            continue
        own: list[tuple[object, ...]] = []
        flops = 0
        for cost in costs:
            if times := directions.get("forward" if cost.part == "forward" else "backward"):
                count = times * layer.calls
                if max(cost.flops, cost.bytes or 0) * count > LARGEST:
                    continue
                size = None if cost.bytes is None else cost.bytes * count
                executed = None if cost.kind.startswith("conv") else cost.flops * count
                flops += cost.flops * count
                own.append(
                    (row, cost.part, cost.kind, cost.formula, count, cost.flops * count, executed,
                     size)
                )  # fmt: skip
        if flops > known.get(row, 0):
            rows += own
    used = len({row[0] for row in rows})
    layers = "1 layer" if used == 1 else f"{used} layers"
    note = [f"shapes from the layer manifest: {layers}"] if used else []
    if extra & {row[0] for row in rows}:
        note.append(EXTRA)
    if unclear:
        note.append(f"no FLOPs: number of passes unknown ({_some(unclear)})")
    if compiled:
        note.append(f"no FLOPs: counted outside layers, in XLA programs ({_some(compiled)})")
    return pl.DataFrame(rows, schema=CHARGES, orient="row"), (*note, *_missing(model, found))


def _fused_products(trace: Trace, model: Manifest, counted: pl.Series) -> list[int]:
    """Return the rows of layers where one has the forward convolution or product of another.

    TensorFlow runs them as one operator (``_FusedConv2D``) in the scope of the last of its layers:
    the row of the convolution has its FLOPs, and that of the activation its time. ``counted`` are
    the rows that the manifest counts.
    """
    if trace.meta.framework != "TensorFlow":
        return []
    partner = paired(trace, model).layer_of
    each = _executions(trace, partner).filter(pl.col("direction") == "forward")
    products = set(each.filter("product")["layer"])
    own = {row for row, layer in partner.items() if kind_of(layer.type) in LAYERS_OF_PRODUCTS}
    without = (own & set(each["layer"]) & set(counted)) - products
    return sorted(without | (products - own)) if without else []


def _products_apart(trace: Trace, charged: pl.DataFrame) -> bool:
    """Return whether XLA programs of a TensorFlow trace computed products on no layer.

    Keras compiles grouped convolutions so on a CPU; the programs' scopes are not the model's.
    """
    if trace.meta.framework != "TensorFlow" or trace.tables.instructions.is_empty():
        return False
    role = trace.tables.layers["role"].cast(pl.String).gather(charged["layer"])
    of_program = pl.col("formula").str.starts_with(_OF_INSTRUCTION) & (pl.col("flops") > 0)
    return not charged.filter(of_program & pl.Series(role.ne_missing("layer"))).is_empty()


def _is_product(kind: str) -> bool:
    return kind == "linear" or "conv" in kind


def _missing(model: Manifest, found: Pairing) -> list[str]:
    """Return notes on the layers of ``model`` that are not in the trace."""
    if found.another:
        return ["layer manifest not used: it describes another model"]
    around = model.container_paths()
    layers = {layer.position for layer in found.layer_of.values()}
    wanted = [
        layer for layer in model.layers if layer.path not in around and not layer.computes_nothing
    ]
    left = [
        layer
        for layer in wanted
        if layer.position not in layers and layer.path not in found.together
    ]
    names = [_DOTTED.sub(SEPARATOR, layer.path) for layer in left]
    unclear = [name for name in names if name in found.unclear]
    absent = [name for name in names if name not in found.unclear]
    total = len(wanted)
    notes = []
    if absent:
        notes.append(
            f"manifest layers not found in the trace: {len(absent)} of {total} ({_some(absent)})"
        )
    if unclear:
        notes.append(
            f"manifest layers with ambiguous names in the trace: {len(unclear)} of {total} "
            f"({_some(unclear)})"
        )
    return notes


def _some(names: list[str]) -> str:
    more = [] if len(names) <= _MOST_LISTED else [f"{len(names) - _MOST_LISTED} more"]
    return ", ".join([*names[:_MOST_LISTED], *more])


_LOOP: Final = r"(?:^|/)while(?:_\d+)?/"
"""Scopes of TensorFlow's loops: their operators run any number of times in a pass."""


def _passes(
    each: pl.DataFrame, calls: Mapping[int, int]
) -> tuple[dict[int, dict[str, int | None]], set[int]]:
    """Return the number of passes by layer and direction, and layers with several in a step.

    It is the number of steps and replicas in which the layer has selected work of that direction.
    TensorFlow names each operator once in a graph, so that its executions are passes, also those of
    an evaluation between the steps. The forward passes of a layer with matrix products are their
    number divided by the ``calls`` of the layer in a pass. The number is unknown, None, if
    operators of the layer ran differently often, in training only or in evaluation only.

    Work without a direction counts as forward. Each process has its own steps. ``each`` is of
    :func:`_executions`.
    """
    by = ("layer", "direction")
    key = (*by, "step", "replica")
    product, runs = pl.col("product"), pl.col("runs")
    totals = each.group_by(*by, "replica", "scope", "name").agg(runs.sum())
    alike = totals.group_by(*by).agg((runs.min() == runs.max()).alias("alike"))
    of_calls = pl.DataFrame(
        {"layer": list(calls), "calls": list(calls.values())},
        schema={"layer": ROW, "calls": pl.Int64},
    )
    found = (
        each.group_by(key)
        .agg(
            runs.filter(product).sum().alias("products"),
            runs.max().alias("most"),
            pl.col("loop").any(),
        )
        .join(of_calls, on="layer")
        .join(alike, on=by)
    )
    counted = (pl.col("direction") == "forward") & (pl.col("products") > 0)
    several = (pl.col("most") > 1).any().over(by)
    unclear = several & ~pl.col("alike") & (pl.col("direction") == "forward")
    executed = pl.when(counted).then("products").otherwise("most")
    # A loop repeats its operators equally often in each step.
    unit = (
        pl.when(pl.col("loop").any().over(by))
        .then(executed.min().over(by))
        .when(counted)
        .then("calls")
        .otherwise(1)
    )
    passes = (
        found.with_columns(executed.alias("executed"), unit.alias("unit"))
        .with_columns(
            pl.when(~(unclear & ~counted) & (pl.col("executed") % pl.col("unit") == 0))
            .then(pl.col("executed") // pl.col("unit"))
            .alias("passes")
        )
        .group_by(by)
        .agg(
            whole_sum("passes"),
            ((pl.col("passes") > 1) & ~pl.col("loop")).any().alias("several"),
        )
    )
    seen: dict[int, dict[str, int | None]] = {}
    for row, direction, count in passes.select(*by, "passes").iter_rows():
        seen.setdefault(row, {})[direction] = count
    extra = passes.filter("several", pl.col("direction") == "forward")["layer"]
    return seen, set(extra)


def _executions(trace: Trace, layers: Iterable[int]) -> pl.DataFrame:
    """Return how often each operator of ``layers`` ran, by layer, direction, step and replica.

    Columns: those, ``scope``, ``name``, ``runs``, ``product`` (whether it is a convolution or a
    matrix product) and ``loop`` (whether it is in one). ``runs`` is 1 except in TensorFlow.
    """
    rows = work(trace, "scope", "op", "layer", "step", "direction", *SOURCE)
    chosen = rows.filter(pl.col("layer").is_in(list(layers)))
    op, own = chosen["op"], chosen["scope"]
    scope = pl.select(pl.coalesce(own, trace.tables.ops["scope"].gather(op))).to_series()
    counts = trace.meta.framework == "TensorFlow"
    named = trace.tables.ops["name"].gather(op).cast(pl.String)
    nothing = pl.lit(None, pl.String)
    product = (
        category_of(chosen, trace).cast(pl.String).is_in(PRODUCTS) if counts else pl.lit(False)
    )
    frame = chosen.select(
        "layer",
        "step",
        pl.col("direction").cast(pl.String).fill_null("forward"),
        replica_of(scope).alias("replica"),
        (scope.cast(pl.String) if counts else nothing).alias("scope"),
        (named if counts else nothing).alias("name"),
        "op",
        product.fill_null(value=False).alias("product"),
    )
    in_step = pl.col("step").is_not_null()
    runs = pl.col("op").n_unique().cast(pl.Int64) if counts else pl.lit(1, pl.Int64)
    return (
        frame.filter(in_step | (pl.col("op").is_not_null() & counts))
        .group_by("layer", "direction", "step", "replica", "scope", "name")
        .agg(runs.alias("runs"), pl.col("product").any())
        .with_columns(pl.col("scope").str.contains(_LOOP).fill_null(value=False).alias("loop"))
    )


def whole_sum(column: str) -> pl.Expr:
    """Return the sum of ``column``, null if any value is null: a partial sum is not a total."""
    return pl.when(pl.col(column).null_count() == 0).then(pl.col(column).sum()).alias(column)


def summed(charged: pl.DataFrame) -> pl.DataFrame:
    """Return ``charged``, which has the columns of ``CHARGES``, by layer and formula."""
    return (
        charged.group_by(KEYS, maintain_order=True)
        .agg(pl.col("count").sum(), *(whole_sum(column) for column in COUNTS))
        .select(*KEYS, "count", *COUNTS)
    )
