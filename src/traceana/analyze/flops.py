"""The FLOPs of each operator, with the formula, and by input shapes; operators without a count.

Time, FLOP/s and percent of peak by operator and input shapes; kernels by input shapes. A row
answers which of forty GEMMs is the slow one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.charges import (
    PART_OF,
    Charges,
    charges,
    executions,
    on_flops,
    unit_of_instruction,
)
from traceana.analyze.coverage import BY_MODEL, PARTLY
from traceana.analyze.manifest_layers import with_names_of
from traceana.analyze.rates import COLUMNS as COSTS
from traceana.analyze.rates import machine, peaks_by, rate_columns, rates_of_peak
from traceana.analyze.roofline import Units, units
from traceana.flops.registry import FORMULAS
from traceana.result import Result, nothing, share_of, sums, with_share
from traceana.table import (
    COUNT,
    FLOPS,
    KERNEL,
    LONG,
    OF_FLOPS,
    ONE_CALL,
    PART,
    SHARE,
    TEXT,
    TIME,
    Column,
    by_name,
    conformed,
    laid_out,
    whole_sum,
)
from traceana.timeline.work import any_work, kernels_of, processor, why_no_work, work, work_ns

if TYPE_CHECKING:
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

NO_OPERATOR: Final = "(no operator)"
LAYER_MANIFEST: Final = "(layer manifest)"
_SEVERAL: Final = "FLOPs counted by pass, time not split"

_COST: Final = by_name(COSTS)
COLUMNS: Final = laid_out(
    (
        Column(
            "operator",
            LONG,
            "its name; of a compiled program the opcode or the target of the call; `(layer "
            "manifest)` for what the manifest counts, whose time is in the operators' rows; `(no "
            "operator)`",
        ),
        Column(
            "part",
            PART,
            "`forward`, `backward`, `dgrad`, `wgrad`, `bias_grad`, `optimizer`; null for time that "
            "is of several parts together",
        ),
        Column("kind", TEXT, "`conv2d`, `linear`, `batch_norm` …"),
        Column("calls", COUNT, "how often it ran", additive=True),
        Column(
            "flops",
            FLOPS,
            "a multiply-accumulate is two; null: not counted",
            scale=OF_FLOPS,
            additive=True,
        ),
        Column("share", SHARE, "of all FLOPs"),
        _COST["executed_flops"],
        _COST["bytes"],
        Column(
            "time_ns",
            TIME,
            "of the work launched for it; null where that is in a row together with other work",
            additive=True,
        ),
        *(_COST[name] for name in ("flops_per_s", "of_peak", "over_peak")),
        Column("formula", TEXT, "ids of the formulas (`--explain` derives them)"),
        Column("reason", LONG, "reason without a count"),
    ),
    hidden="over_peak",
    dropped="executed_flops bytes kind formula bar calls share reason",
    bars="share",
    titles={"part": "pass", "share": "of FLOPs"},
)
FORMULA_COLUMNS: Final = (
    Column("formula", TEXT, "id of the formula"),
    Column("operators", LONG, "its operators, separated by commas"),
    Column("calls", COUNT, "how often it was used"),
    Column("flops", FLOPS, "what it counted", scale=OF_FLOPS),
    Column("derivation", LONG, "how it is derived"),
)
SHAPE_COLUMNS: Final = laid_out(
    (
        Column("operator", LONG, "operator or instruction"),
        Column(
            "part",
            PART,
            "`dgrad` and `wgrad` where their kernels are known, else `forward` or `backward`",
        ),
        Column(
            "shapes",
            LONG,
            "of the inputs: `[32,256,14,14] [1024,256,1,1]`, without the scalars behind the last "
            "tensor; null where not recorded",
        ),
        Column("types", TEXT, "of the inputs, the different ones; null where not recorded"),
        Column("calls", COUNT, "executions of the operator", additive=True),
        Column(
            "time_ns",
            TIME,
            "of all its work, layout conversions and copies included",
            additive=True,
        ),
        Column("share", SHARE, "of all work"),
        Column("mean_ns", TIME, "mean per execution, rounded down", scale=ONE_CALL),
        *COSTS,
    ),
    hidden="executed_flops over_peak bytes",
    dropped="types of_attainable arithmetic_intensity share flops bound mean_ns calls",
    titles={"part": "pass"},
)
KERNEL_COLUMNS: Final = laid_out(
    (
        Column("name", KERNEL, "the name, whole"),
        Column(
            "operator",
            LONG,
            "innermost operator with recorded shapes around the launch, else the innermost; null "
            "without one",
        ),
        Column("shapes", LONG, "of its inputs, as of `flops --by shape`"),
        Column("calls", COUNT, "how often it ran", additive=True),
        Column("time_ns", TIME, "summed durations", additive=True),
        Column("share", SHARE, "of the GPU time, copies and memsets included"),
        Column("mean_ns", TIME, "mean call, rounded down", scale=ONE_CALL),
        Column("min_ns", TIME, "shortest call", scale=ONE_CALL),
        Column("max_ns", TIME, "longest call", scale=ONE_CALL),
    ),
    dropped="max_ns min_ns share operator",
)


def flops(trace: Trace, model: Manifest | None = None) -> Result:
    """Return one row per operator, part and formula, and one per operator without a count.

    The columns are :data:`COLUMNS`. Counts from the layer manifest ``model`` have the operator
    ``(layer manifest)``. The rows' times add up to all work of the trace. Most FLOPs first, then
    most time.
    """
    trace = with_names_of(trace, model)
    activities = work(
        *(trace, "instruction", "layer", "direction", "name_id", "duration"),
        *("category", "kernel_direction"),
    )
    if activities.is_empty():
        return nothing(COLUMNS, why_no_work(trace))
    charged = charges(trace, model)
    rows = activities.with_columns(charged.coverage["op"], charged.coverage["reason"])
    names = trace.tables.ops["name"].cast(pl.String)
    instructions = trace.tables.instructions.select(
        pl.coalesce("target", pl.col("opcode").cast(pl.String))
    ).to_series()
    # An update has the operators of a forward pass: its layer's role is its pass, as in layers.
    role = trace.tables.layers["role"].cast(pl.String).gather(charged.frame["layer"])
    of_instruction = pl.col("instruction").is_not_null()
    costs = charged.frame.with_columns(
        pl.coalesce(
            names.gather(charged.frame["op"]),
            instructions.gather(charged.frame["instruction"]),
            pl.lit(LAYER_MANIFEST),
        ).alias("operator"),
        pl.when(~of_instruction)
        .then(
            pl.when(pl.lit(role == "optimizer") & pl.col("op").is_not_null())
            .then(pl.lit("optimizer"))
            .otherwise(pl.col("part").cast(pl.String))
        )
        .alias("part"),
        pl.when(of_instruction & pl.col("partial")).then(pl.lit(PARTLY)).alias("reason"),
    )
    keys = [*OPERATOR_KEYS]
    counted = costs.group_by(keys).agg(
        pl.col("count").sum().alias("calls"),
        pl.col("flops").sum(),
        whole_sum("executed_flops"),
        whole_sum("bytes"),
    )
    time = (
        _timed(costs.drop_nulls("op"), rows.filter(pl.col("instruction").is_null()))
        .join(costs.select("op", "part", "kind", "formula"), on=["op", "part"], how="left")
        .with_columns(pl.lit(names).gather(pl.col("op")).fill_null(NO_OPERATOR).alias("operator"))
        .group_by(keys)
        .agg(pl.lit(None, pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
    )
    time = pl.concat([time, _of_instructions(trace, charged, rows).select(time.columns)])
    # Work without a count has its calls with its time.
    frame = counted.join(
        time, on=keys, how="full", nulls_equal=True, coalesce=True, suffix="_uncounted"
    ).with_columns(pl.coalesce("calls", "calls_uncounted").alias("calls"))
    frame = with_share(frame, "flops")
    # Not every trace has the gradient that a kernel computes.
    counted, spent = by_operator(trace, units(trace, model))
    machine_peaks = machine(trace)[0]
    for unit, peak in ((["operator", "part"], "_of_part"), (["operator"], "_of_all")):
        of_unit = peaks_by(spent, unit, machine_peaks, counted)
        of_unit = of_unit.select(*unit, pl.col("_peak").alias(peak))
        frame = frame.join(of_unit, on=unit, how="left", nulls_equal=True)
    # Null rates where the time is that of other work too, or the precision's peak is not known.
    frame = frame.with_columns(pl.when(pl.col("reason").is_null()).then("time_ns").alias("_over"))
    frame = frame.with_columns(rates_of_peak(pl.coalesce("_of_part", "_of_all")))
    order = ("flops", "time_ns", "operator", "part", "kind", "formula", "reason")
    frame = frame.sort(
        order, descending=[name in ("flops", "time_ns") for name in order], nulls_last=True
    )
    return Result(
        conformed(frame, COLUMNS),
        sums(frame, "flops", "time_ns"),
        (*charged.notes, *on_flops(trace, charged)),
        COLUMNS,
    )


_ROW: Final = ["operator", "part", "kind", "formula"]
OPERATOR_KEYS: Final = (*_ROW, "reason")
"""Columns that identify a row of :func:`flops`."""


def _timed(costs: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return ``op``, ``part``, ``reason``, ``duration`` of ``rows``, work without an instruction.

    ``part`` is from the operator's cost if it has only one, else from the class of the kernel.
    """
    several = costs.group_by("op").agg(
        pl.len().alias("several"), pl.col("part").first().alias("only")
    )
    once = costs.group_by("op", "part").len().filter(pl.col("len") == 1)
    direction = pl.col("kernel_direction").cast(pl.String)
    gradient = direction.replace_strict(PART_OF, default=None, return_dtype=pl.String)
    bias = pl.col("category").is_in(["bias", "reduction"])
    choice = pl.when(bias).then(pl.lit("bias_grad")).otherwise(gradient)
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


