"""The FLOPs of each operator with the formula, and the operators without a count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.classes import SOURCE, described
from traceana.analyze.costs import Charges, charges, executions, on_flops, whole_sum
from traceana.analyze.flop_coverage import BY_MODEL
from traceana.analyze.manifest_pairing import with_names_of
from traceana.analyze.work import why_no_work, work
from traceana.flops.registry import FORMULAS
from traceana.result import Result, sums, with_share

if TYPE_CHECKING:
    from traceana.model import Manifest
    from traceana.trace import Trace

NO_OPERATOR: Final = "(no operator)"
LAYER_MANIFEST: Final = "(layer manifest)"
_SEVERAL: Final = "several parts, counted in their own rows"
_PART_OF: Final = {"fprop": "forward", "dgrad": "dgrad", "wgrad": "wgrad"}


def flops(trace: Trace, model: Manifest | None = None) -> Result:
    """Return one row per operator, part and formula, and one per operator without a count.

    Columns: ``operator``, ``part`` (forward, backward, dgrad, wgrad, bias_grad), ``kind``,
    ``calls``, ``flops`` (null: not counted), ``share`` of them, ``executed_flops`` (null: unknown),
    ``bytes`` (compulsory; null where a shape or type is unknown), ``time_ns`` of its work (null: in
    a row with other work), ``formula``, ``reason`` without a count. Time of several parts together
    has a row without a part. Counts from the layer manifest ``model`` have the operator
    ``(layer manifest)``. The rows' times add up to all work of the trace. Most FLOPs first, then
    most time.
    """
    trace = with_names_of(trace, model)
    activities = work(trace)
    if activities.is_empty():
        return Result(pl.DataFrame(schema=_SCHEMA), {}, (why_no_work(trace),))
    charged = charges(trace, model)
    rows = activities.with_columns(charged.coverage["op"], charged.coverage["reason"])
    frame = pl.concat(
        [_operators(trace, charged, rows), _instructions(trace, charged, rows), _of_model(charged)]
    )
    order = ("flops", "time_ns", "operator", "part", "kind", "formula", "reason")
    frame = with_share(frame, "flops").sort(
        order, descending=[name in ("flops", "time_ns") for name in order], nulls_last=True
    )
    return Result(
        frame.select(list(_SCHEMA)),
        sums(frame, "flops", "time_ns"),
        (*charged.notes, *on_flops(trace, charged)),
    )


_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "operator": pl.String,
    "part": pl.String,
    "kind": pl.String,
    "calls": pl.Int64,
    "flops": pl.Int64,
    "share": pl.Float64,
    "executed_flops": pl.Int64,
    "bytes": pl.Int64,
    "time_ns": pl.Int64,
    "formula": pl.String,
    "reason": pl.String,
}
_COLUMNS: Final = [name for name in _SCHEMA if name != "share"]
_ROW: Final = ["operator", "part", "kind", "formula"]


def _operators(trace: Trace, charged: Charges, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of operators, and of work without an operator."""
    names = trace.ops["name"].cast(pl.String)
    costs = charged.operators.with_columns(pl.col("part").cast(pl.String))
    counted = (
        costs.with_columns(names.gather(costs["op"]).alias("operator"))
        .group_by(_ROW)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("flops").sum(),
            whole_sum("executed_flops"),
            whole_sum("bytes"),
        )
        .with_columns(pl.lit(None, pl.String).alias("reason"))
    )
    time = (
        _timed(trace, costs, rows.filter(pl.col("instruction").is_null()))
        .join(costs.select("op", "part", "kind", "formula"), on=["op", "part"], how="left")
        .with_columns(pl.lit(names).gather(pl.col("op")).fill_null(NO_OPERATOR).alias("operator"))
        .group_by(*_ROW, "reason")
        .agg(pl.col("duration").sum().alias("time_ns"))
    )
    return counted.join(
        time, on=[*_ROW, "reason"], how="full", nulls_equal=True, coalesce=True
    ).select(_COLUMNS)


