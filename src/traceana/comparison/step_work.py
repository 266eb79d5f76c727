"""The work of a run summed by step, layer and class, and the keys of further groupings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from traceana.analyze import summaries
from traceana.analyze.classes import SOURCE, classified, described
from traceana.analyze.copies import copies
from traceana.analyze.layer_rows import PASSES, layer_keys, with_layer_keys
from traceana.analyze.work import work
from traceana.trace.schema import TABLES

if TYPE_CHECKING:
    from traceana.trace import Trace

_COPY: Final = ("copy", "host_memory")
_CLASS: Final = (
    *("name", "precision", "tensor_core", "library", "tile", "gemm_layout", "batched"),
    *("function", "epilogue"),
)

_FUNCTION: Final = "CompiledFunction"
"""AOTAutograd's function of a compiled graph, and (with ``Backward``) that of its gradient."""
_BEGINS: Final = ("Torch-Compiled Region", "## Call CompiledFxGraph")
"""The ranges of Dynamo and Inductor around compiled code."""
Kind = Literal["class", "algorithm", "kernel", "gemm", "transfer"]
KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name", "category", "part"),
    "gemm": ("gemm", "form", "precision", "library", "tile", "gemm_layout"),
    "transfer": ("direction", "host_memory"),
}
"""The key columns of each grouping; the first is never null."""
OTHER: Final = "(other work)"
"""The row of all work other than GEMMs, or other than copies."""
NO_TILE: Final = "(no tile)"
"""``gemm`` of kernels without a tile and a layout in their name."""
_STRIDED: Final = r"(?i)strided_?batched"
_TENSILE: Final = r"^Cijk_"
_TENSILE_POINTERS: Final = r"_G[BG](?:_|$)"


def cells(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the summed work of ``trace``; ``step`` has the step of each row of the work.

    Work without a step is left out.

    Columns: ``step``, ``layer``, ``role``; ``category``, ``part``, ``direction`` (forward,
    backward, optimizer), ``pass`` (the same, or dgrad or wgrad), ``named_direction`` (that of
    the class); ``compiled`` (a compiled function launched it); ``kind``, ``copy_kind``;
    ``copy`` and ``host_memory``, direction and host memory of copies by
    :func:`traceana.analyze.copies.copies`; of the class ``name``, ``precision``,
    ``tensor_core``, ``library``, ``tile``, ``gemm_layout``, ``batched``, ``function``,
    ``epilogue``; ``calls``, ``time_ns``, ``bytes`` (null where the size of a copy is
    unknown).
    """
    summed = _printed(trace) if trace.is_summary else _summed(trace, step)
    classes = described(summed.select(SOURCE), trace)
    gradient = classes["direction"].is_in(["dgrad", "wgrad"]) & classes["category"].is_in(
        ["conv", "gemm"]
    )
    rows = classified(summed, trace).with_columns(
        *(classes[column] for column in _CLASS),
        classes["direction"].alias("named_direction"),
        pl.when(gradient)
        .then(classes["direction"])
        .otherwise("direction")
        .cast(PASSES)
        .alias("pass"),
    )
    return with_layer_keys(
        rows.rename({"layer": "layer_row"}), layer_keys(trace.layers, "layer", None)
    ).select(
        *("step", "layer", "role", "category", "part", "direction", "pass", "named_direction"),
        "compiled",
        pl.col("kind", "copy_kind").cast(pl.String),
        *_COPY,
        *_CLASS,
        *("calls", "time_ns", "bytes"),
    )


def _summed(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return calls, time and bytes of the work with a ``step``."""
    size = pl.col("bytes")
    keys = (*SOURCE, "layer", "direction", "step", "compiled", *_COPY)
    return (
        _with_copies(trace, step)
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("duration").sum().alias("time_ns"),
            pl.when(size.is_not_null().all()).then(size.sum()),
        )
        .with_columns(pl.col("direction").cast(pl.String))
    )


def _printed(trace: Trace) -> pl.DataFrame:
    """Return the work of a summary as one step, without layers and directions."""
    rows = summaries.counted(trace).join(
        summaries.copies(trace)
        .select("table", "name", pl.col("direction").alias("copy"), "host_memory")
        .unique(),
        on=["table", "name"],
        how="left",
    )
    return summaries.added(rows, *SOURCE, *_COPY).with_columns(
        pl.lit(0, pl.UInt32).alias("step"),
        pl.lit(None, TABLES["activities"]["layer"]).alias("layer"),
        pl.lit(None, pl.String).alias("direction"),
        pl.lit(value=False).alias("compiled"),
    )


