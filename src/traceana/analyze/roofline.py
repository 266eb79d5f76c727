"""The roofline of each class of kernels, and the FLOP utilization of the steps (MFU, HFU).

MFU is of the model, HFU of the hardware: Chowdhery et al., "PaLM: Scaling Language Modeling with
Pathways", 2022, appendix B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from traceana.analyze.charges import COUNTS, Charges, charges, on_flops
from traceana.analyze.manifest_layers import with_names_of
from traceana.analyze.rates import COLUMNS as COSTS
from traceana.analyze.rates import machine, peak_note, peaks_by, rate_columns
from traceana.columns.distinct import first_rows, numbered
from traceana.columns.intervals import Busy
from traceana.columns.nesting import Ints
from traceana.result import Result, nothing, sums, with_share
from traceana.table import (
    CATEGORY,
    COUNT,
    FLAG,
    FLOP_RATE,
    FLOPS,
    PART,
    SHARE,
    TIME,
    Column,
    by_name,
    conformed,
    laid_out,
    whole_sum,
)
from traceana.timeline.steps import available_ns, measured, measured_steps
from traceana.timeline.work import any_work, why_no_work, work
from traceana.trace import per_small_trace
from traceana.trace.taxonomy import NO_ARITHMETIC, PRODUCTS, SEARCH

if TYPE_CHECKING:
    from traceana.flops.peaks import Peaks
    from traceana.runs.layer_manifest import Manifest
    from traceana.trace import Trace

_GRADIENTS: Final = ("dgrad", "wgrad")
_CLASS: Final = ("category", "part")
_LINKS: Final = ("memcpy", "memset", "collective", SEARCH)
"""Bound by links and other devices: the roofline of one device's memory does not apply. Trials
repeat the computation of their operator."""
_UNTOLD: Final = ("other", "fused", "pass", "fft")
"""Categories that may compute anything."""


_COST: Final = by_name(COSTS)
COLUMNS: Final = laid_out(
    (
        Column("category", CATEGORY, "class of kernels, as of `report`", title="class"),
        Column("part", PART, "part of the class, as of `report`"),
        Column("calls", COUNT, "pieces of work", additive=True),
        Column("time_ns", TIME, "summed durations", additive=True),
        Column("share", SHARE, "of all work"),
        _COST["flops"],
        _COST["executed_flops"],
        Column(
            "counted_share",
            SHARE,
            "part of the time that has FLOP counts, over which rates are; null without a rate",
            title="counted time",
        ),
        *(column for column in COSTS if column.name not in ("flops", "executed_flops")),
    ),
    hidden="over_peak bytes",
    dropped="calls executed_flops arithmetic_intensity share of_attainable flops counted_share "
    "bound",
)


def roofline(
    trace: Trace,
    peaks: Peaks | None = None,
    computed: Units | None = None,
    model: Manifest | None = None,
) -> Result:
    """Return one row per category and part, as ``breakdown`` does, with FLOPs and rates.

    The FLOPs and bytes of a convolution, matrix product, attention or recurrent layer belong to the
    kernels of its operator, or instruction of a compiled program, that compute products (of a
    gradient: to its kernels, where known); the FLOPs and bytes of other operators belong to their
    other kernels. Of several classes the one with most time has them. ``flops_per_s`` is over the
    time of only these kernels. The columns are :data:`COLUMNS`. Most time first. ``computed`` are
    the :func:`units` of ``trace``, if already computed; ``model`` is the layer manifest.
    """
    if not any_work(trace):
        return nothing(COLUMNS, why_no_work(trace))
    rows, charged, notes = computed or units(trace, model)
    of_class, over, computed_by = _of_classes(charged, rows)
    of_trace, on_peak = machine(trace)
    frame = (
        rows.group_by(_CLASS)
        .agg(pl.col("calls").sum(), pl.col("duration").sum().alias("time_ns"))
        .join(of_class, on=_CLASS, how="left", nulls_equal=True)
        .join(over, on=_CLASS, how="left", nulls_equal=True)
    )
    frame = frame.with_columns(
        pl.when(pl.col("time_ns") > 0)
        .then((pl.col("_over") / pl.col("time_ns")).clip(0, 1))
        .alias("counted_share")
    )
    located = rows.rename({"duration": "time_ns"})
    frame = rate_columns(frame, located, list(_CLASS), of_trace or peaks, computed_by)
    frame = with_share(frame).sort(
        ["time_ns", *_CLASS], descending=[True, False, False], nulls_last=True
    )
    totals = sums(frame, "calls", "time_ns", "flops")
    without_class = int(charged["flops"].sum()) - (totals.get("flops") or 0)
    part = 100 * without_class / max(int(charged["flops"].sum()), 1)
    lost = f"FLOPs without a class: {part:.1f} % (their operators have copies and memsets but no "
    return Result(
        conformed(frame, COLUMNS),
        totals,
        (
            *notes,
            *([f"{lost}kernel)"] if without_class else []),
            on_peak if of_trace is not None or peaks is None else peak_note(peaks),
        ),
        COLUMNS,
    )


class Units(NamedTuple):
    """The work of a trace with its unit, and the costs of the units.

    A unit is a counted operator, or an instruction of a compiled program. Columns of ``work``,
    which is summed by the others: ``category``, ``part``, ``calls``, ``duration``, ``unit`` (null:
    of none), ``gradient`` (``dgrad``, ``wgrad``, null), ``precision``, ``tensor_core``, ``alone``
    (whether its row includes its children); of ``charged`` ``unit``, ``gradient``,
    ``product`` (whether it is a convolution, matrix product, attention or recurrent layer),
    ``flops``, ``executed_flops``, ``bytes`` (compulsory), ``partial`` (whether the count is a
    partial one). ``notes`` are the notes on the FLOPs.
    """

    work: pl.DataFrame
    charged: pl.DataFrame
    notes: tuple[str, ...]


@per_small_trace
def units(trace: Trace, model: Manifest | None = None) -> Units:
    """Return the work of ``trace`` by unit.

    A layer counted by the layer manifest ``model`` is a unit per direction.
    """
    trace = with_names_of(trace, model)
    costs = charges(trace, model)
    _, rows = _rows(trace, costs)
    return Units(rows, _charged(costs), (*costs.notes, *on_flops(trace, costs)))


def _charged(costs: Charges) -> pl.DataFrame:
    part = pl.col("part").cast(pl.String)
    of_instruction = pl.col("instruction").is_not_null()
    return costs.frame.select(
        "unit",
        pl.when(part.is_in(_GRADIENTS) & ~of_instruction).then(part).alias("gradient"),
        *("product", "precision", "tensor_core"),
        *COUNTS,
        "partial",
    )


def _rows(trace: Trace, costs: Charges) -> tuple[Ints, pl.DataFrame]:
    """Return the work summed by class, unit and gradient, and before it the row of each activity.

    The unit is the counted operator around the work, else the operator of the work, which on a CPU
    may have counted children.
    """
    labels = (*_CLASS, "kernel_direction", "precision", "tensor_core")
    activities = work(trace, *labels, "kind", "duration", "instruction")
    each = activities.select(
        # Units grow with time: numbers that begin with them are found faster.
        costs.coverage["unit"],
        *labels,
        # An instruction, or an operator of a CPU, includes its children.
        (activities["instruction"].is_not_null() | (activities["kind"] == "op")).alias("alone"),
    )
    (number,) = numbered(each)
    summed = (
        pl.DataFrame({"number": number, "duration": activities["duration"]})
        .group_by("number")
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum())
        .sort("number")
    )
    direction = pl.col("kernel_direction")
    return number, each[first_rows(number)].select(
        pl.col(_CLASS).cast(pl.String),
        "alone",
        "unit",
        summed["calls"],
        summed["duration"],
        pl.when(direction.is_in(_GRADIENTS)).then(direction.cast(pl.String)).alias("gradient"),
        pl.col("precision").cast(pl.String),
        "tensor_core",
    )


def _of_classes(
    charged: pl.DataFrame, rows: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the counts by class, the time of their kernels (``_over``), the charges with classes.

    A gradient without a known kernel belongs to the kernels of its whole unit. The time is null
    where a count is partial.
    """
    exact, whole = ["unit", "gradient"], ["unit"]
    charged = charged.with_columns((pl.col("flops") > 0).alias("computes"))
    kernels = (
        rows.filter(pl.col("unit").is_not_null())
        .group_by("unit", "gradient", "alone", *_CLASS)
        .agg(pl.col("duration").sum())
        .sort("unit", "gradient", "alone", *_CLASS)
        .with_row_index("row")
    )
    exactly, their_time = _chosen(charged, kernels, exact)
    rest = charged.join(exactly, on=[*exact, "product", "computes"], how="anti", nulls_equal=True)
    by_unit, rest_time = _chosen(rest, kernels, whole)
    computed = pl.concat([exactly, by_unit])
    partial = pl.col("partial").any()
    over = (
        pl.concat([their_time, rest_time])
        .unique(["row", *_CLASS])
        .group_by(_CLASS)
        .agg(pl.col("duration").sum())
    )
    counts = computed.group_by(_CLASS).agg(
        pl.col("flops").sum(), whole_sum("executed_flops"), whole_sum("bytes"), partial
    )
    over = over.join(counts.select(*_CLASS, "partial"), on=_CLASS, nulls_equal=True).select(
        *_CLASS, pl.when(~pl.col("partial")).then("duration").alias("_over")
    )
    return counts.drop("partial"), over, computed


