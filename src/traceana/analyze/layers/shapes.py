"""What each layer takes and gives: from the layer manifest, else from the layer's own operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.costs.pairing import paired
from traceana.analyze.layers.operands import operands

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

COLUMNS: Final = ("input_shape", "output_shape")

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "layer_row": pl.UInt32,
    "described_type": pl.String,
    "described_position": pl.Int64,
    "input_shape": pl.String,
    "output_shape": pl.String,
}


def shapes(trace: Trace, model: Manifest | None) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return what is told of each ``layer_row``, and notes.

    That is its type and its position in the manifest, and :data:`COLUMNS`: JSON lists, batch first.

    The manifest's have the channels behind the batch. Without one they are those of the layer's
    first operator (:func:`traceana.analyze.layers.operands.operands`), of PyTorch's without its
    output. So they are of layers whose input has another number of elements than in the manifest.
    """
    partner = {} if model is None else paired(trace, model).layer_of
    seen = operands(trace)
    rows: dict[int, tuple[str | None, int | None, str | None, str | None]] = {
        row: (None, None, _json(one.input), _json(one.output)) for row, one in seen.items()
    }
    other: list[str] = []
    # The first operator of a module's functions need not take what the module takes.
    around = frozenset() if model is None else model.around()
    for row, layer in partner.items():
        first = layer.inputs[0] if layer.inputs else None
        taken = seen[row].input if row in seen and layer.path not in around else None
        if first is not None and taken is not None and prod(taken) != prod(first):
            other.append(layer.path)
            rows[row] = (layer.type, layer.position, *rows[row][2:])
            continue
        output = layer.outputs[0] if layer.outputs else None
        rows[row] = (layer.type, layer.position, _json(first), _json(output))
    notes = (_other(other),) if other else ()
    return pl.DataFrame(
        [(row, *told) for row, told in rows.items()], schema=_SCHEMA, orient="row"
    ), notes


def _json(shape: Sequence[int] | None) -> str | None:
    return None if shape is None else json.dumps(shape)


def _other(paths: list[str]) -> str:
    return (
        f"the layer manifest is of another batch or model: {len(paths)} of its layers have inputs "
        f"of other sizes in the trace ({paths[0]} ...)"
    )