def _with_copies(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the work with a ``step``; copies have their direction and host memory."""
    each = work(trace).with_columns(step.alias("step"), compiled(trace)).with_row_index("at")
    asked = copies(trace).select(pl.col("direction").alias("copy"), "host_memory")
    asked = asked.hstack(each.filter(pl.col("kind") == "memcpy").select("at"))
    chosen = each.filter(pl.col("step").is_not_null())
    return chosen.join(asked, on="at", how="left", maintain_order="left")


def compiled(trace: Trace) -> pl.Series:
    """Return for each row of the work whether code of ``torch.compile`` launched it."""
    rows = work(trace, "op", "range")
    inside = _inside(trace.ops, "name", rows["op"]) | _inside(trace.ranges, "text", rows["range"])
    return inside.alias("compiled")


def _inside(table: pl.DataFrame, name: str, rows: pl.Series) -> pl.Series:
    """Return whether each of ``rows`` of ``table``, or a parent, is compiled code."""
    text = pl.col(name).cast(pl.String)
    marks = text.str.contains(_FUNCTION, literal=True)
    for begin in _BEGINS:
        marks |= text.str.starts_with(begin)
    found = table.select(marks.fill_null(False))[name].to_numpy()
    if not found.any():
        return pl.repeat(False, len(rows), dtype=pl.Boolean, eager=True)
    parent = table["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    while True:
        around = found | np.where(parent >= 0, found[parent], False)
        if (around == found).all():
            break
        found = around
    at = rows.cast(pl.Int64).fill_null(-1).to_numpy()
    return pl.Series(np.where(at >= 0, found[at], False))


def keyed(cells: pl.DataFrame, by: Kind) -> pl.DataFrame:
    """Return ``cells`` (:func:`cells`) with the columns :data:`KEYS`.

    ``algorithm`` and ``pass`` are those of convolutions. For GEMMs ``gemm`` is the tile and the
    layout of the operands in the kernel's name (``128x64_nn``), and ``form`` is that of
    :func:`form`. For copies ``direction`` and ``host_memory`` are those of ``transfers``.
    """
    if by == "algorithm":
        conv = pl.col("category") == "conv"
        return cells.with_columns(
            pl.when(conv).then("part").alias("algorithm"),
            pl.when(conv).then(pl.col("pass").cast(pl.String)).alias("pass"),
        )
    if by == "gemm":
        gemm = pl.col("category") == "gemm"
        name = pl.concat_str("tile", "gemm_layout", separator="_", ignore_nulls=True)
        named = pl.when(name == "").then(pl.lit(NO_TILE)).otherwise(name)
        return cells.with_columns(
            pl.when(gemm).then(named).otherwise(pl.lit(OTHER)).alias("gemm"),
            pl.when(gemm).then(form()).alias("form"),
            *(
                pl.when(gemm).then(column)
                for column in ("precision", "library", "tile", "gemm_layout")
            ),
        )
    if by == "transfer":
        return cells.with_columns(pl.col("copy").fill_null(OTHER).alias("direction"))
    return cells


def form() -> pl.Expr:
    """Return whether a GEMM is ``plain``, ``batched``, ``strided batched``, or unknown.

    ``plain or batched`` is a GEMM whose name and launch are ambiguous. ``strided batched`` follows
    from the kernel's name: Tensile's ``ProblemType.__str__`` marks only kernels with arrays of
    pointers (``_GB``) or groups (``_GG``). Kernels of other libraries named ``batched`` may also
    be strided.
    """
    name = pl.col("name")
    tensile = name.str.contains(_TENSILE) & ~name.str.contains(_TENSILE_POINTERS)
    strided = name.str.contains(_STRIDED) | tensile
    return (
        pl.when(pl.col("batched").is_null())
        .then(pl.lit("plain or batched"))
        .when(pl.col("batched") & strided)
        .then(pl.lit("strided batched"))
        .when("batched")
        .then(pl.lit("batched"))
        .otherwise(pl.lit("plain"))
    )
