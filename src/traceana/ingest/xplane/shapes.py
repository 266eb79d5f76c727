"""Shapes of TensorFlow operators: ``(float[8,64,64,3];int32[3])`` to the JSON text of ``ops``."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import polars as pl

_TENSOR: Final = re.compile(r"([A-Za-z_]\w*)\[([\d,]*)\]", re.ASCII)


def with_shapes(ops: pl.DataFrame) -> pl.DataFrame:
    """Replace the column ``shape`` by ``input_shapes`` and ``input_types``."""
    distinct = ops["shape"].unique().drop_nulls()
    tensors = [_TENSOR.findall(text) for text in distinct.cast(pl.String).to_list()]
    table = pl.DataFrame(
        {
            "shape": distinct,
            "input_shapes": [
                _json([[int(size) for size in sizes.split(",") if size] for _, sizes in each])
                for each in tensors
            ],
            "input_types": [_json([kind for kind, _ in each]) for each in tensors],
        },
        schema_overrides={"input_shapes": pl.String, "input_types": pl.String},
    )
    return ops.join(table, on="shape", how="left", maintain_order="left").drop("shape")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
