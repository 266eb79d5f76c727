"""The work of several runs by class, algorithm or kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import polars as pl

from traceana.compare.keys import KEYS, OTHER, Kind, keyed
from traceana.compare.many.run import Run
from traceana.compare.many.table import Table, table
from traceana.result import with_share

_WHOLE: Final = "figures are of whole recordings"


def classes(runs: Sequence[Run]) -> Table:
    """Return all work by category and part, as ``report`` has them."""
    return work(runs, "class")


def algorithms(runs: Sequence[Run]) -> Table:
    """Return all work by category, and of convolutions by algorithm and pass."""
    return work(runs, "algorithm")


def kernels(runs: Sequence[Run]) -> Table:
    """Return all work by the name of the kernel."""
    return work(runs, "kernel")


def work(runs: Sequence[Run], by: Kind, notes: Sequence[str] = ()) -> Table:
    """Return all work by the columns :data:`traceana.compare.keys.KEYS` of ``by``.

    Columns: those of :func:`added`, then ``to_first``. The rows of a run add up to all its work.
    """
    keys = KEYS[by]
    parts = [(run.label, added(run, keys, lambda cells: keyed(cells, by))) for run in runs]
    time, calls = basis(runs)
    return table(
        parts,
        keys,
        (time, calls),
        time,
        ratios=comparable(runs),
        last=[OTHER],
        notes=[*unmarked(runs), *notes],
    )


def added(
    run: Run, keys: Sequence[str], prepared: Callable[[pl.DataFrame], pl.DataFrame]
) -> pl.DataFrame:
    """Return the work of ``run`` by ``keys``, columns of its cells when they are ``prepared``.

    Columns: ``keys``, ``calls`` and ``time_ns`` (of the whole recording), ``step_calls`` and
    ``step_ns`` (means over the measured steps, time rounded down; null where no step is marked),
    ``share`` (of all work of the recording). Most time first.
    """
    figures = [pl.col("calls", "time_ns").sum()]
    frame = prepared(run.whole.cells).group_by(keys).agg(figures)
    if run.measured.marked:
        steps = run.measured.count
        own = prepared(run.measured.cells).group_by(keys).agg(figures)
        means = own.select(
            *keys,
            (pl.col("calls") / steps).alias("step_calls"),
            (pl.col("time_ns") // steps).alias("step_ns"),
        )
        frame = frame.join(means, on=keys, how="left", nulls_equal=True)
        frame = frame.with_columns(pl.col("step_calls", "step_ns").fill_null(0))
    else:
        frame = frame.with_columns(
            pl.lit(None, pl.Float64).alias("step_calls"), pl.lit(None, pl.Int64).alias("step_ns")
        )
    return with_share(frame).sort(
        ["time_ns", *keys], descending=[True, *(False for _ in keys)], nulls_last=True
    )


def marked(runs: Sequence[Run]) -> bool:
    """Tell whether all runs mark steps; else they are compared as a whole."""
    return all(run.measured.marked for run in runs)


def basis(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the columns of time and calls in which ``runs`` can be compared."""
    return ("step_ns", "step_calls") if marked(runs) else ("time_ns", "calls")


def comparable(runs: Sequence[Run]) -> bool:
    """Tell whether ratios of :func:`basis` compare like with like.

    Steps are, and recordings without steps that hold as many kernels: others may hold more or fewer
    iterations.
    """
    if marked(runs):
        return True
    return not any(run.measured.marked for run in runs) and len(set(_kernels(runs))) == 1


def _kernels(runs: Sequence[Run]) -> list[int]:
    kernel = pl.col("kind").is_in(["kernel", "op", "graph"])
    return [int(run.whole.cells.filter(kernel)["calls"].sum()) for run in runs]


def unmarked(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return what has to be said of runs without steps."""
    without = [run.label for run in runs if not run.measured.marked]
    if not without:
        return ()
    if len(without) < len(runs):
        verb = "marks" if len(without) == 1 else "mark"
        return (f"{', '.join(without)} {verb} no steps: {_WHOLE}, without ratios",)
    if comparable(runs):
        return (f"no run marks steps: {_WHOLE}, which hold as many kernels each",)
    counts = ", ".join(f"{count:,}" for count in _kernels(runs))
    return (f"no run marks steps: {_WHOLE}, without ratios: they hold {counts} kernels",)