def _chosen(
    charged: pl.DataFrame, kernels: pl.DataFrame, keys: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of ``charged`` that have kernels, with the class of these, and the kernels.

    Of several classes, the one with most time of the unit counts, or of its gradient if that is
    among the ``keys``. The kernels have ``row``, class and ``duration``: for a product all kernels
    that compute products, for others the kernels of the class.
    """
    wanted = [*keys, "product", "computes"]
    category, product = pl.col("category"), pl.col("product")
    is_product, moves = category.is_in(PRODUCTS), category.is_in(NO_ARITHMETIC)
    rank = (
        pl.when(category.is_in(_LINKS))
        .then(None)
        .when(product)
        .then(
            pl.when(is_product)
            .then(0)
            .when(category.is_in(_UNTOLD))
            .then(1)
            .when(pl.col("alone") & ~moves)
            .then(2)
        )
        .when(pl.col("computes"))
        .then(pl.when(is_product).then(1).when(~moves).then(0))
        .otherwise(0)
    )
    able = (
        charged.select(wanted)
        .unique(maintain_order=True)
        .join(kernels, on=keys, nulls_equal=True)
        .with_columns(rank.alias("rank"))
        .filter(pl.col("rank") == pl.col("rank").min().over(wanted))
    )
    time = pl.col("duration").sum().over(*wanted, *_CLASS)
    first = (
        able.with_columns(time.alias("time"))
        .sort(["time", *_CLASS], descending=[True, False, False], nulls_last=True)
        .unique(wanted, keep="first", maintain_order=True)
        .select(*wanted, *_CLASS)
    )
    theirs = able.drop(_CLASS).with_columns(able.select(*_CLASS).rename(lambda name: f"own_{name}"))
    theirs = theirs.join(first, on=wanted, nulls_equal=True)
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"own_{name}")) for name in _CLASS)
    return (
        charged.join(first, on=wanted, nulls_equal=True, maintain_order="left"),
        theirs.filter(product | same).select("row", *_CLASS, "duration"),
    )


_PLAIN: Final = ("conv", "gemm")
_EXACT: Final = ("unit", "gradient")


def fp32_products(computed: Units) -> pl.DataFrame:
    """Return one row per operator call and gradient with FP32 products without tensor cores.

    Columns: ``category``; ``calls`` and ``time_ns``, number and summed durations of its kernels in
    FP32; ``bytes``, compulsory, null without shapes or types. Kernels without a counted operator
    are one row per category, without bytes.
    """
    rows, charged = computed.work, computed.charged
    plain = rows.filter(
        pl.col("category").is_in(_PLAIN)
        & (pl.col("precision") == "fp32")
        & (pl.col("tensor_core") == False)  # noqa: E712
    )
    moved = charged.group_by(_EXACT).agg(whole_sum("bytes"))
    return (
        plain.group_by("category", *_EXACT)
        .agg(pl.col("calls").sum(), pl.col("duration").sum().alias("time_ns"))
        .join(moved, on=list(_EXACT), how="left", nulls_equal=True)
        .with_columns(pl.when(pl.col("unit").is_not_null()).then("bytes").alias("bytes"))
        .select("category", "calls", "time_ns", "bytes")
    )


def counted_work(trace: Trace) -> pl.DataFrame:
    """Return for each of ``work(trace)`` the counts that it has, alone or with others.

    Columns: ``category``, ``precision``, ``tensor_core``; ``flops`` and ``bytes`` of its unit, of
    its gradient where known, for products of the unit's products; ``unit_ns``, the summed durations
    of the activities that have the same counts. Null where not counted.
    """
    costs = charges(trace, None)
    number, rows = _rows(trace, costs)
    rows = rows.with_columns(pl.col("category").is_in(PRODUCTS).alias("product"))
    exact, whole = [*_EXACT, "product"], ["unit", "product"]
    counts = (pl.col("flops").sum(), whole_sum("bytes"))
    charged = _charged(costs).group_by(exact).agg(counts)
    there = rows.select(exact).unique()
    rest = charged.join(there, on=exact, how="anti", nulls_equal=True).group_by(whole).agg(counts)
    exactly = charged.join(there, on=exact, how="semi", nulls_equal=True)
    joined = rows.join(exactly, on=exact, how="left", nulls_equal=True, maintain_order="left").join(
        rest, on=whole, how="left", maintain_order="left", suffix="_rest"
    )
    exact_ns, whole_ns = (pl.col("duration").sum().over(keys) for keys in (exact, whole))
    has = pl.col("flops").is_not_null()
    return joined.select(
        *("category", "precision", "tensor_core"),
        pl.coalesce("flops", "flops_rest"),
        pl.when(has).then("bytes").otherwise("bytes_rest").alias("bytes"),
        pl.when(has)
        .then(exact_ns)
        .when(pl.col("flops_rest").is_not_null())
        .then(whole_ns)
        .alias("unit_ns"),
    ).select(pl.all().gather(number))


UTILIZATION: Final = (
    Column("mfu", SHARE, "model FLOP utilization"),
    Column("hfu", SHARE, "hardware FLOP utilization: recomputed FLOPs count too"),
    Column("model_flops", FLOPS, "FLOPs of the products per step, of all devices", type=pl.Float64),
    Column("peak_flops_per_s", FLOP_RATE, "peak of one device"),
    Column("at_least", FLAG, "true where some products have no FLOP count"),
)


class Utilization(msgspec.Struct, frozen=True):
    """FLOP utilization of the measured steps.

    ``mfu`` is the FLOPs of the model's convolutions, matrix products, attention and recurrent
    layers over what the devices can compute in the steps: step time times devices times
    ``peak_flops_per_s`` (for the precision of the products; for several, their FLOPs over their
    time at the peak of each). Where the host runs ahead, the busy time of the work that the steps
    launched replaces a shorter step time. ``hfu`` also counts what the backward pass computes again
    (activation checkpoints). ``at_least``: some products have no FLOP count. The fields are the
    columns :data:`UTILIZATION` of :meth:`result`.
    """

    mfu: float
    hfu: float
    model_flops: float
    """Per step, of all devices."""
    peak_flops_per_s: float
    """Of one device."""
    at_least: bool

    def result(self) -> Result:
        """Return the figures as one row."""
        return Result(pl.DataFrame([msgspec.structs.asdict(self)]), columns=UTILIZATION)


def utilization(trace: Trace, model: Manifest | None = None) -> Utilization | None:
    """Return the FLOP utilization of the measured steps of ``trace``.

    None without steps, without a known peak, and without counted products.
    """
    peaks, _ = machine(trace)
    steps = measured_steps(trace)
    if peaks is None or not steps.rows:
        return None
    available = int(available_ns(trace).gather(list(steps.rows)).sum())
    selected = measured(trace)
    launched = Busy.of(work(selected, "rank", "device", "start", "duration"))
    available = max(available, launched.of_all())
    computed = units(selected, model)
    products = computed.charged.filter("product")
    flops = int(products["flops"].sum())
    if not flops or not available:
        return None
    timed = computed.work.filter(pl.col("category").is_in(PRODUCTS))
    located = timed.with_columns(pl.col("duration").alias("time_ns"), pl.lit(0).alias("all"))
    charged = products.with_columns(pl.lit(0).alias("all"))
    highest = peaks_by(located, ["all"], peaks, charged)["_peak"].drop_nulls().to_list()
    if not highest:
        return None
    (peak,) = highest
    # Forward products within the backward pass.
    costs = charges(selected, model).frame
    again = int(
        costs.filter(
            pl.lit(selected.tables.ops["direction"].gather(costs["op"]) == "backward"),
            pl.col("part").cast(pl.String) == "forward",
            pl.col("product"),
        )["flops"].sum()
    )
    uncounted = timed.filter(
        ~pl.col("unit").is_in(products["unit"].drop_nulls().unique().implode()).fill_null(False)
    )
    capable = available / 1e9 * peak
    return Utilization(
        mfu=(flops - again) / capable,
        hfu=flops / capable,
        model_flops=(flops - again) / len(steps.numbers),
        peak_flops_per_s=peak,
        at_least=uncounted.height > 0 or bool(products["partial"].any()),
    )
