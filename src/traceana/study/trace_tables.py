"""Studies of traces side by side: layers by framework, epilogues, SGEMM and transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl

from traceana.comparison.compared_run import OTHER, Run
from traceana.comparison.run_tables import Table, epilogues, layer_table, sgemms, transfers
from traceana.result import Result
from traceana.study import Name
from traceana.study.recorded_runs import Traced, conditions, labels, on_a_gpu, to_record
from traceana.study.study import Study

PER_STEP: Final = "step"
PER_RECORDING: Final = "recording"
_HAVE_COLUMNS: Final = frozenset({"network"})

FRAMEWORKS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "item": pl.Int64,
    "layer": pl.String,
    "type": pl.String,
    "role": pl.String,
    "path": pl.String,
    "confidence": pl.Float64,
    "calls": pl.Float64,
    "forward_ns": pl.Int64,
    "backward_ns": pl.Int64,
    "optimizer_ns": pl.Int64,
    "other_ns": pl.Int64,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""One row per run and layer, as in :func:`traceana.comparison.run_tables.layer_table`."""
EPILOGUES_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "operation": pl.String,
    "direction": pl.String,
    "library": pl.String,
    "how": pl.String,
    "calls": pl.Float64,
    "time_ns": pl.Int64,
    "share": pl.Float64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""The columns of :func:`traceana.comparison.run_tables.epilogues`, without the other work."""
SGEMM_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "gemm": pl.String,
    "form": pl.String,
    "library": pl.String,
    "calls": pl.Float64,
    "time_ns": pl.Int64,
    "mean_ns": pl.Int64,
    "per": pl.String,
}
"""One row per run, tile with layout, and form; ``library`` lists the libraries of the kernels,
``mean_ns`` is the time of one call, rounded down."""
TRANSFERS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "network": pl.String,
    "run": pl.String,
    "direction": pl.String,
    "host_memory": pl.String,
    "count": pl.Float64,
    "bytes": pl.Int64,
    "bytes_per_s": pl.Float64,
    "time_ns": pl.Int64,
    "to_first": pl.Float64,
    "per": pl.String,
}
"""The columns of :func:`traceana.comparison.run_tables.transfers`."""


_STUDIES: Final[
    Mapping[
        Name,
        tuple[
            str,
            Callable[[Sequence[Run]], Table],
            Mapping[str, pl.DataType | type[pl.DataType]],
            Callable[[Sequence[Traced]], tuple[str, ...]],
        ],
    ]
] = {
    Name.FRAMEWORKS: (
        "Time of one training step by layer",
        layer_table,
        FRAMEWORKS_SCHEMA,
        to_record,
    ),
    Name.EPILOGUES: (
        "Time of bias additions and activations, by library",
        epilogues,
        EPILOGUES_SCHEMA,
        lambda traced: to_record(traced, "--epilogue separate"),
    ),
    Name.SGEMM: (
        "Single-precision GEMMs by kernel",
        sgemms,
        SGEMM_SCHEMA,
        lambda traced: on_a_gpu(traced, "CPU operators have no precision"),
    ),
    Name.TRANSFERS: (
        "Transfers by direction",
        transfers,
        TRANSFERS_SCHEMA,
        lambda traced: on_a_gpu(traced, "no device copies on a CPU"),
    ),
}
"""The title of each study, the table of its runs, its columns, and what else to record."""


def traced_study(name: Name, traced: Sequence[Traced]) -> Study:
    """Return the table of :mod:`traceana.comparison.run_tables` of the runs of each network.

    ``run`` is the label of :func:`traceana.study.recorded_runs.labels`. ``per`` is ``step`` (means
    over the measured steps) if all runs of the network have steps, else ``recording`` (sums). The
    prefix ``step_`` of columns is removed.
    """
    title, table_of, schema, missing = _STUDIES[name]
    names = labels([one.run for one in traced], lambda run: run.network, _HAVE_COLUMNS)
    by_network: dict[str | None, list[Run]] = {}
    for one, label in zip(traced, names, strict=True):
        by_network.setdefault(one.run.network, []).append(Run(label, one.trace, one.model))
    frames, notes, per = [pl.DataFrame(schema=dict(schema))], [], set()
    for network, runs in by_network.items():
        table = table_of(runs)
        frame = of_basis(table).with_columns(pl.lit(network, pl.String).alias("network"))
        per |= set(frame["per"])
        if name is Name.EPILOGUES:
            frame = frame.filter(pl.col("operation") != OTHER)
        if name is Name.SGEMM:
            libraries = pl.col("library").drop_nulls().unique(maintain_order=True).str.join(", ")
            calls, time = pl.col("calls").sum(), pl.col("time_ns").sum()
            mean = pl.when(calls > 0).then((time / calls).floor())
            frame = frame.group_by(
                "network", "run", "gemm", "form", "per", maintain_order=True
            ).agg(libraries.replace("", None), calls, time, mean.alias("mean_ns"))
        frames.append(conformed(frame, schema))
        notes += [note for note in table.notes if note not in notes]
    if per == {PER_STEP}:
        notes.insert(0, "means over the measured steps")
    return Study(
        name,
        title,
        conditions([one.run for one in traced], timed=False),
        Result(pl.concat(frames), {}, tuple(notes)),
        missing=missing(traced),
    )


def conformed(
    frame: pl.DataFrame, schema: Mapping[str, pl.DataType | type[pl.DataType]]
) -> pl.DataFrame:
    """Return the columns of ``schema`` in its types; columns that ``frame`` lacks are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


def of_basis(table: Table) -> pl.DataFrame:
    """Return the rows of ``table`` with one column per figure, and ``per``, their basis.

    The basis is ``step`` if all runs have steps, else ``recording``. Rows without work in the
    measured steps are left out.
    """
    frame = table.frame
    of_step = {
        name: "time_ns" if name == "step_ns" else name.removeprefix("step_")
        for name in frame.columns
        if name.startswith("step_")
    }
    if table.time == "step_ns":
        frame = frame.drop(set(of_step.values()) & set(frame.columns)).rename(of_step)
        calls = "calls" if "calls" in frame.columns else "count"
        frame = frame.filter(pl.col(calls).ne_missing(0))
        return frame.with_columns(pl.lit(PER_STEP).alias("per"))
    return frame.drop(of_step).with_columns(pl.lit(PER_RECORDING).alias("per"))