def _of_instructions(trace: Trace, charged: Charges, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the time and calls of a compiled program's instructions, by opcode and target."""
    runs = executions(rows.filter(pl.col("instruction").is_not_null()), "reason")
    formula_of = charged.frame.select("instruction", "formula").drop_nulls("instruction").unique()
    instructions = trace.tables.instructions.select(
        pl.coalesce("target", pl.col("opcode").cast(pl.String)).alias("operator"),
        pl.lit(None, pl.String).alias("part"),
        pl.col("opcode").cast(pl.String).alias("kind"),
    ).with_row_index("instruction")
    here = pl.col("reason").is_null() | (pl.col("reason") != BY_MODEL)
    return (
        runs.join(formula_of, on="instruction", how="left")
        .join(instructions, on="instruction", how="left")
        .with_columns(pl.when(here).then("formula").alias("formula"))
        .group_by(*_ROW, "reason")
        .agg(pl.col("count").sum().alias("calls"), pl.col("time_ns").sum())
    )


def formulas(counted: Result) -> Result:
    """Return one row per formula used in ``counted``, a result of ``analyze.flops``.

    The columns are :data:`FORMULA_COLUMNS`. Most FLOPs first.
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
                {name: " ".join(text.split()) for name, text in FORMULAS.items()},
                default=None,
                return_dtype=pl.String,
            )
            .alias("derivation")
        )
        .sort(["flops", "formula"], descending=[True, False])
    )
    totals = sums(frame, "flops")
    return Result(conformed(frame, FORMULA_COLUMNS), totals, counted.notes, FORMULA_COLUMNS)


SHAPE_KEYS: Final = ("operator", "part", "shapes", "types")
"""Columns that identify a row of :func:`shapes`."""
_UNIT: Final = ("unit", "gradient")


def shapes(trace: Trace, model: Manifest | None = None) -> Result:
    """Return one row per counted operator, part and input shapes.

    The columns are :data:`SHAPE_COLUMNS`. Layers that the manifest ``model`` counts have no row.
    Most time first.
    """
    if not any_work(trace):
        return nothing(SHAPE_COLUMNS, why_no_work(trace))
    computed = units(trace, model)
    counted, spent = by_operator(trace, computed)
    keys = list(SHAPE_KEYS)
    counts = counted.group_by(keys).agg(
        pl.col("calls").fill_null(1).sum(),
        pl.col("flops").sum(),
        whole_sum("executed_flops"),
        whole_sum("bytes"),
        pl.col("partial").any(),
    )
    time = spent.group_by(keys).agg(pl.col("time_ns").sum())
    frame = counts.join(time, on=keys, how="left", nulls_equal=True).with_columns(
        pl.when(~pl.col("partial")).then("time_ns").alias("_over"),
        (pl.col("time_ns") // pl.col("calls")).alias("mean_ns"),
    )
    peaks, on_peak = machine(trace)
    rated = rate_columns(frame, spent, keys, peaks, counted)
    rated = rated.with_columns(share_of(work_ns(trace))).sort(
        ["time_ns", *keys], descending=[True, *([False] * len(keys))], nulls_last=True
    )
    return Result(
        conformed(rated, SHAPE_COLUMNS),
        sums(rated, "calls", "time_ns", "flops"),
        (*computed.notes, on_peak),
        SHAPE_COLUMNS,
    )


def by_operator(trace: Trace, computed: Units) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the counts and the time of counted units, with their operator, part, shapes and
    types."""
    ops = trace.tables.ops.select(
        pl.col("name").cast(pl.String).alias("operator"),
        pl.col("direction").cast(pl.String),
        _texts(trace.tables.ops["input_shapes"]).alias("shapes"),
        _types(trace.tables.ops["input_types"]).alias("types"),
    )
    instructions = trace.tables.instructions.select(
        pl.coalesce("target", pl.col("opcode")).cast(pl.String).alias("operator"),
        pl.lit(None, pl.String).alias("direction"),
        _texts(trace.tables.instructions["input_shapes"]).alias("shapes"),
        _types(trace.tables.instructions["input_types"]).alias("types"),
    )
    described = pl.concat([ops, instructions]).with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("unit")
    )
    # Instructions run many times.
    ran = work(trace, "instruction", "layer", "direction", "name_id", "duration")
    runs = executions(ran.drop_nulls("instruction"))
    unit = unit_of_instruction(trace, runs["instruction"]).alias("unit")
    calls = runs.group_by(unit).agg(pl.col("count").sum().alias("calls"))
    counted = (
        _counted(computed.charged, computed.work)
        .join(described, on="unit")
        .join(calls, on="unit", how="left")
    )
    spent = _spent(computed.work, counted).join(described, on="unit")
    part = pl.coalesce("gradient", "direction").alias("part")
    return counted.with_columns(part), spent.with_columns(part)


