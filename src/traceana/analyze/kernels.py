"""Distinct kernels: calls, time and class; how their grids fill the multiprocessors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze import summaries
from traceana.analyze.launch_configuration import COLUMNS as CONFIGURATION
from traceana.analyze.launch_configuration import launch_configurations
from traceana.analyze.measured import COLUMNS as MEASURED
from traceana.analyze.measured import (
    added,
    figures,
    measured_notes,
    measured_sums,
    with_measured_rates,
    without_moves,
)
from traceana.result import Result, share_of, sums, with_share
from traceana.settings import LEAST_ROW_SHARE
from traceana.table import (
    COUNT,
    KERNEL,
    ONE_CALL,
    SHARE,
    TEXT,
    TIME,
    Column,
    aggregated,
    conformed,
    laid_out,
)
from traceana.timeline.work import kernels_of, why_no_work, work, work_ns
from traceana.trace.work import CLASS, SOURCE, labels_of, layer_labels

if TYPE_CHECKING:
    from traceana.trace import Trace


_DURATION: Final = pl.col("duration")

COLUMNS: Final = laid_out(
    (
        Column("name", KERNEL, "the name, whole"),
        *(CLASS[name] for name in ("category", "algorithm", "direction", "batched")),
        Column("calls", COUNT, "how often it ran", pl.len(), additive=True),
        Column("time_ns", TIME, "summed durations", _DURATION.sum(), additive=True),
        Column("share", SHARE, "of the GPU time, copies and memsets included, as in `report`"),
        Column(
            "median_ns",
            TIME,
            "median call, rounded down",
            _DURATION.median().floor(),
            scale=ONE_CALL,
        ),
        Column(
            "std_ns",
            TIME,
            "standard deviation of the calls, null for one call",
            _DURATION.std().round(),
            scale=ONE_CALL,
        ),
        Column(
            "mean_ns", TIME, "mean call, rounded down", _DURATION.sum() // pl.len(), scale=ONE_CALL
        ),
        Column("min_ns", TIME, "shortest call", _DURATION.min(), scale=ONE_CALL),
        Column("max_ns", TIME, "longest call", _DURATION.max(), scale=ONE_CALL),
        *CONFIGURATION,
        *MEASURED,
        *(CLASS[name] for name in ("family", "precision", "tensor_core", "gemm_layout", "tile")),
        *(CLASS[name] for name in ("function", "epilogue", "library")),
        Column("rule", TEXT, "id of the rule that decided by the name"),
        Column(
            "context_rule",
            TEXT,
            "id of the rule of context that refined the class; null where the name's stands",
        ),
    ),
    hidden="fp64_flops fp32_flops fp16_flops tensor_flops dram_bytes_per_s family precision "
    "tensor_core gemm_layout tile function epilogue library rule context_rule",
)
BY_CATEGORY: Final = laid_out(
    (
        CLASS["category"],
        Column("kernels", COUNT, "distinct kernels"),
        Column("calls", COUNT, "how often they ran", additive=True),
        Column("time_ns", TIME, "summed durations", additive=True),
        Column("share", SHARE, "of the GPU time, copies and memsets included"),
    ),
    bars="share",
)
KERNEL_KEYS: Final = (
    "name",
    *(column.name for column in COLUMNS if column.name in CLASS),
    *("rule", "context_rule"),
)
"""Columns that identify a row of :func:`kernels`."""
_FAR: Final = 10
"""A call is far from its kernel's median if it takes so many times as long."""
_MOST_FAR: Final = 2
_LONGEST_NAME: Final = 60


def kernels(trace: Trace, *, unclassified: bool = False) -> Result:
    """Return one row per distinct kernel (operator in a trace of the CPU) and class.

    A name with launches of several classes, by their contexts, has a row for each. The columns are
    :data:`COLUMNS`. Most time first; equal times by name. ``unclassified`` returns only kernels of
    category ``other``, with their shares of all GPU time.

    For counters without a timeline ``calls`` are the measured launches; the only time is
    ``ncu_ns``, by which the rows are sorted.
    """
    alone = trace.tables.activities.is_empty() and trace.tables.counters.height > 0
    frame = conformed(_measured_alone(trace) if alone else _ran(trace), COLUMNS)
    notes = (*measured_notes(trace), *summaries.notes(trace), *_far_calls(frame))
    copies = pl.col("kind").is_in(["memcpy", "memset"])
    if trace.is_summary:
        excluded = int(trace.tables.summary.filter("counted", copies)["calls"].sum())
    else:
        excluded = int(trace.tables.activities.select(copies.sum()).item())
    if excluded:
        notes = ("copies and memsets excluded (included in share)", *notes)
    elif frame.is_empty():
        notes = (why_no_work(trace),)
    if unclassified and frame.height:
        frame = frame.filter(pl.col("category") == "other")
        if frame.is_empty():
            notes = ("no unclassified kernels",)
    measured = ["measured_flops", "dram_bytes"] if trace.tables.counters.height else []
    totals = sums(frame, "calls", *([] if alone else ["time_ns"]), *measured)
    return Result(frame, totals, notes, COLUMNS)


