"""The cost of every operator of a trace, each counted once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceana.enrich.operators import Left
from traceana.flops.call import Call
from traceana.flops.coverage import Tree
from traceana.flops.hints import OUTPUT, WANTED, with_hints
from traceana.flops.model import Cost, Refusal, Shape, UncountableError
from traceana.flops.parts import PART, with_parts
from traceana.flops.passive import passive
from traceana.flops.registry import NO_FORMULA, cost, operators

COSTS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "op": pl.UInt32,  # row of `ops`
    "part": PART,
    "kind": pl.String,  # "conv2d", "linear", "batch_norm"
    "flops": pl.Int64,  # a multiply-accumulate is two
    "bytes": pl.Int64,  # compulsory; null where a type or a shape is not known
    "formula": pl.String,
    "skipped": pl.Int64,  # of `flops`, what a causal mask leaves out; null where not known
}
GAPS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "op": pl.UInt32,  # row of `ops`
    "reason": pl.String,
    "whole": pl.Boolean,  # a refused call: it stands for all that is inside it
    "partly": pl.Boolean,  # operators inside are counted, work of its own is not
    "time_ns": pl.Int64,  # on the host, without that of the operators counted inside
}
UNCOUNTED: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "name": pl.String,
    "reason": pl.String,
    "count": pl.UInt32,
    "time_ns": pl.Int64,  # on the host, without that of the operators counted inside
    "partly": pl.Boolean,  # operators inside are counted, work of its own is not
}

_ATEN: Final = re.compile(r"^(?:torch\.nn\.functional\.|torch\.|Tensor\.|(?=[a-z_]\w*$))")
"""How PyProf and old versions of emit_nvtx begin the names of ATen's operators."""

_KEY: Final = ("name", "input_shapes", "input_types", "inputs", OUTPUT, WANTED)


@dataclass(frozen=True, slots=True)
class OperatorCosts:
    """What the operators of a trace compute, and which of them are left out.

    ``costs`` has the columns of :data:`COSTS`, one row an operator and part; operators inside of
    a counted one have none. ``gaps`` has those of :data:`GAPS`, one row an operator that is left
    out, and ``uncounted`` those of :data:`UNCOUNTED`, one row a name and reason of them, the
    longest first.
    """

    costs: pl.DataFrame
    gaps: pl.DataFrame
    uncounted: pl.DataFrame