def _texts(shapes: pl.Series) -> pl.Series:
    """Return JSON texts of shapes as "[32,256] [256,10]", without trailing scalars."""
    distinct = shapes.unique().drop_nulls()
    short = (
        distinct.str.replace_all(r"\s", "")
        .str.replace(r"(?:,\[\])+\]$", "]")
        .str.replace(r"^\[(.*)\]$", "$1")
        .str.replace_all("],[", "] [", literal=True)
    )
    return shapes.replace_strict(distinct, short, default=None, return_dtype=pl.String)


def _types(types: pl.Series) -> pl.Series:
    """Return JSON texts of types as "float float", the different ones once."""
    distinct = types.unique().drop_nulls()
    texts = [
        " ".join(dict.fromkeys(re.findall(r'"([^"]+)"', text))).replace(" Scalar", "")
        for text in distinct
    ]
    short = pl.Series(texts, dtype=pl.String)
    return types.replace_strict(distinct, short, default=None, return_dtype=pl.String)


def _counted(charged: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the counts by unit and gradient, or by unit alone if a gradient has no kernels of its
    own."""
    absent = charged.join(rows, on=_UNIT, how="anti", nulls_equal=True)["unit"]
    return (
        charged.with_columns((~pl.col("unit").is_in(absent.implode())).alias("exact"))
        .with_columns(pl.when("exact").then("gradient").alias("gradient"))
        .group_by(*_UNIT, "exact")
        .agg(
            pl.col("flops").sum(),
            whole_sum("executed_flops"),
            whole_sum("bytes"),
            pl.col("partial", "product").any(),
            pl.col("precision", "tensor_core").filter("product").first(),
        )
    )


def _spent(rows: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Return the work of the counted units, by the same gradients.

    Work of a unit without a gradient of its own (a layout conversion) belongs to the first one.
    """
    exact = counted.group_by("unit").agg(
        pl.col("exact").first(), pl.col("gradient").sort().first().alias("first")
    )
    gradients = counted.select(_UNIT).unique().with_columns(own=True)
    return (
        rows.join(exact, on="unit", how="inner")
        .join(gradients, on=_UNIT, how="left", nulls_equal=True)
        .select(
            "unit",
            pl.when(pl.col("exact") & pl.col("own"))
            .then("gradient")
            .otherwise("first")
            .alias("gradient"),
            "category",
            "precision",
            "tensor_core",
            pl.col("duration").alias("time_ns"),
        )
    )


def kernels_by_shape(trace: Trace) -> Result:
    """Return one row per kernel, operator that launched it, and its input shapes.

    The columns are :data:`KERNEL_COLUMNS`. Most time first.
    """
    rows = kernels_of(trace, "name_id", "op", "instruction", "duration")
    if rows.is_empty():
        return nothing(KERNEL_COLUMNS, why_no_work(trace))
    sums_of = rows.group_by("name_id", "op", "instruction").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("duration").sum().alias("time_ns"),
        pl.col("duration").min().alias("min_ns"),
        pl.col("duration").max().alias("max_ns"),
    )
    # The innermost operator with recorded shapes around each, else itself.
    shaped = trace.tables.ops["input_shapes"].is_not_null()
    at = above = sums_of["op"]
    for _ in range(_DEEPEST):
        missing = ~shaped.gather(above).fill_null(value=True)
        if not missing.any():
            break
        above = trace.tables.ops["parent"].gather(above).zip_with(missing, above)
        at = above.zip_with(missing & shaped.gather(above).fill_null(value=False), at)
    instructions = trace.tables.instructions
    frame = (
        sums_of.with_columns(
            trace.tables.names["name"].gather(sums_of["name_id"]).alias("name"),
            pl.coalesce(
                trace.tables.ops["name"].cast(pl.String).gather(at),
                instructions["opcode"].cast(pl.String).gather(sums_of["instruction"]),
            ).alias("operator"),
            pl.coalesce(
                _texts(trace.tables.ops["input_shapes"].gather(at)),
                _texts(instructions["input_shapes"].gather(sums_of["instruction"])),
            ).alias("shapes"),
        )
        .group_by("name", "operator", "shapes")
        .agg(pl.col("calls", "time_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max())
        .with_columns((pl.col("time_ns") // pl.col("calls")).alias("mean_ns"))
    )
    keys = ["name", "operator", "shapes"]
    frame = frame.with_columns(share_of(work_ns(trace))).sort(
        ["time_ns", *keys], descending=[True, False, False, False], nulls_last=True
    )
    unshaped = int(frame.filter(pl.col("shapes").is_null())["time_ns"].sum())
    share = f"{100 * unshaped / work_ns(trace):.1f} %" if unshaped else ""
    notes = (f"input shapes not recorded: {share} of the time",) if unshaped else ()
    return Result(
        conformed(frame, KERNEL_COLUMNS),
        sums(frame, "calls", "time_ns"),
        (f"share: of the {processor(trace)} time, copies and memsets included", *notes),
        KERNEL_COLUMNS,
    )


_DEEPEST: Final = 32
"""Operators around a launch that are searched for shapes."""