def _timed(trace: Trace, costs: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``op``, ``part``, ``reason``, ``duration`` of ``rows``, work without an instruction.

    A part is that of the operator's only cost, or follows from the class of the kernel.
    """
    several = costs.group_by("op").agg(
        pl.len().alias("several"), pl.col("part").first().alias("only")
    )
    once = costs.group_by("op", "part").len().filter(pl.col("len") == 1)
    of_class = described(rows.select(SOURCE), trace)
    gradient = of_class["direction"].replace_strict(_PART_OF, default=None, return_dtype=pl.String)
    bias = of_class["category"].is_in(["bias", "reduction"])
    choice = pl.when(pl.lit(bias)).then(pl.lit("bias_grad")).otherwise(pl.lit(gradient))
    part = (
        pl.when(pl.col("several") == 1)
        .then("only")
        .when(pl.col("len").is_not_null())
        .then("choice")
    )
    return (
        rows.select("op", "duration", "reason", choice.alias("choice"))
        .join(several, on="op", how="left", maintain_order="left")
        .join(once, left_on=["op", "choice"], right_on=["op", "part"], how="left")
        .select(
            "op",
            part.alias("part"),
            pl.when(part.is_null() & pl.col("several").is_not_null())
            .then(pl.lit(_SEVERAL))
            .otherwise("reason")
            .alias("reason"),
            "duration",
        )
    )


def _instructions(trace: Trace, charged: Charges, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a compiled program's instructions, by opcode and target."""
    runs = executions(rows.filter(pl.col("instruction").is_not_null()), "reason")
    known = charged.instructions.select("instruction", "flops", "formula")
    instructions = trace.instructions.select(
        pl.coalesce("target", pl.col("opcode").cast(pl.String)).alias("operator"),
        pl.col("opcode").cast(pl.String).alias("kind"),
    ).with_row_index("instruction")
    here = pl.col("reason").is_null() | (pl.col("reason") != BY_MODEL)
    return (
        runs.join(known, on="instruction", how="left")
        .join(instructions, on="instruction", how="left")
        .with_columns(pl.when(here).then(name).alias(name) for name in ("flops", "formula"))
        .group_by("operator", "kind", "formula", "reason")
        .agg(
            pl.col("count").sum().alias("calls"),
            pl.when(pl.col("flops").count() > 0)
            .then((pl.col("flops") * pl.col("count")).sum())
            .alias("flops"),
            pl.col("time_ns").sum(),
        )
        .with_columns(
            pl.lit(None, pl.String).alias("part"),
            pl.lit(None, pl.Int64).alias("executed_flops"),
            pl.lit(None, pl.Int64).alias("bytes"),
        )
        .select(_COLUMNS)
    )


def _of_model(charged: Charges) -> pl.DataFrame:
    """Return the rows counted by the layer manifest; their time is in the operators' rows."""
    return (
        charged.of_model.group_by(pl.col("part").cast(pl.String), "kind", "formula")
        .agg(
            pl.col("count").sum().alias("calls"),
            pl.col("flops").sum(),
            whole_sum("executed_flops"),
            whole_sum("bytes"),
        )
        .with_columns(
            pl.lit(LAYER_MANIFEST).alias("operator"),
            pl.lit(None, pl.Int64).alias("time_ns"),
            pl.lit(None, pl.String).alias("reason"),
        )
        .select(_COLUMNS)
    )


def formulas(counted: Result) -> Result:
    """Return one row per formula used in ``counted``, a result of ``analyze.flops``.

    Columns: ``formula``, its ``operators`` (comma-separated), ``calls``, ``flops`` and
    ``derivation``. Most FLOPs first.
    """
    frame = (
        counted.frame.filter(pl.col("formula").is_not_null())
        .with_columns(pl.col("formula").str.split(", "))
        .explode("formula")
        .group_by("formula")
        .agg(
            pl.col("operator").unique().sort().str.join(", ").alias("operators"),
            pl.col("calls").sum(),
            pl.col("flops").sum(),
        )
        .with_columns(
            pl.col("formula")
            .replace_strict(
                {name: " ".join(known.text.split()) for name, known in FORMULAS.items()},
                default=None,
                return_dtype=pl.String,
            )
            .alias("derivation")
        )
        .sort(["flops", "formula"], descending=[True, False])
    )
    return Result(frame, sums(frame, "flops"), counted.notes)
