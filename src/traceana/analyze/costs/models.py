"""Costs of layers that a model's manifest tells and the trace does not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.pairing import Pairing, paired
from traceana.analyze.work import work
from traceana.enrich.layers.from_scopes import replica_of
from traceana.enrich.layers.places import SEPARATOR
from traceana.flops.cost import LARGEST, Refusal
from traceana.flops.layer_formulas import Layer as Shapes
from traceana.flops.layer_formulas import layer_costs
from traceana.flops.operators import PART
from traceana.model.manifest import Layer, Manifest

if TYPE_CHECKING:
    from traceana.trace import Trace

_DOTTED: Final = re.compile(r"[./]+")
_MOST_LISTED: Final = 8

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer": pl.UInt32,
    "part": PART,
    "kind": pl.String,
    "formula": pl.String,
    "count": pl.Int64,
    "flops": pl.Int64,
    "executed_flops": pl.Int64,
    "bytes": pl.Int64,
}


def model_charges(
    trace: Trace, model: Manifest, told: pl.DataFrame, partial: set[int]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the costs of layers that ``told`` has none of, and notes.

    Of ``partial`` layers ``told`` counts a part of the work: the manifest's count stands for them
    where it is the larger one.

    A layer runs its forward pass once in each step, and in each replica of ``tf.distribute``, in
    which it has selected work of that direction, and its backward pass likewise; ``model``
    describes one replica. The first layer with parameters is taken to have no gradient of its
    input.
    """
    seen = _seen(trace)
    found = paired(trace, model)
    partner = found.layer_of
    counts = told.drop_nulls("layer").group_by("layer").agg(pl.col("flops").sum())
    known = dict(counts.filter(pl.col("flops") > 0).iter_rows())
    rows: list[tuple[object, ...]] = []
    wanted = {
        row: layer
        for row, layer in partner.items()
        if row in seen and (row not in known or row in partial)
    }
    if wanted and not trace.steps.height:
        return pl.DataFrame(schema=_SCHEMA), (
            "the layer manifest is not used: without steps it is not known how often a layer ran",
        )
    first = min((layer.position for layer in model.layers if layer.parameters), default=None)
    for row, layer in wanted.items():
        directions = seen[row]
        costs = layer_costs(_shapes(layer, layer.position == first), backward=True)
        if isinstance(costs, Refusal):
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
    note = [f"the shapes of {layers} are from the layer manifest"] if used else []
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row"), (*note, *_missing(model, found))


def _missing(model: Manifest, found: Pairing) -> list[str]:
    """Return notes on the layers of ``model`` without a partner."""
    if found.another:
        return ["layer manifest not used: it describes another model than the trace"]
    around = model.around()
    layers = {layer.position for layer in found.layer_of.values()}
    wanted = [layer for layer in model.layers if layer.path not in around]
    left = [layer for layer in wanted if layer.position not in layers]
    names = [_DOTTED.sub(SEPARATOR, layer.path) for layer in left]
    unclear = [name for name in names if name in found.unclear]
    absent = [name for name in names if name not in found.unclear]
    total = len(wanted)
    notes = []
    if absent:
        notes.append(
            f"{len(absent)} of the {total} layers of the manifest are not in the trace: "
            f"{_some(absent)}"
        )
    if unclear:
        notes.append(
            f"{len(unclear)} of the {total} layers of the manifest are not paired, their names in "
            f"the trace are ambiguous: {_some(unclear)}"
        )
    return notes


def _some(names: list[str]) -> str:
    more = [] if len(names) <= _MOST_LISTED else [f"{len(names) - _MOST_LISTED} more"]
    return ", ".join([*names[:_MOST_LISTED], *more])


def _seen(trace: Trace) -> dict[int, dict[str, int]]:
    """Return by layer and direction how often it has selected work: in how many steps and replicas.

    Work of no direction counts as forward. A step is one of one process.
    """
    rows = work(trace)
    scope = pl.select(pl.coalesce(rows["scope"], trace.ops["scope"].gather(rows["op"]))).to_series()
    times = (
        rows.select("layer", "step", "direction", replica_of(scope).alias("replica"))
        .drop_nulls(["layer", "step"])
        .group_by("layer", pl.col("direction").cast(pl.String).fill_null("forward"))
        .agg(pl.struct("step", "replica").n_unique())
    )
    found: dict[int, dict[str, int]] = {}
    for row, direction, count in times.iter_rows():
        found.setdefault(row, {})[direction] = count
    return found


def _shapes(layer: Layer, first: bool) -> Shapes:
    images = next((shape for name, shape in layer.parameters.items() if len(shape) > 1), None)
    vectors = [shape for shape in layer.parameters.values() if len(shape) == 1]
    return Shapes(
        type=layer.type,
        input=layer.inputs[0] if layer.inputs else (),
        output=layer.outputs[0] if layer.outputs else (),
        weight=images or (vectors[0] if vectors else None),
        bias=images is not None and bool(vectors),
        groups=layer.groups or 1,
        window=layer.kernel,
        first=first,
    )