def _ran(trace: Trace) -> pl.DataFrame:
    """Return the rows of a timeline, or of a summary, by name and refined class."""
    keys = ["name_id", "class"]
    if trace.is_summary:
        by_name = summaries.kernels(trace)
    else:
        by_name = aggregated(kernels_of(trace, *SOURCE, "duration"), SOURCE, COLUMNS)
        configured = launch_configurations(trace)
        by_name = by_name.join(configured, on=SOURCE, how="left", nulls_equal=True)
    by_name = by_name.join(measured_sums(trace, *keys), on=keys, how="left", nulls_equal=True)
    by_name = with_measured_rates(by_name, trace)
    return (
        by_name.with_columns(trace.tables.names["name"].gather(by_name["name_id"]))
        .hstack(labels_of(by_name, trace.tables).rename({"kernel_direction": "direction"}))
        .with_columns(share_of(work_ns(trace)))
        .sort(["time_ns", "name", "class"], descending=[True, False, False])
    )


def _measured_alone(trace: Trace) -> pl.DataFrame:
    """Return the rows of counters without a timeline."""
    counters = without_moves(trace)
    launches = counters.select("name").hstack(figures(counters, over=counters["duration"]))
    by_name = (
        launches.group_by("name").agg(*added()).with_columns(pl.col("measured").alias("calls"))
    )
    return (
        with_measured_rates(by_name, trace)
        .join(trace.tables.names, on="name", how="left")
        .with_columns(pl.lit(None, pl.Int64).alias("time_ns"))
        .sort(
            *("ncu_ns", "measured_flops", "calls", "name"),
            descending=[True, True, True, False],
            nulls_last=True,
        )
    )


def _far_calls(frame: pl.DataFrame) -> tuple[str, ...]:
    """Return a note on each kernel with a call that takes many times its median, and at least 1 %
    of the time of all kernels."""
    least_ns = LEAST_ROW_SHARE * int(frame["time_ns"].sum() or 0)
    more_ns = pl.col("max_ns") - pl.col("median_ns")
    far = frame.filter(
        (pl.col("max_ns") >= _FAR * pl.col("median_ns")) & (more_ns >= max(least_ns, 1)),
        pl.col("calls") > 2,
    ).top_k(_MOST_FAR, by="max_ns")
    return tuple(
        f"{_one_call(longest, median)}: {name.partition('(')[0][:_LONGEST_NAME]}"
        for name, longest, median in far.select(
            pl.col("name").cast(pl.String).str.strip_prefix("void "), "max_ns", "median_ns"
        ).rows()
        if median
    )


def _one_call(longest_ns: float, median_ns: float, kind: str = "kernel") -> str:
    return (
        f"one call of {longest_ns / 1000:,.0f} µs, {longest_ns / median_ns:,.0f} times its "
        f"{kind}'s median of {median_ns / 1000:,.1f} µs"
    )


