"""What each layer takes and gives: from the layer manifest, else from the layer's own operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.pairing import paired
from traceana.flops.call import Call
from traceana.flops.model import UncountableError

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace

COLUMNS: Final = ("input_shape", "output_shape")

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer_row": pl.UInt32,
    "described_type": pl.String,
    "input_shape": pl.String,
    "output_shape": pl.String,
}


def shapes(trace: Trace, model: Manifest | None) -> pl.DataFrame:
    """Return ``layer_row``, ``described_type`` and :data:`COLUMNS`: JSON lists, batch first.

    The manifest's have the channels behind the batch. Without one the shape is that of the first
    input of the outermost forward operator, as the trace has it, and the output is not known.
    """
    partner = {} if model is None else paired(trace.layers, model)
    rows: dict[int, tuple[str | None, str | None, str | None]] = {
        row: (None, text, None) for row, text in _of_operators(trace).items()
    }
    for row, layer in partner.items():
        first = json.dumps(layer.inputs[0]) if layer.inputs else None
        rows[row] = (layer.type, first, json.dumps(layer.outputs[0]) if layer.outputs else None)
    return pl.DataFrame([(row, *told) for row, told in rows.items()], schema=_SCHEMA, orient="row")


def _of_operators(trace: Trace) -> dict[int, str]:
    named = trace.ops.filter(
        pl.col("layer").is_not_null()
        & pl.col("input_shapes").is_not_null()
        & (pl.col("direction") == "forward").fill_null(True)
    )
    first = (
        named.sort("depth", "start", maintain_order=True)
        .unique("layer", keep="first", maintain_order=True)
        .select("layer", "input_shapes")
    )
    found: dict[int, str] = {}
    for row, text in first.iter_rows():
        try:
            shape = Call.decode("", text).shape(0)
        except UncountableError:
            continue
        found[row] = json.dumps(shape)
    return found
