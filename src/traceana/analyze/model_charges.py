"""Costs from a layer manifest, for layers that have no count in the trace.

A layer is counted by its type and shapes, once per direction and pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.fused_rows import FUSED, fused_parts
from traceana.analyze.manifest_layers import Pairing, paired
from traceana.analyze.operator_flops import PART
from traceana.enrich.layers.from_scopes import replica_of
from traceana.enrich.layers.source import SEPARATOR
from traceana.flops.call import LARGEST, Refusal
from traceana.flops.layer_formulas import Layer as Shapes
from traceana.flops.layer_formulas import layer_costs
from traceana.runs.layer_manifest import Manifest
from traceana.table import whole_sum
from traceana.timeline.work import work
from traceana.trace.schema import ROW
from traceana.trace.taxonomy import PRODUCTS
from traceana.vocabulary.layer_types import PRODUCT_LAYERS, kind_of

if TYPE_CHECKING:
    from traceana.trace import Trace

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer": ROW,
    "part": PART,
    "kind": pl.String,
    "formula": pl.String,
    "count": pl.Int64,
    "flops": pl.Int64,
    "executed_flops": pl.Int64,
    "bytes": pl.Int64,
}
_DOTTED: Final = re.compile(r"[./]+")
_MOST_LISTED: Final = 8
NO_STEPS: Final = (
    "no FLOPs from the layer manifest: without steps the number of layer calls is unknown"
)
EXTRA: Final = (
    "several forward passes in a step (such as validation): FLOPs with the batch size of the "
    "layer manifest"
)


def model_charges(
    trace: Trace, model: Manifest, charged: pl.DataFrame, partial: set[int]
) -> tuple[pl.DataFrame, tuple[str, ...], set[int]]:
    """Return the manifest's costs of layers without a row in ``charged``, notes, and the layers
    that share one operator: one row has the FLOPs, another the time.

    For ``partial`` layers ``charged`` counts a part of the work: the manifest's count replaces it
    where it is larger.

    A layer is counted once per direction and pass (:func:`_passes`), also in each replica of
    ``tf.distribute``; ``model`` describes one replica. A layer with an unknown number of passes is
    not counted. Nor is a layer without a convolution or product where XLA programs have products
    outside layers: they may be the layer's, and count there. Layers whose input has no gradient
    count without it; where that is unknown, the first layer with parameters.
    """
    pairing = paired(trace, model)
    partner = pairing.layer_of
    each = _executions(trace, partner)
    seen, extra = _passes(each, {row: layer.calls for row, layer in partner.items()})
    # Keras compiles grouped convolutions on a CPU: XLA programs, whose scopes are not the model's,
    # have products on no layer.
    role = trace.tables.layers["role"].cast(pl.String).gather(charged["layer"])
    of_program = pl.col("formula").str.starts_with("hlo.") & (pl.col("flops") > 0)
    apart = _records_graph(trace) and trace.tables.instructions.height > 0
    apart &= charged.filter(of_program & pl.Series(role.ne_missing("layer"))).height > 0
    with_product = set(each.filter("product")["layer"])
    counts = charged.drop_nulls("layer").group_by("layer").agg(pl.col("flops").sum())
    recorded_flops = dict(counts.filter(pl.col("flops") > 0).iter_rows())
    rows: list[tuple[object, ...]] = []
    kinds = trace.tables.layers["type"].fill_null("").to_list()
    uncounted = {
        row: layer
        for row, layer in partner.items()
        # What a compiler left of a layer is not known: a normalization may be in the weights.
        if (row not in recorded_flops or row in partial) and not kinds[row].startswith(FUSED)
    }
    if uncounted and not trace.tables.steps.height:
        return pl.DataFrame(schema=_SCHEMA), (NO_STEPS,), set()
    unclear: list[str] = []
    compiled: list[str] = []
    first = min((layer.position for layer in model.layers if layer.parameters), default=None)
    for row, layer in uncounted.items():
        if (directions := seen.get(row)) is None:
            continue
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
        if (
            apart
            and row not in with_product
            and any(cost.kind == "linear" or "conv" in cost.kind for cost in costs)
        ):
            compiled.append(layer.path)
            continue
        if None in directions.values():
            unclear += [layer.path] if costs else []
            continue
        layer_rows: list[tuple[object, ...]] = []
        flops = 0
        for cost in costs:
            if times := directions.get("forward" if cost.part == "forward" else "backward"):
                count = times * layer.calls
                if max(cost.flops, cost.bytes or 0) * count > LARGEST:
                    continue
                size = None if cost.bytes is None else cost.bytes * count
                by_algorithm = cost.kind.startswith("conv") and cost.part != "bias_grad"
                executed = None if by_algorithm else cost.flops * count
                flops += cost.flops * count
                layer_rows.append(
                    (row, cost.part, cost.kind, cost.formula, count, cost.flops * count, executed,
                     size)
                )  # fmt: skip
        if flops > recorded_flops.get(row, 0):
            rows += layer_rows
    counted = {row[0] for row in rows}
    layers = "1 layer" if len(counted) == 1 else f"{len(counted)} layers"
    note = [f"shapes from the layer manifest: {layers}"] if counted else []
    if extra & counted:
        note.append(EXTRA)
    if unclear:
        note.append(f"no FLOPs: number of passes unknown ({_some(unclear)})")
    if compiled:
        note.append(f"no FLOPs: counted outside layers, in XLA programs ({_some(compiled)})")
    fused: set[int] = set()
    if _records_graph(trace):
        # TensorFlow runs them as one operator (``_FusedConv2D``) in the scope of the last of its
        # layers: the row of the convolution has its FLOPs, and that of the activation its time.
        forward = each.filter(pl.col("direction") == "forward")
        products = set(forward.filter("product")["layer"])
        own_product = {
            row for row, layer in partner.items() if kind_of(layer.type) in PRODUCT_LAYERS
        }
        without = (own_product & set(forward["layer"]) & counted) - products
        fused = without | (products - own_product) if without else set()
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return frame, (*note, *_missing(trace, model, pairing)), fused


def _records_graph(trace: Trace) -> bool:
    """Return whether operators are recorded by their names in a graph, as TensorFlow's are.

    Each has one name there, with its layer's scope, and each of its executions is a pass.
    """
    ops = trace.tables.ops
    named = ops["scope"].is_not_null() & ops["layer"].is_not_null() & ops["instruction"].is_null()
    return bool(named.any())


def _missing(trace: Trace, model: Manifest, pairing: Pairing) -> list[str]:
    """Return notes on the layers of ``model`` that are not in the trace."""
    if pairing.another:
        return ["layer manifest not used: it describes another model"]
    around = model.container_paths()
    layers = {layer.position for layer in pairing.layer_of.values()}
    manifest_paths = {layer.path for layer in model.layers}
    rows = trace.tables.layers.select("path", "type").iter_rows()
    together = {part for path, kind in rows for part in fused_parts(path, kind, manifest_paths)}
    wanted = [
        layer for layer in model.layers if layer.path not in around and not layer.computes_nothing
    ]
    left = [
        layer.path
        for layer in wanted
        if layer.position not in layers and layer.path not in together
    ]
    unclear = [path for path in left if _DOTTED.sub(SEPARATOR, path) in pairing.unclear]
    absent = [path for path in left if path not in unclear]
    return [
        f"manifest layers {where}: {len(paths)} of {len(wanted)} ({_some(paths)})"
        for where, paths in (
            ("not found in the trace", absent),
            ("with ambiguous names in the trace", unclear),
        )
        if paths
    ]


def _some(paths: list[str]) -> str:
    more = [] if len(paths) <= _MOST_LISTED else [f"{len(paths) - _MOST_LISTED} more"]
    return ", ".join([*(_DOTTED.sub(SEPARATOR, path) for path in paths[:_MOST_LISTED]), *more])


_LOOP: Final = r"(?:^|/)while(?:_\d+)?/"
"""Scopes of TensorFlow's loops: their operators run any number of times in a pass."""