def far_calls_of_layers(trace: Trace, layers: pl.Series | None = None) -> tuple[str, ...]:
    """Return a note on each layer in which one call takes many times the median of its kernel in
    that layer, and at least 1 % of the time of all work.

    ``layers`` are paths of layers, by default all.
    """
    ran = work(trace, "layer", "name_id", "duration").drop_nulls("layer")
    least_ns = max(LEAST_ROW_SHARE * work_ns(trace), 1)
    long = ran.filter(pl.col("duration") >= least_ns)
    if long.is_empty():
        return ()
    keys = ["layer", "name_id"]
    duration = pl.col("duration")
    far = (
        ran.join(long.select(keys).unique(), on=keys, how="semi")
        .group_by(keys)
        .agg(
            pl.len().alias("calls"),
            duration.max().alias("max_ns"),
            duration.median().alias("median_ns"),
        )
        .filter(
            pl.col("calls") > 2,
            pl.col("max_ns") >= _FAR * pl.col("median_ns"),
            pl.col("max_ns") - pl.col("median_ns") >= least_ns,
            pl.col("median_ns") > 0,
        )
        .sort("max_ns", "layer", descending=[True, False])
        .unique("layer", keep="first", maintain_order=True)
    )
    path = layer_labels(trace.tables)["layer_path"].cast(pl.String)
    far = far.select(path.gather(far["layer"]).alias("layer"), "max_ns", "median_ns")
    if layers is not None:
        far = far.filter(pl.col("layer").is_in(layers.to_list()))
    kind = "operator" if trace.on_cpu else "kernel"
    return tuple(
        f"{_one_call(longest, median, kind)}: {layer}"
        for layer, longest, median in far.head(_MOST_FAR).rows()
    )


def by_category(rows: Result) -> Result:
    """Return the rows of :func:`kernels` by category, with :data:`BY_CATEGORY`. Most time first."""
    frame = rows.frame.group_by("category", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("kernels"), pl.col("calls", "time_ns", "share").sum()
    )
    frame = frame.sort(["time_ns", "category"], descending=[True, False])
    # In this order: that of a set changes from process to process.
    added = (name for name in ("calls", "time_ns") if name in rows.totals)
    totals = sums(frame, "kernels", *added)
    return Result(conformed(frame, BY_CATEGORY), totals, rows.notes, BY_CATEGORY)


def occupancy(trace: Trace) -> Result:
    """Return one row per distinct kernel and class.

    Columns: ``name``, ``category``, ``part``, ``calls``, ``time_ns``, ``share``, ``blocks`` (median
    of its launches), ``multiprocessors``, ``short_calls`` and ``short_ns`` (launches of fewer
    blocks than the device has multiprocessors, and their time), ``unused_ns`` (of that time, the
    share of the multiprocessors without a block: duration x (1 - blocks / multiprocessors)). Null
    where grid or device are unknown. Most unused time first.
    """
    sms = trace.tables.devices.select("rank", "device", "multiprocessors").unique(
        ["rank", "device"], keep="first"
    )
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    count, time = pl.col("multiprocessors").cast(pl.Int64), pl.col("duration")
    short = (pl.col("blocks") < count).fill_null(False)
    unused = time * (count - pl.col("blocks")) // count
    frame = (
        kernels_of(
            *(trace, "rank", "device", "grid_x", "grid_y", "grid_z", "duration"),
            *("name", "class", "category", "part"),
        )
        .with_columns(blocks.alias("blocks"))
        .join(sms, on=["rank", "device"], how="left", nulls_equal=True)
        # A sum of a column takes a fraction of the time of a filtered sum in each group.
        .with_columns(
            short.alias("short"),
            pl.when(short).then(time).otherwise(0).alias("short_ns"),
            pl.when(short).then(unused).otherwise(0).alias("unused_ns"),
        )
        .group_by("name", "class", "category", "part")
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            time.sum().alias("time_ns"),
            pl.col("blocks").median(),
            count.max(),
            pl.col("short").sum().cast(pl.Int64).alias("short_calls"),
            pl.col("short_ns", "unused_ns").sum(),
        )
        .with_columns(pl.col("name", "category", "part").cast(pl.String))
    )
    both_known = pl.when(pl.col("blocks").is_not_null() & pl.col("multiprocessors").is_not_null())
    frame = frame.with_columns(
        both_known.then(column).alias(column) for column in ("short_calls", "short_ns", "unused_ns")
    )
    frame = with_share(frame).sort(
        ["unused_ns", "time_ns", "name", "part"],
        descending=[True, True, False, False],
        nulls_last=True,
    )
    columns = ("name", "category", "part", "calls", "time_ns", "share", "blocks")
    frame = frame.select(*columns, "multiprocessors", "short_calls", "short_ns", "unused_ns")
    totals = sums(frame, "calls", "time_ns")
    if frame.is_empty():
        return Result(frame, totals, ("no kernels in the selection",))
    unknown = int(frame.filter(pl.col("short_ns").is_null())["calls"].sum())
    notes = (f"grid or device unknown: {unknown:,} kernels",) if unknown else ()
    return Result(frame, totals, notes)
