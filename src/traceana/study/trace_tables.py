"""Studies of traces side by side: layers by framework, epilogues, SGEMM and transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.layers import DIRECTIONS
from traceana.comparison import run_columns
from traceana.comparison.columns import WORK
from traceana.comparison.compared_run import OTHER, Run
from traceana.comparison.run_tables import Table, epilogues, layer_table, sgemms, transfers
from traceana.result import Result
from traceana.study import Name
from traceana.study.recorded_runs import Traced, conditions, labels, on_a_gpu, to_record
from traceana.study.study import NETWORK, RUN, Study
from traceana.table import (
    COUNT,
    LIBRARY,
    ONE_CALL,
    SHARE,
    TEXT,
    TIME,
    Column,
    Columns,
    by_name,
    conformed,
    laid_out,
)

PER_STEP: Final = "step"
PER_RECORDING: Final = "recording"
_HAVE_COLUMNS: Final = frozenset({"network"})

_PER: Final = Column(
    "per", TEXT, "`step`: means over the measured steps; `recording`: sums", shown=False
)
_CALLS: Final = Column("calls", COUNT, "number of calls", type=pl.Float64)
_TIME: Final = Column("time_ns", TIME, "summed durations")
_SHARE: Final = Column("share", SHARE, "of all work of the run")
_LAYERS: Final = by_name(run_columns.LAYERS)
FRAMEWORKS: Final = laid_out(
    (
        *(NETWORK, *run_columns.LAYER[:2], RUN),
        *(_LAYERS[name] for name in DIRECTIONS),
        *(_TIME, run_columns.ITEM, *run_columns.LAYER[2:]),
        *(_CALLS, _SHARE, run_columns.TO_FIRST, _PER),
    ),
    hidden="item role path confidence calls share to_first per",
    dropped="type other_ns optimizer_ns",
)
"""One row per run and layer, as in :func:`traceana.comparison.run_tables.layer_table`."""
_OPERATION, _DIRECTION, _HOW, _LIBRARY = run_columns.EPILOGUE
EPILOGUES: Final = laid_out(
    (
        *(NETWORK, _OPERATION, _DIRECTION, RUN),
        *(_TIME, _LIBRARY, _HOW, _CALLS),
        *(_SHARE, run_columns.TO_FIRST, _PER),
    ),
    hidden="share to_first per",
)
"""The columns of :func:`traceana.comparison.run_tables.epilogues`, without the other work."""
_GEMM, _FORM = WORK["gemm"][:2]
SGEMM: Final = laid_out(
    (
        *(NETWORK, _GEMM, _FORM, RUN, _TIME, _CALLS),
        Column("mean_ns", TIME, "time of one call, rounded down", scale=ONE_CALL),
        Column("library", LIBRARY, "libraries of the kernels, comma-separated"),
        _PER,
    ),
    hidden="per",
    dropped="mean_ns library",
)
"""One row per run, tile with layout, and form."""
_COPIES: Final = by_name(run_columns.COPIES)
TRANSFERS: Final = laid_out(
    (
        *(NETWORK, WORK["transfer"][0], RUN),
        replace(_COPIES["count"], type=pl.Float64),
        *(_COPIES[name] for name in ("bytes", "bytes_per_s", "time_ns")),
        *(WORK["transfer"][1], run_columns.TO_FIRST, _PER),
    ),
    hidden="to_first per",
)
"""The columns of :func:`traceana.comparison.run_tables.transfers`."""


_STUDIES: Final[
    Mapping[
        Name,
        tuple[
            str,
            Callable[[Sequence[Run]], Table],
            Columns,
            Callable[[Sequence[Traced]], tuple[str, ...]],
        ],
    ]
] = {
    Name.FRAMEWORKS: (
        "Time of one training step by layer",
        layer_table,
        FRAMEWORKS,
        to_record,
    ),
    Name.EPILOGUES: (
        "Time of bias additions and activations, by library",
        epilogues,
        EPILOGUES,
        lambda traced: to_record(traced, "--epilogue separate"),
    ),
    Name.SGEMM: (
        "Single-precision GEMMs by kernel",
        sgemms,
        SGEMM,
        lambda traced: on_a_gpu(traced, "CPU operators have no precision"),
    ),
    Name.TRANSFERS: (
        "Transfers by direction",
        transfers,
        TRANSFERS,
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
    title, table_of, columns, missing = _STUDIES[name]
    names = labels([recorded.run for recorded in traced], lambda run: run.network, _HAVE_COLUMNS)
    by_network: dict[str | None, list[Run]] = {}
    for recorded, label in zip(traced, names, strict=True):
        by_network.setdefault(recorded.run.network, []).append(
            Run(label, recorded.trace, recorded.model)
        )
    frames, notes, per = [conformed(pl.DataFrame(), columns).clear()], [], set()
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
        frames.append(conformed(frame, columns))
        notes += [note for note in table.notes if note not in notes]
    if per == {PER_STEP}:
        notes.insert(0, "means over the measured steps")
    return Study(
        name,
        title,
        conditions([recorded.run for recorded in traced], timed=False),
        Result(pl.concat(frames), {}, tuple(notes), columns),
        missing=missing(traced),
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
