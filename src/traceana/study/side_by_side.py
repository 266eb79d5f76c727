"""What the studies have in common whose rows are a run and an item of its traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.comparison.compared_run import Run
from traceana.comparison.run_tables import Table
from traceana.study.labels import labels
from traceana.study.recorded import Recorded

if TYPE_CHECKING:
    from traceana.describe import Manifest
    from traceana.trace import Trace

PER_STEP: Final = "step"
PER_RECORDING: Final = "recording"
_HAVE_COLUMNS: Final = frozenset({"network"})


@dataclass(frozen=True, slots=True)
class Traced:
    """A run with its trace, and the layer manifest of its model if there is one."""

    run: Recorded
    trace: Trace
    model: Manifest | None = None


def tables(
    traced: Sequence[Traced],
    of: Callable[[Sequence[Run]], Table],
    schema: Mapping[str, pl.DataType | type[pl.DataType]],
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the rows of ``of`` for the runs of each network, as ``schema``, and the notes.

    ``run`` is the label of :func:`traceana.study.labels.labels`. ``per`` says what all figures are
    of: means over the measured ``step`` where all runs of the network mark steps, else the whole
    ``recording``; their names are those without ``step_``. Columns that ``of`` does not give are
    null.
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
        notes.insert(0, "figures are means over the measured steps")
    return frame, tuple(notes)


def conformed(
    frame: pl.DataFrame, schema: Mapping[str, pl.DataType | type[pl.DataType]]
) -> pl.DataFrame:
    """Return the columns of ``schema`` in its types; those that ``frame`` has not are null."""
    return frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


def of_basis(table: Table) -> pl.DataFrame:
    """Return the rows of ``table`` with one column a figure, and ``per``, what all are of.

    That is the ``step`` where all runs mark steps, else the ``recording``.
    """
    frame = table.frame
    of_step = {name: _whole(name) for name in frame.columns if name.startswith("step_")}
    if table.time == "step_ns":
        frame = frame.drop(set(of_step.values()) & set(frame.columns)).rename(of_step)
        return frame.with_columns(pl.lit(PER_STEP).alias("per"))
    return frame.drop(of_step).with_columns(pl.lit(PER_RECORDING).alias("per"))


def _whole(column: str) -> str:
    return "time_ns" if column == "step_ns" else column.removeprefix("step_")
