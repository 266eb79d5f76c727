"""Studies of traces side by side: layers by framework, epilogues, SGEMM and transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.comparison.compared_run import OTHER, Run
from traceana.comparison.run_tables import Table, epilogues, layer_table, sgemms, transfers
from traceana.result import Result
from traceana.study import Name
from traceana.study.recorded_runs import Traced, conditions, labels, on_a_gpu, to_record
from traceana.study.study import Study

if TYPE_CHECKING:
    pass

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


def tables(
    traced: Sequence[Traced],
    of: Callable[[Sequence[Run]], Table],
    schema: Mapping[str, pl.DataType | type[pl.DataType]],
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the rows of ``of`` for the runs of each network, as ``schema``, and the notes.

    ``run`` is the label of :func:`traceana.study.recorded_runs.labels`. ``per`` is ``step`` (means
    over the measured steps) if all runs of the network have steps, else ``recording`` (sums). The
    prefix ``step_`` of columns is removed. Columns that ``of`` does not have are null.
    """
    names = labels([one.run for one in traced], lambda run: run.network, _HAVE_COLUMNS)
    by_network: dict[str | None, list[Run]] = {}
    for one, name in zip(traced, names, strict=True):
        by_network.setdefault(one.run.network, []).append(Run(name, one.trace, one.model))
    frames: list[pl.DataFrame] = []
    notes: list[str] = []
    for network, runs in by_network.items():
        table = of(runs)
        frames.append(of_basis(table).with_columns(pl.lit(network, pl.String).alias("network")))
        notes += [note for note in table.notes if note not in notes]
    frame = pl.concat(
        [pl.DataFrame(schema=dict(schema)), *(conformed(own, schema) for own in frames)]
    )
    if set(frame["per"]) == {PER_STEP}:
        notes.insert(0, "means over the measured steps")
    return frame, tuple(notes)


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

    The basis is ``step`` if all runs have steps, else ``recording``.
    """
    frame = table.frame
    of_step = {name: _whole(name) for name in frame.columns if name.startswith("step_")}
    if table.time == "step_ns":
        frame = frame.drop(set(of_step.values()) & set(frame.columns)).rename(of_step)
        return frame.with_columns(pl.lit(PER_STEP).alias("per"))
    return frame.drop(of_step).with_columns(pl.lit(PER_RECORDING).alias("per"))


def _whole(column: str) -> str:
    return "time_ns" if column == "step_ns" else column.removeprefix("step_")


def frameworks_study(traced: Sequence[Traced]) -> Study:
    """Return the time of each layer in each run; the layers of a network's runs are aligned."""
    frame, notes = tables(traced, layer_table, FRAMEWORKS_SCHEMA)
    return Study(
        Name.FRAMEWORKS,
        "Time of one training step by layer",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=to_record(traced),
    )


def epilogues_study(traced: Sequence[Traced]) -> Study:
    """Return the time of bias additions and activations of each run, by library."""
    frame, notes = tables(traced, epilogues, EPILOGUES_SCHEMA)
    frame = frame.filter(pl.col("operation") != OTHER)
    return Study(
        Name.EPILOGUES,
        "Time of bias additions and activations, by library",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=to_record(traced, "--epilogue separate"),
    )


def sgemm_study(traced: Sequence[Traced]) -> Study:
    """Return the single-precision GEMMs of each run by tile."""
    each, notes = tables(traced, sgemms, SGEMM_SCHEMA)
    libraries = pl.col("library").drop_nulls().unique(maintain_order=True).str.join(", ")
    calls, time = pl.col("calls").sum(), pl.col("time_ns").sum()
    frame = (
        each.group_by("network", "run", "gemm", "form", "per", maintain_order=True)
        .agg(
            libraries.replace("", None).alias("library"),
            calls,
            time,
            pl.when(calls > 0).then((time / calls).floor()).cast(pl.Int64).alias("mean_ns"),
        )
        .select(list(SGEMM_SCHEMA))
    )
    return Study(
        Name.SGEMM,
        "Single-precision GEMMs by kernel",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=on_a_gpu(traced, "CPU operators have no precision"),
    )


def transfers_study(traced: Sequence[Traced]) -> Study:
    """Return the copies of each run by direction and kind of host memory."""
    frame, notes = tables(traced, transfers, TRANSFERS_SCHEMA)
    return Study(
        Name.TRANSFERS,
        "Transfers by direction",
        conditions([one.run for one in traced], timed=False),
        Result(frame, {}, notes),
        missing=on_a_gpu(traced, "no device copies on a CPU"),
    )