def _passes(
    each: pl.DataFrame, calls: Mapping[int, int]
) -> tuple[dict[int, dict[str, int | None]], set[int]]:
    """Return the number of passes by layer and direction, and layers with several in a step.

    It is the number of steps and replicas in which the layer has selected work of that direction.
    TensorFlow names each operator once in a graph: its executions are passes, also in an evaluation
    between the steps. The forward passes of a layer with matrix products are their number divided
    by the ``calls`` of the layer in a pass. The number is unknown, None, if operators of the layer
    ran differently often, in training only or in evaluation only.

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
    executions = (
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
        executions.with_columns(executed.alias("executed"), unit.alias("unit"))
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

    Columns: ``layer``, ``direction``, ``step``, ``replica``, ``scope``, ``name``, ``runs``,
    ``product`` (a convolution or matrix product) and ``loop`` (inside a loop). ``runs`` is 1 except
    in TensorFlow.
    """
    rows = work(trace, "scope", "op", "layer", "step", "direction", "category")
    chosen = rows.filter(pl.col("layer").is_in(list(layers)))
    op, scopes = chosen["op"], chosen["scope"]
    scope = pl.select(pl.coalesce(scopes, trace.tables.ops["scope"].gather(op))).to_series()
    counts = _records_graph(trace)
    named = trace.tables.ops["name"].gather(op).cast(pl.String)
    nothing = pl.lit(None, pl.String)
    product = pl.col("category").is_in(PRODUCTS) if counts else pl.lit(False)
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