def operator_costs(ops: pl.DataFrame) -> OperatorCosts:
    """Return the costs of ``ops``, the whole table of a trace with its nesting.

    Formulas run on the distinct calls only. Of nested operators that have a cost the outermost
    counts; inside a node of the backward pass, the part is the node's.
    """
    named = ops.with_columns(pl.col("name").cast(pl.String)).with_row_index("op")
    rows = with_hints(named.drop("scope", "module", strict=False))
    distinct, priced = _distinct_costs(rows)
    rows = rows.join(distinct, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    tree = Tree.of(ops)
    left = Left.of(ops)
    has_cost = rows["_parts"].fill_null(0).to_numpy() > 0
    has_cost &= ~(left.innermost | left.around)
    # A call that asked for no gradient at all costs nothing, and is no gap either.
    known = rows["_reason"].is_null().to_numpy()
    counted = tree.outermost(has_cost)
    costs = (
        rows.select("op", "_call")
        .filter(pl.Series(counted))
        .join(priced, on="_call", maintain_order="left")
        .select(pl.col(name).cast(dtype) for name, dtype in COSTS.items())
    )
    # The products of the composite implementation compute the square, and mask it afterwards.
    math = (rows["name"] == "aten::_scaled_dot_product_attention_math").to_numpy()
    square = pl.Series(math | tree.holding(math)).gather(costs["op"])
    costs = costs.with_columns(pl.when(square).then(0).otherwise("skipped").alias("skipped"))
    gaps = _gaps(rows, tree, counted, known & ~has_cost)
    return OperatorCosts(with_parts(costs, rows, tree), gaps, _uncounted(gaps, rows["name"]))


def _distinct_costs(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return distinct calls (``_call``, ``_parts``, ``_reason``), and the costs by ``_call``."""
    calls = rows.select(_KEY).unique(maintain_order=True).with_row_index("_call")
    readers = operators()
    parts: list[int] = []
    reasons: list[str | None] = []
    costs: list[tuple[int, str, str, int, int | None, str, int | None]] = []
    for number, recorded, *told in calls.iter_rows():
        name = recorded if recorded in readers else _ATEN.sub("aten::", recorded, count=1)
        if name not in readers:
            parts.append(0)
            reasons.append(NO_FORMULA)
            continue
        result = _price(name, *told)
        if isinstance(result, Refusal):
            parts.append(0)
            reasons.append(result.reason)
            continue
        parts.append(len(result))
        reasons.append(None)
        costs += (
            (number, one.part, one.kind, one.flops, one.bytes, one.formula, one.skipped)
            for one in result
        )
    schema = {"_call": pl.UInt32, **{name: COSTS[name] for name in COSTS if name != "op"}}
    return (
        calls.with_columns(
            pl.Series("_parts", parts, dtype=pl.Int32),
            pl.Series("_reason", reasons, dtype=pl.String),
        ),
        pl.DataFrame(costs, schema=schema, orient="row"),
    )


def _price(
    name: str,
    shapes: str | None,
    types: str | None,
    inputs: str | None,
    output: str | None,
    wanted: int | None,
) -> tuple[Cost, ...] | Refusal:
    try:
        call = Call.decode(
            name,
            shapes,
            types,
            inputs,
            output=_output(output),
            wanted=None if wanted is None else (bool(wanted & 1), bool(wanted & 2)),
        )
    except UncountableError as error:
        return Refusal(str(error))
    return cost(call)


def _output(text: str | None) -> Shape | None:
    return None if text is None else Call.decode("", text).shape(0)


def _gaps(
    rows: pl.DataFrame,
    tree: Tree,
    counted: np.ndarray[tuple[int], np.dtype[np.bool_]],
    settled: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> pl.DataFrame:
    """List operators that neither count nor lie inside one that does, and are not passive.

    One that has a formula but could not be counted is listed unless operators inside it are
    counted, and stands for all that is inside it. One without a formula counts by what is inside
    it; if there is anything, it is listed as partly counted, with its own time.
    """
    names = rows.select(pl.col("name").unique()).with_columns(
        passive(pl.col("name")).alias("_idle")
    )
    idle = rows.select("name").join(names, on="name", how="left", maintain_order="left")["_idle"]
    active = ~idle.to_numpy() & ~settled & ~counted & ~tree.inside(counted)
    without_formula = active & (rows["_reason"] == NO_FORMULA).fill_null(False).to_numpy()
    refused = tree.outermost(active & ~without_formula & ~tree.holding(counted))
    without_formula &= ~tree.inside(refused)
    partly = without_formula & tree.holding(counted | refused | without_formula)
    duration = rows["duration"].cast(pl.Int64).fill_null(0).to_numpy()
    time = np.where(partly, tree.own_time(duration), duration)
    return (
        rows.select("op", pl.col("_reason").alias("reason"))
        .with_columns(
            pl.Series("whole", refused), pl.Series("partly", partly), pl.Series("time_ns", time)
        )
        .filter(pl.Series(refused | without_formula))
        .select(pl.col(name).cast(dtype) for name, dtype in GAPS.items())
    )


def _uncounted(gaps: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    return (
        gaps.with_columns(names.gather(gaps["op"]).alias("name"))
        .group_by("name", "reason", "partly")
        .agg(pl.len().alias("count"), pl.col("time_ns").sum())
        .sort("time_ns", "name", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in UNCOUNTED.items())
    )
