"""The work of a run added up by step, layer and what it is: what every comparison is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, classified, described
from traceana.analyze.layers.located import PASSES
from traceana.analyze.layers.places import placed, places
from traceana.analyze.transfers.copies import copies
from traceana.analyze.work import work
from traceana.compare.compiled import compiled

if TYPE_CHECKING:
    from traceana.trace import Trace

_COPY: Final = ("copy", "host_memory")
_CLASS: Final = (
    *("name", "precision", "tensor_core", "library", "tile", "gemm_layout", "batched"),
    *("function", "epilogue"),
)


def cells(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the work of ``trace`` added up; ``step`` names the step of each row of the work.

    Work without a step is left out.

    Columns: ``step``, ``layer``, ``role``; ``category``, ``part``, ``direction`` (forward,
    backward, optimizer), ``pass`` (the same, or dgrad or wgrad), ``named_direction`` (what the
    class says of it); ``compiled`` (a compiled function launched it); ``kind``, ``copy_kind``;
    ``copy`` and ``host_memory``, of copies the direction and host memory as of
    :func:`traceana.analyze.transfers.copies.copies`; of the class ``name``, ``precision``,
    ``tensor_core``, ``library``, ``tile``, ``gemm_layout``, ``batched``, ``function``,
    ``epilogue``; ``calls``, ``time_ns``, ``bytes`` (null where the size of one of them is not
    known).
    """
    size = pl.col("bytes")
    keys = (*SOURCE, "layer", "direction", "step", "compiled", *_COPY)
    summed = (
        _with_copies(trace, step)
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            pl.when(size.is_not_null().all()).then(size.sum()),
        )
        .with_columns(pl.col("direction").cast(pl.String))
    )
    told = described(summed.select(SOURCE), trace)
    gradient = told["direction"].is_in(["dgrad", "wgrad"]) & told["category"].is_in(
        ["conv", "gemm"]
    )
    rows = classified(summed, trace).with_columns(
        *(told[column] for column in _CLASS),
        told["direction"].alias("named_direction"),
        pl.when(gradient).then(told["direction"]).otherwise("direction").cast(PASSES).alias("pass"),
    )
    return placed(rows.rename({"layer": "layer_row"}), places(trace.layers, "layer", None)).select(
        *("step", "layer", "role", "category", "part", "direction", "pass", "named_direction"),
        "compiled",
        pl.col("kind", "copy_kind").cast(pl.String),
        *_COPY,
        *_CLASS,
        *("calls", "time_ns", "bytes"),
    )


def _with_copies(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the work that has a ``step``, of copies with their direction and host memory."""
    each = work(trace).with_columns(step.alias("step"), compiled(trace)).with_row_index("at")
    asked = copies(trace).select(pl.col("direction").alias("copy"), "host_memory")
    asked = asked.hstack(each.filter(pl.col("kind") == "memcpy").select("at"))
    chosen = each.filter(pl.col("step").is_not_null())
    return chosen.join(asked, on="at", how="left", maintain_order="left")
