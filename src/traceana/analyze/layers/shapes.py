"""What each layer takes and gives: from the layer manifest, else from the layer's own operator."""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.pairing import paired
from traceana.flops.arity import MOST_INPUTS
from traceana.flops.call import Call
from traceana.flops.model import Shape, UncountableError

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace

COLUMNS: Final = ("input_shape", "output_shape")

_NO_TENSOR: Final = r"^\[\s*(\]|\[\s*\])"
"""Of recorded shapes: an empty list, or a scalar in front."""

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer_row": pl.UInt32,
    "described_type": pl.String,
    "input_shape": pl.String,
    "output_shape": pl.String,
}


def shapes(trace: Trace, model: Manifest | None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return ``layer_row``, ``described_type`` and :data:`COLUMNS`: JSON lists, batch first; notes.

    The manifest's have the channels behind the batch. Without one the shape is that of the first
    input of the outermost forward operator that has one, as the trace has it, and the output is not
    known. So it is of layers whose input has another number of elements than in the manifest.
    """
    partner = {} if model is None else paired(trace.layers, model)
    seen = _of_operators(trace)
    rows: dict[int, tuple[str | None, str | None, str | None]] = {
        row: (None, json.dumps(shape), None) for row, shape in seen.items()
    }
    other: list[str] = []
    for row, layer in partner.items():
        first = layer.inputs[0] if layer.inputs else None
        if first is not None and row in seen and prod(seen[row]) != prod(first):
            other.append(layer.path)
            rows[row] = (layer.type, json.dumps(seen[row]), None)
            continue
        output = json.dumps(layer.outputs[0]) if layer.outputs else None
        rows[row] = (layer.type, None if first is None else json.dumps(first), output)
    notes = (_other(other),) if other else ()
    return pl.DataFrame(
        [(row, *told) for row, told in rows.items()], schema=_SCHEMA, orient="row"
    ), notes


def _other(paths: list[str]) -> str:
    return (
        f"the layer manifest is of another batch or model: {len(paths)} of its layers have inputs "
        f"of other sizes in the trace ({paths[0]} ...)"
    )


def _of_operators(trace: Trace) -> dict[int, Shape]:
    """Return by layer the shape of what its first operator takes.

    An operator without a tensor of one dimension or more in front, as the counting of batches in a
    normalization, is none; of an embedding the table stands before the input.
    """
    layers = trace.layers["role"].cast(pl.String) == "layer"
    named = trace.ops.filter(
        layers.gather(trace.ops["layer"]).fill_null(False)
        & ~pl.col("input_shapes").str.contains(_NO_TENSOR)
        & (pl.col("direction") == "forward").fill_null(True)
    )
    first = (
        named.sort("depth", "start", maintain_order=True)
        .unique("layer", keep="first", maintain_order=True)
        .select("layer", pl.col("name").cast(pl.String), "input_shapes")
    )
    found: dict[int, Shape] = {}
    for row, name, text in first.iter_rows():
        try:
            call = Call.decode(name, text)
            # TorchScript records more than the operator's own inputs, in front of them.
            beyond = max(len(call.shapes) - MOST_INPUTS.get(name, len(call.shapes)), 0)
            found[row] = call.shape(beyond + (name == "aten::embedding"))
        except UncountableError:
            continue
    return found
