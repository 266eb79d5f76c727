"""Convolution algorithms by batch and by layer (Kim et al. 2017, Figures 8 and 9).

The tables of an algorithm study: all measurements, by batch size, and by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from traceana.analyze.layers import layers
from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import layer_table, work
from traceana.flops.call import Refusal
from traceana.flops.executed import executed
from traceana.flops.timed_algorithms import AlgorithmStudy
from traceana.result import Result
from traceana.study import Name
from traceana.study.recorded_runs import Traced, conditions, labels
from traceana.study.study import NETWORK, RUN, Study
from traceana.study.trace_tables import of_basis
from traceana.study.trials import SWITCHES, Trials, as_runs, by_algorithm, kernel_times, switches
from traceana.table import (
    BYTES,
    COUNT,
    FLOPS,
    KERNEL,
    LONG,
    NUMBER,
    OF_FLOPS,
    PART,
    PARTS,
    PATH,
    TEXT,
    TIME,
    Column,
    conformed,
    laid_out,
    whole_sum,
)
from traceana.timeline.steps import measured_steps, select
from traceana.trace.taxonomy import FAMILY_OF_ALGORITHM

HAVE_COLUMNS: Final = frozenset({"network", "batch"})
DIRECTIONS: Final = ("fprop", "forward", "dgrad", "wgrad", "backward")
"""In display order; unknown directions come last."""
_MEASURE: Final = "python -m workloads.algorithms --network alexnet --batch 1,2,4,8,16 --out FILE"

_DIRECTION: Final = Column(
    "direction",
    PART,
    "`fprop`, `dgrad`, `wgrad`; of recorded runs `forward`, `backward`, because one call may "
    "compute both gradients",
    title="pass",
)
_BATCH: Final = Column("batch", NUMBER, "images per step")
_ALGORITHM: Final = Column("algorithm", PARTS, "the algorithm")
BY_BATCH: Final = laid_out(
    (
        *(NETWORK, RUN, _DIRECTION, _BATCH, _ALGORITHM),
        Column(
            "time_ns",
            TIME,
            "sum of its fastest medians over the layers that it ran on; of recorded runs the time "
            "of the chosen convolution kernels, per step, or per capture without steps; of trials "
            "(`--sweep-from`) the median per trial",
        ),
        Column(
            "low_ns",
            TIME,
            "of trials: lower bound of the 95 % interval of the median; null below six trials",
            scale="interval",
        ),
        Column("high_ns", TIME, "of trials: upper bound of that interval", scale="interval"),
        Column("fastest_ns", TIME, "the fastest of any algorithm on the same layers"),
        Column(
            "workspace_bytes",
            BYTES,
            "the largest workspace of the layers that it ran on, which can share one",
        ),
        Column("layers", COUNT, "number of layers that it ran on"),
        Column("of_layers", COUNT, "number of layers"),
        Column("trials", COUNT, "number of trials that ran it"),
        Column("of_trials", COUNT, "number of trials"),
        Column("calls", COUNT, "of recorded runs: calls; of trials: their mean", type=pl.Float64),
        Column("family", TEXT, "family of the algorithm"),
        Column(
            "common_layers",
            COUNT,
            "number of layers on which all algorithms of the direction and batch ran",
        ),
        Column("common_ns", TIME, "sum of its fastest medians over these layers"),
    ),
    hidden="family common_layers common_ns",
    dropped="calls fastest_ns",
)
"""One row per source (``run``), direction, batch and algorithm."""
BY_LAYER: Final = laid_out(
    (
        *(NETWORK, RUN, _BATCH),
        Column("layer", PATH, "the layer; of recorded runs one with convolutions"),
        *(_DIRECTION, _ALGORITHM),
        Column(
            "time_ns", TIME, "fastest median; of recorded runs the mean over the measured steps"
        ),
        Column(
            "executed_flops",
            FLOPS,
            "FLOPs that the algorithm executes, a multiply-accumulate being two",
            scale=OF_FLOPS,
        ),
        Column("direct_flops", FLOPS, "FLOPs of a direct convolution", scale=OF_FLOPS),
        Column("workspace_bytes", BYTES, "its workspace"),
        Column("status", LONG, "`ok`, else the reason for a missing time"),
        Column("position", NUMBER, "position of the layer, from 0"),
        Column("name", KERNEL, "the library's name of the algorithm"),
    ),
    hidden="position name",
    dropped="workspace_bytes direct_flops",
)
"""One row per source, batch, layer, direction and algorithm."""
_CONVOLVES: Final = "(?i)conv"


def direction_order() -> pl.Expr:
    """Return the position of ``direction`` in :data:`DIRECTIONS`."""
    positions = {direction: position for position, direction in enumerate(DIRECTIONS)}
    return pl.col("direction").replace_strict(
        positions, default=len(DIRECTIONS), return_dtype=pl.Int64
    )


def convolution_study(
    name: Name, measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]
) -> Study:
    """Return the study of timed algorithms, and of the algorithms that recorded runs chose.

    ``algorithms``: time and workspace of each algorithm over the layers that it ran on, by batch.
    ``layerwise``: the fastest run of each algorithm for each layer. Several files of one library
    are numbered.
    """
    sources: list[str] = []
    variants = {(study.precision, study.layout) for study in measured}
    for study in measured:
        source = f"{study.library} {study.library_version}"
        source += f", {study.precision}, {study.layout}" if len(variants) > 1 else ""
        sources.append(source if source not in sources else f"{source} ({len(sources) + 1})")
    runs = [recorded.run for recorded in traced]
    names = labels(runs, lambda run: (run.network, run.batch), HAVE_COLUMNS)
    order: tuple[str | pl.Expr, ...]
    if name is Name.ALGORITHMS:
        title = "Time and workspace of convolution algorithms by batch size"
        columns, frames = BY_BATCH, [conformed(pl.DataFrame(), BY_BATCH).clear()]
        for study, source in zip(measured, sources, strict=True):
            table = by_batch(measurements(study)).rename({"median_ns": "time_ns"})
            rounded = table.with_columns(pl.col("time_ns", "fastest_ns", "common_ns").round())
            frames.append(_rows(rounded, network=study.network, run=source))
        for recorded, label in zip(traced, names, strict=True):
            chosen = of_basis(work([Run(label, recorded.trace, recorded.model)], "algorithm"))
            chosen = chosen.filter(pl.col("category") == "conv").rename({"pass": "direction"})
            chosen = chosen.with_columns(pl.lit(recorded.run.batch, pl.Int64).alias("batch"))
            frames.append(_rows(chosen, network=recorded.run.network, run=label))
        order = ("network", "run", direction_order(), "batch", "time_ns")
    else:
        title = "Time and FLOPs of convolution algorithms by layer"
        columns, frames = BY_LAYER, [conformed(pl.DataFrame(), BY_LAYER).clear()]
        frames += [
            _timed_by_layer(study, source) for study, source in zip(measured, sources, strict=True)
        ]
        frames += _chosen_by_layer(traced, names)
        order = ("network", "run", "batch", "position", direction_order(), "time_ns")
    frame = pl.concat(frames).sort(*order, nulls_last=True, maintain_order=True)

    lines = []
    for study in measured:
        count = study.device.threads
        threads = "" if count is None else f" ({_counted(count, 'thread')})"
        lines.append(
            f"{study.network}, {study.device.name}{threads}, {study.library} "
            f"{study.library_version}, {study.precision}: each algorithm timed alone, median, "
            f"{_counted(study.warm_up, 'warm-up run')}"
        )
    notes = [
        f"{study.network}: measurement incomplete: {study.ended}"
        for study in measured
        if study.ended
    ]
    if traced:
        notes.append(
            "recorded runs: convolution kernels per step, by the algorithm in their names; no "
            "workspace sizes"
        )
    if name is Name.ALGORITHMS and (frame["layers"] < frame["of_layers"]).any():
        notes.append("times: over the layers that the algorithm ran on")
    missing = ""
    if not measured:
        missing = f"record: {_MEASURE}"
        if traced:
            missing = f"recorded runs have chosen algorithms only; time all: {_MEASURE}"
    return Study(
        name,
        title,
        (*dict.fromkeys(lines), *conditions(runs, timed=False)),
        Result(frame, {}, tuple(notes), columns),
        missing=(missing,) if missing else (),
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def trials_study(trials: Trials) -> Study:
    """Return the time of each algorithm by batch, with its interval over ``trials``.

    The section ``switches`` has the batch sizes at which the algorithm changes.
    """
    times = kernel_times(trials)
    frame = by_algorithm(times).rename({"series": "run"})
    without = (
        len(trials.trials) - times.filter(pl.col("algorithm").is_not_null())["trial"].n_unique()
    )
    said = ["time: convolution kernels of a trial, the median of the trials that ran the algorithm"]
    said += [f"trials without convolution kernels: {without:,}"] if without else []
    return Study(
        Name.ALGORITHMS,
        "Time of convolution algorithms by batch size",
        conditions(as_runs(trials, times)),
        Result(conformed(frame, BY_BATCH), {}, tuple(said), BY_BATCH),
        sections={"switches": Result(switches(times), columns=SWITCHES)},
    )


def _rows(frame: pl.DataFrame, *, network: str | None, run: str) -> pl.DataFrame:
    of_run = pl.lit(network, pl.String).alias("network"), pl.lit(run).alias("run")
    return conformed(frame.with_columns(of_run), BY_BATCH)


def _timed_by_layer(study: AlgorithmStudy, name: str) -> pl.DataFrame:
    table = measurements(study)
    batches = table["batch"].unique(maintain_order=True).to_list()
    fastest = pl.concat([table.head(0), *(by_layer(table, batch) for batch in batches)])
    ok = pl.col("status") == "ok"
    rows = fastest.select(
        pl.lit(study.network).alias("network"),
        pl.lit(name).alias("run"),
        "batch",
        "position",
        "layer",
        "direction",
        "algorithm",
        "name",
        pl.col("median_ns").round().alias("time_ns"),
        "executed_flops",
        "direct_flops",
        "workspace_bytes",
        pl.when(ok)
        .then(pl.lit("ok"))
        .otherwise(pl.format("{}: {}", pl.col("status").str.replace_all("_", " "), "reason"))
        .alias("status"),
    )
    return conformed(rows, BY_LAYER)


def _chosen_by_layer(traced: Sequence[Traced], names: Sequence[str]) -> list[pl.DataFrame]:
    """Return the rows of recorded runs, with one name per layer in all runs of its network."""
    algorithm = pl.col("algorithm").fill_null("")
    convolves = ((algorithm != "") | pl.col("type").str.contains(_CONVOLVES)).any().over("layer")
    chosen = algorithm.filter(algorithm != "").unique(maintain_order=True).str.join(", ")
    frames = []
    for network in dict.fromkeys(recorded.run.network for recorded in traced):
        of_network = [
            (recorded, name)
            for recorded, name in zip(traced, names, strict=True)
            if recorded.run.network == network
        ]
        runs = [Run(name, recorded.trace, recorded.model) for recorded, name in of_network]
        aligned = layer_table(runs).frame.filter(pl.col("role") == "layer")
        called = aligned.select("run", "path", "layer", "item")
        for recorded, name in of_network:
            numbers = measured_steps(recorded.trace).numbers or None
            steps = len(numbers) if numbers else 1
            part = select(recorded.trace, steps=numbers)
            frame = layers(part, direction=True, model=recorded.model).frame
            whole = [
                (whole_sum(column) // steps).cast(pl.Int64).alias(column)
                for column in ("executed_flops", "flops")
            ]
            backward = dict.fromkeys(("dgrad", "wgrad"), "backward")
            rows = (
                frame.filter(pl.col("role") == "layer", convolves)
                .with_columns(pl.col("direction").replace(backward))
                .group_by("layer", "direction", maintain_order=True)
                .agg(
                    chosen.replace("", "unknown").alias("algorithm"),
                    pl.col("time_ns").sum() // steps,
                    *whole,
                )
                .rename({"layer": "path", "flops": "direct_flops"})
                .join(called.filter(pl.col("run") == name), on="path", how="left")
                .with_columns(
                    pl.coalesce("layer", "path").alias("layer"),
                    pl.col("item").alias("position"),
                    pl.lit(network, pl.String).alias("network"),
                    pl.lit(name).alias("run"),
                    pl.lit(recorded.run.batch, pl.Int64).alias("batch"),
                    pl.lit("ok").alias("status"),
                )
            )
            frames.append(conformed(rows, BY_LAYER))
    return frames


_TEXT, _COUNT = pl.String, pl.Int64
MEASUREMENTS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "position": _COUNT,
    "layer": _TEXT,
    "direction": pl.Enum(["fprop", "dgrad", "wgrad"]),
    "batch": _COUNT,
    "algorithm": _TEXT,
    "family": _TEXT,
    "name": _TEXT,
    "implementation": _TEXT,
    "math_type": _TEXT,
    "deterministic": pl.Boolean,
    "status": _TEXT,
    "reason": _TEXT,
    "median_ns": pl.Float64,
    "times_ns": pl.List(pl.Int64),
    "search_ns": _COUNT,
    "reorder_median_ns": pl.Float64,
    "reorder_ns": pl.List(pl.Int64),
    "reorder_bytes": _COUNT,
    "workspace_bytes": _COUNT,
    "direct_flops": _COUNT,
    "executed_flops": _COUNT,
    "flops_reason": _TEXT,
    "direct_flops_per_s": pl.Float64,
    "error": pl.Float64,
}
"""Columns of :func:`measurements`."""

_DERIVED: Final = ("median_ns", "reorder_median_ns", "direct_flops_per_s")


def measurements(study: AlgorithmStudy) -> pl.DataFrame:
    """Return one row per measurement, in the file's order, with the columns of ``MEASUREMENTS``.

    Times are in ns, ``position`` is the layer's from 0. ``direct_flops`` are the FLOPs of a direct
    convolution, ``executed_flops`` are the FLOPs of this algorithm (``traceana.flops.executed``;
    null, with ``flops_reason``, without a formula). ``direct_flops_per_s`` is ``direct_flops``
    divided by the median time, the effective rate of the layer.
    """
    layers = {layer.path: (number, layer) for number, layer in enumerate(study.layers)}
    rows: list[dict[str, Any]] = []
    for each in study.measurements:
        position, layer = layers[each.layer]
        conv = layer.convolution(each.batch)
        count = executed(conv, each.algorithm, each.direction)
        rows.append(
            {
                "position": position,
                "layer": each.layer,
                "direction": each.direction,
                "batch": each.batch,
                "algorithm": each.algorithm,
                "family": FAMILY_OF_ALGORITHM[each.algorithm],
                "name": each.name,
                "implementation": each.implementation,
                "math_type": each.math_type,
                "deterministic": each.deterministic,
                "status": each.status,
                "reason": each.reason,
                "times_ns": list(each.times_ns) or None,
                "search_ns": each.search_ns,
                "reorder_ns": list(each.reorder_ns) or None,
                "reorder_bytes": each.reorder_bytes,
                "workspace_bytes": each.workspace_bytes,
                "direct_flops": 2 * conv.macs,
                "executed_flops": None if isinstance(count, Refusal) else count.flops,
                "flops_reason": count.reason if isinstance(count, Refusal) else None,
                "error": each.error,
            }
        )
    given = {name: kind for name, kind in MEASUREMENTS.items() if name not in _DERIVED}
    return (
        pl.DataFrame(rows, schema=given)
        .with_columns(
            median_ns=pl.col("times_ns").list.median(),
            reorder_median_ns=pl.col("reorder_ns").list.median(),
        )
        .with_columns(direct_flops_per_s=pl.col("direct_flops") / pl.col("median_ns") * 1e9)
        .select(list(MEASUREMENTS))
    )


def by_layer(table: pl.DataFrame, batch: int) -> pl.DataFrame:
    """Return the fastest measurement of each layer, direction and algorithm at one batch size.

    ``table`` is the result of :func:`measurements`; rows are in the order of the layers. An
    algorithm that did not run for a layer has a row with the reason. Figure 9 of Kim et al. (ISPASS
    2017).
    """
    return _fastest(table.filter(pl.col("batch") == batch), ("position", "direction", "algorithm"))


def by_batch(table: pl.DataFrame) -> pl.DataFrame:
    """Return time and memory of each algorithm over all layers, by direction and batch size.

    Columns: ``direction``, ``batch``, ``algorithm``, ``family``, ``layers`` (number of layers on
    which the algorithm ran), ``of_layers`` (number of layers), ``median_ns`` (sum of its fastest
    medians over these layers), ``fastest_ns`` (sum of the fastest medians of any algorithm over
    these layers), ``common_layers`` and ``common_ns`` (number of layers on which all algorithms of
    the row's direction and batch ran, and the sum over these alone), ``workspace_bytes`` (the
    largest of the layers that it ran on, which can share one). Figure 8 of Kim et al. (ISPASS
    2017).
    """
    run = table.filter(pl.col("status") == "ok")
    case = ("position", "direction", "batch")
    best = run.group_by(case).agg(pl.col("median_ns").min().alias("fastest_ns"))
    whole = ("direction", "batch")
    algorithms = pl.col("algorithm").n_unique()
    everywhere = algorithms.over(case) == algorithms.over(whole)
    common = pl.col("median_ns").filter("_common")
    measured = table.group_by(whole).agg(
        pl.col("position").n_unique().cast(pl.Int64).alias("of_layers")
    )
    return (
        _fastest(run, (*case, "algorithm"))
        .with_columns(everywhere.alias("_common"))
        .join(best, on=case)
        .group_by("direction", "batch", "algorithm", "family")
        .agg(
            pl.len().cast(pl.Int64).alias("layers"),
            pl.col("median_ns", "fastest_ns").sum(),
            pl.col("_common").sum().cast(pl.Int64).alias("common_layers"),
            pl.when(common.len() > 0).then(common.sum()).alias("common_ns"),
            pl.col("workspace_bytes").max(),
        )
        .join(measured, on=whole)
        .select(
            *("direction", "batch", "algorithm", "family", "layers", "of_layers"),
            *("median_ns", "fastest_ns", "common_layers", "common_ns", "workspace_bytes"),
        )
        .sort("direction", "batch", "median_ns", "algorithm")
    )


def _fastest(table: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return the row with the lowest median for each value of ``keys``."""
    return (
        table.sort("median_ns", nulls_last=True, maintain_order=True)
        .unique(keys, keep="first", maintain_order=True)
        .sort(keys)
    )
