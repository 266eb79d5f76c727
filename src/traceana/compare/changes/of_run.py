"""Changes of the run as a whole: copies, layouts, launches, idle time, kernels on one side only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from traceana.compare.changes.model import Change, Half
from traceana.compare.judging import Times

_HOST: Final = ("pageable", "pinned", "managed")


def idle(a: Half, b: Half) -> Iterator[Change]:
    """Yield the time in which the devices did nothing."""
    yield Change("idle", _idle(a), _idle(b))


def data_loader(a: Half, b: Half) -> Iterator[Change]:
    """Yield the time that the host spent in the data loader."""
    if a.loading is not None and b.loading is not None:
        yield Change("data_loader", a.loading, b.loading)


def layouts(a: Half, b: Half) -> Iterator[Change]:
    """Yield the transposes and other changes of layout, where their number is another."""
    yield from _counted("layouts", a, b, pl.col("category") == "layout")


def communication(a: Half, b: Half) -> Iterator[Change]:
    """Yield the collectives."""
    change = _of_work("communication", a, b, pl.col("category") == "collective")
    if change.count_a or change.count_b:
        yield change


def launches(a: Half, b: Half) -> Iterator[Change]:
    """Yield the number of kernels a step, where it is another; no time is said of it."""
    chosen = pl.col("kind") == "kernel"
    counts = a.calls(chosen), b.calls(chosen)
    if counts[0] != counts[1]:
        yield Change("launches", _nothing(a), _nothing(b), count_a=counts[0], count_b=counts[1])


def copies(a: Half, b: Half) -> Iterator[Change]:
    """Yield the copies of a direction whose number is another, or whose host memory is."""
    is_copy = pl.col("kind") == "memcpy"
    directions = {kind for half in (a, b) for kind in half.cells.filter(is_copy)["copy_kind"]}
    for direction in sorted(directions, key=str):
        chosen = is_copy & pl.col("copy_kind").eq_missing(pl.lit(direction))
        yield from _counted("copies", a, b, chosen, direction)
        memory = [_memory(half, chosen) for half in (a, b)]
        if None not in memory and memory[0] != memory[1]:
            change = _of_work("host_memory", a, b, chosen, direction)
            yield replace(change, before=memory[0], after=memory[1])


def batches(a: Half, b: Half) -> Iterator[Change]:
    """Yield the batch size, where it is known and another, with the whole step's time."""
    if a.side.batch and b.side.batch and a.side.batch != b.side.batch:
        walls = [half.sample.steps["wall_ns"].to_numpy() for half in (a, b)]
        yield Change("batch", walls[0], walls[1], before=str(a.side.batch), after=str(b.side.batch))


def one_sided(a: Half, b: Half) -> Iterator[Change]:
    """Yield the kernels that run on one side only, by name: their time, and how many names.

    Two libraries without a name in common (of two vendors or frameworks) tell nothing by them.
    """
    kernel = pl.col("kind").is_in(["kernel", "op"])
    names = [set(half.cells.filter(kernel)["name"].drop_nulls()) for half in (a, b)]
    only_a, only_b = names[0] - names[1], names[1] - names[0]
    if names[0] & names[1] and (only_a or only_b):
        yield Change(
            "kernels",
            a.time(kernel & pl.col("name").is_in(only_a)),
            b.time(kernel & pl.col("name").is_in(only_b)),
            count_a=float(len(only_a)),
            count_b=float(len(only_b)),
        )


def compiled(a: Half, b: Half) -> Iterator[Change]:
    """Yield the work of compiled functions, where only one side has any: how many kernels."""
    change = _of_work("compiled", a, b, pl.col("compiled"))
    if bool(change.count_a) != bool(change.count_b):
        yield change


def layers(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers without a partner, on either side.

    ``before`` and ``after`` are ``compiled`` where most time of these is within compiled functions,
    which hold several layers.
    """
    numbered = pairs.with_row_index("pair").filter(pl.col("role") == "layer")
    only_a = numbered.filter(pl.col("b").is_null())["pair"]
    only_b = numbered.filter(pl.col("a").is_null())["pair"]
    if len(only_a) or len(only_b):
        in_a, in_b = (pl.col("pair").is_in(only.implode()) for only in (only_a, only_b))
        yield Change(
            "layers",
            a.time(in_a),
            b.time(in_b),
            before=_mostly_compiled(a, in_a),
            after=_mostly_compiled(b, in_b),
            count_a=float(len(only_a)),
            count_b=float(len(only_b)),
        )


def _mostly_compiled(half: Half, chosen: pl.Expr) -> str | None:
    within = int(half.time(chosen & pl.col("compiled")).sum())
    return "compiled" if 2 * within > int(half.time(chosen).sum()) else None


def _counted(
    kind: str, a: Half, b: Half, chosen: pl.Expr, subject: str | None = None
) -> Iterator[Change]:
    change = _of_work(kind, a, b, chosen, subject)
    if change.count_a != change.count_b:
        yield change


def _of_work(kind: str, a: Half, b: Half, chosen: pl.Expr, subject: str | None = None) -> Change:
    """Return the change of the time and the calls of the work that is ``chosen``."""
    counts = a.calls(chosen), b.calls(chosen)
    return Change(
        kind, a.time(chosen), b.time(chosen), subject, count_a=counts[0], count_b=counts[1]
    )


def _memory(half: Half, chosen: pl.Expr) -> str | None:
    """Return the kind of host memory that most of the copied bytes are in."""
    rows = (
        half.cells.filter(chosen & pl.col("host_memory").is_in(_HOST))
        .group_by("host_memory")
        .agg(pl.col("bytes").sum())
        .sort("bytes", "host_memory", descending=[True, False])
    )
    return str(rows["host_memory"][0]) if rows.height else None


def _idle(half: Half) -> Times:
    steps = half.sample.steps
    return np.asarray((steps["available_ns"] - steps["busy_ns"]).to_numpy(), dtype=np.int64)


def _nothing(half: Half) -> Times:
    return np.zeros(half.sample.count, dtype=np.int64)
