"""What both studies of convolution algorithms are told, and on what it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from traceana.algorithms import AlgorithmStudy
from traceana.study.conditions import conditions
from traceana.study.labels import labels
from traceana.study.side_by_side import Traced

HAVE_COLUMNS: Final = frozenset({"network", "batch"})
DIRECTIONS: Final = ("fprop", "forward", "dgrad", "wgrad", "backward")
"""In the order in which they are shown; what is not told comes last."""
_MEASURE: Final = "python -m workloads.algorithms --network alexnet --batch 1,2,4,8,16 --out FILE"


def direction_order() -> pl.Expr:
    """Return the place of ``direction`` in :data:`DIRECTIONS`."""
    places = {direction: place for place, direction in enumerate(DIRECTIONS)}
    return pl.col("direction").replace_strict(
        places, default=len(DIRECTIONS), return_dtype=pl.Int64
    )


def names(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> list[str]:
    """Return the names of all sources: libraries whose algorithms were timed, then runs.

    Two timings of one library are numbered.
    """
    libraries: list[str] = []
    ways = {(one.precision, one.layout) for one in measured}
    for one in measured:
        name = f"{one.library} {one.library_version}"
        name += f", {one.precision}, {one.layout}" if len(ways) > 1 else ""
        libraries.append(name if name not in libraries else f"{name} ({len(libraries) + 1})")
    runs = [one.run for one in traced]
    return [*libraries, *labels(runs, lambda run: (run.network, run.batch), HAVE_COLUMNS)]


def on(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> tuple[str, ...]:
    """Return on what the sources were measured, a line each."""
    lines = []
    for one in measured:
        count = one.device.threads
        threads = "" if count is None else f" ({_counted(count, 'thread')})"
        lines.append(
            f"{one.network}, {one.device.name}{threads}, {one.library} {one.library_version}, "
            f"{one.precision}: each algorithm alone, medians, "
            f"{_counted(one.warm_up, 'run')} of warm-up"
        )
    runs = [one.run for one in traced]
    return (*dict.fromkeys(lines), *conditions(runs, timed=False))


def notes(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> list[str]:
    """Return what a reader of the figures has to know."""
    found = [f"{one.network}: not all was measured: {one.ended}" for one in measured if one.ended]
    if traced:
        found.append(
            "of recorded runs: the kernels of convolutions by the algorithm that their names tell, "
            "a step; workspaces are not in them"
        )
    return found


def to_measure(measured: Sequence[AlgorithmStudy], traced: Sequence[Traced]) -> tuple[str, ...]:
    """Return what to record where there is nothing, or only what a framework chose."""
    if measured:
        return ()
    if traced:
        return (f"a run shows the algorithms that were chosen; all that there are: {_MEASURE}",)
    return (f"to fill this study: {_MEASURE}",)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
