"""GEMMs by M, N, K and layout: FLOP/s, bandwidth and intensity of their kernels alone."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.charges import charges
from traceana.analyze.manifest_layers import with_names_of
from traceana.analyze.rates import COLUMNS as COSTS
from traceana.analyze.rates import machine, rate_columns
from traceana.analyze.roofline import units
from traceana.flops.call import Call, Refusal, UncountableError
from traceana.flops.registry import cost
from traceana.result import Result, nothing, share_of, sums
from traceana.table import (
    COUNT,
    LONG,
    NUMBER,
    RATE,
    SHARE,
    TIME,
    Column,
    DataType,
    by_name,
    conformed,
    laid_out,
    per_second,
    whole_sum,
)
from traceana.timeline.work import any_work, why_no_work, work, work_ns
from traceana.trace.taxonomy import PRODUCTS
from traceana.trace.work import CLASS

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

_COST: Final = by_name(COSTS)
_EXTENTS: Final = ("batch", "m", "n", "k")
GEMM_KEYS: Final = (*_EXTENTS, "gemm_layout", "precision")
"""Columns that identify a row of :func:`gemms`."""
COLUMNS: Final = laid_out(
    (
        Column("m", NUMBER, "rows of the result, as the framework has it (row-major)"),
        Column("n", NUMBER, "columns of the result"),
        Column("k", NUMBER, "inner extent"),
        Column("batch", NUMBER, "products in one call"),
        CLASS["gemm_layout"],
        CLASS["precision"],
        Column("operators", LONG, "operators that compute it, separated by commas"),
        Column("calls", COUNT, "executions of these operators", additive=True),
        Column(
            "time_ns",
            TIME,
            "of their kernels that compute products: without copies, layout conversions and biases",
            additive=True,
        ),
        Column("share", SHARE, "of all work"),
        *(_COST[name] for name in ("flops", "flops_per_s", "of_peak", "over_peak", "bytes")),
        Column(
            "bytes_per_s",
            RATE,
            "compulsory bytes over the time: achieved, where no operand is read again",
            value=per_second("bytes", "time_ns"),
            title="bandwidth",
        ),
        *(_COST[name] for name in ("arithmetic_intensity", "bound", "of_attainable")),
    ),
    hidden="over_peak bytes",
    dropped="of_attainable flops operators share bound arithmetic_intensity precision batch calls",
    titles={"m": "M", "n": "N", "k": "K", "gemm_layout": "layout"},
)


def gemms(trace: Trace, model: Manifest | None = None) -> Result:
    """Return one row per extents, layout and precision of matrix products.

    The extents are from the operators' recorded shapes; layout and precision are from the
    operator's kernel with most time. The columns are :data:`COLUMNS`. Most time first.
    """
    if not any_work(trace):
        return nothing(COLUMNS, why_no_work(trace))
    trace = with_names_of(trace, model)
    costs = charges(trace, model)
    names = ("category", "gemm_layout", "precision", "tensor_core")
    ran = work(trace, *names, "duration").with_columns(costs.coverage["unit"])
    ran = ran.filter(pl.col("category").is_in(PRODUCTS)).with_columns(
        pl.col("category", "gemm_layout", "precision").cast(pl.String)
    )
    gemm_ns = int(ran.filter(category="gemm")["duration"].sum())
    of_unit = _with_extents(trace, ran.drop_nulls("unit"))
    kernels = ran.join(of_unit, on="unit").rename({"duration": "time_ns"})
    products = (
        kernels.sort("time_ns", descending=True, maintain_order=True)
        .group_by("unit", "operator", maintain_order=True)
        .agg(pl.col(GEMM_KEYS).first())
        .with_columns(pl.struct(GEMM_KEYS).rank("dense").alias("row"))
    )
    spent = kernels.join(products.select("unit", "row"), on="unit")
    charged = (
        units(trace, model)
        .charged.filter("product")
        .join(products.select("unit", "row", "operator"), on="unit")
    )
    counts = charged.group_by("row").agg(
        pl.col("unit").n_unique().cast(pl.Int64).alias("calls"),
        pl.col("operator").unique().sort().str.join(", ").alias("operators"),
        pl.col("flops").sum(),
        whole_sum("executed_flops"),
        whole_sum("bytes"),
    )
    frame = (
        spent.group_by("row")
        .agg(pl.col("time_ns").sum(), pl.col("time_ns").sum().alias("_over"))
        .join(products.select("row", *GEMM_KEYS).unique(), on="row")
        .join(counts, on="row")
    )
    peaks, on_peak = machine(trace)
    rated = rate_columns(frame, spent, ["row"], peaks, charged)
    rated = rated.with_columns(
        per_second("bytes", "time_ns").alias("bytes_per_s"), share_of(work_ns(trace))
    ).sort("time_ns", "row", descending=[True, False])
    rated = conformed(rated, COLUMNS)
    notes = [on_peak]
    without = gemm_ns - int(spent.filter(category="gemm")["time_ns"].sum())
    if without > 0:
        part = f"{100 * without / gemm_ns:.1f} %"
        notes.append(f"GEMMs without M, N and K: {part} of the time of GEMM kernels")
    if rated.is_empty():
        notes = ["no matrix products with recorded shapes"]
    return Result(rated, sums(rated, "calls", "time_ns", "flops"), tuple(notes), COLUMNS)


def _with_extents(trace: Trace, ran: pl.DataFrame) -> pl.DataFrame:
    """Return ``unit``, ``operator`` and extents of the operators of ``ran`` with one product."""
    ops = trace.tables.ops
    # Units beyond are instructions of compiled programs.
    rows = ran["unit"].unique().sort()
    rows = rows.filter(rows < ops.height)
    texts = ("name", "input_shapes", "input_types", "inputs")
    calls = ops.select(texts)[rows].with_columns(pl.col("name").cast(pl.String))
    extents = [_extents_of(*call) for call in calls.iter_rows()]
    schema: dict[str, DataType] = {"unit": ran.schema["unit"], "operator": pl.String}
    return pl.DataFrame(
        [
            (unit, name, *product)
            for unit, name, product in zip(rows, calls["name"], extents, strict=True)
            if product is not None
        ],
        schema=schema | dict.fromkeys(_EXTENTS, pl.Int64),
        orient="row",
    )


@cache
def _extents_of(
    name: str, shapes: str | None, types: str | None, inputs: str | None
) -> tuple[int, int, int, int] | None:
    """Return batch, m, n and k of a call that is one matrix product."""
    try:
        costs = cost(Call.decode(name, shapes, types, inputs))
    except UncountableError:
        return None
    if isinstance(costs, Refusal):
        return None
    products = [part.product for part in costs if part.product is not None]
    return products[0] if len(products) == 1 else None
