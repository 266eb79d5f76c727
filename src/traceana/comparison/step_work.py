"""The work of a run added up by step, layer and what it is: what every comparison is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from traceana.analyze.classes import SOURCE, classified, described
from traceana.analyze.copies import copies
from traceana.analyze.layer_rows import PASSES, placed, places
from traceana.analyze.work import work

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
"""What Dynamo and Inductor draw around compiled code."""
Kind = Literal["class", "algorithm", "kernel", "gemm", "transfer"]
KEYS: Final[dict[Kind, tuple[str, ...]]] = {
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name", "category", "part"),
    "gemm": ("gemm", "form", "precision", "library", "tile", "gemm_layout"),
    "transfer": ("direction", "host_memory"),
}
"""The columns that tell the rows apart; the first is never null."""
OTHER: Final = "(other work)"
"""By product or by copy, the row of the work that is none."""
NO_TILE: Final = "(no tile)"
"""``gemm`` of products whose name tells neither a tile nor a layout."""
_STRIDED: Final = r"(?i)strided_?batched"
_TENSILE: Final = r"^Cijk_"
_TENSILE_POINTERS: Final = r"_G[BG](?:_|$)"


def cells(trace: Trace, step: pl.Series) -> pl.DataFrame:
    """Return the work of ``trace`` added up; ``step`` names the step of each row of the work.

    Work without a step is left out.

    Columns: ``step``, ``layer``, ``role``; ``category``, ``part``, ``direction`` (forward,
    backward, optimizer), ``pass`` (the same, or dgrad or wgrad), ``named_direction`` (what the
    class says of it); ``compiled`` (a compiled function launched it); ``kind``, ``copy_kind``;
    ``copy`` and ``host_memory``, of copies the direction and host memory as of
    :func:`traceana.analyze.copies.copies`; of the class ``name``, ``precision``,
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


def compiled(trace: Trace) -> pl.Series:
    """Return for each row of the work whether ``torch.compile`` made the code that launched it."""
    rows = work(trace).select("op", "range")
    inside = _inside(trace.ops, "name", rows["op"]) | _inside(trace.ranges, "text", rows["range"])
    return inside.alias("compiled")


def _inside(table: pl.DataFrame, name: str, rows: pl.Series) -> pl.Series:
    """Return whether each of ``rows`` of ``table``, or one around it, is of compiled code."""
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
    """Return ``cells`` (:func:`traceana.comparison.step_work.cells`) with the columns :data:`KEYS`.

    ``algorithm`` and ``pass`` are those of convolutions. Of matrix products ``gemm`` is the tile
    and the layout of the operands as the name prints them (``128x64_nn``), and ``form`` is as
    :func:`form` tells; of copies ``direction`` and ``host_memory`` are as ``transfers`` has them.
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
    """Return whether a product is ``plain``, ``batched``, ``strided batched`` or either.

    ``plain or batched`` is where neither the name nor the launch tells. A batched product is
    ``strided batched`` where the name says so. Source of the rule for Tensile's kernels:
    ``ProblemType.__str__`` of Tensile marks what takes arrays of pointers (``_GB``) or groups
    (``_GG``), and nothing else. Others called ``batched`` may be strided nonetheless.
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
