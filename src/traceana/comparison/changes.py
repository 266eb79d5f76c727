"""All changes in one table, most effect on the step first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.intervals import union
from traceana.analyze.steps import measured_steps
from traceana.comparison import layer_changes
from traceana.comparison.diff_rows import doubtful
from traceana.comparison.layer_changes import Change, Half
from traceana.comparison.verdicts import SCHEMA, Criteria, Series, Step, Things, Times, step_times
from traceana.enrich.layers.roles import role_of

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "change": pl.String,
    "subject": pl.String,
    "before": pl.String,
    "after": pl.String,
    "count_a": pl.Float64,
    "count_b": pl.Float64,
    "layers": pl.Int64,
    "layer_a": pl.String,
    "layer_b": pl.String,
}

_FIGURES: Final = (
    *("time_a_ns", "time_b_ns", "delta_ns", "low_ns", "high_ns", "of_step", "p", "verdict"),
)
_OF_STEP: Final = ("idle", "data_loader")
_TIME_ALONE: Final = ("idle", "data_loader", "communication")
"""These are there in every run, so they are a change only by their time."""

_HOST: Final = ("pageable", "pinned", "managed")


def found_changes(a: Half, b: Half, pairs: pl.DataFrame) -> list[Change]:
    """Return what may be another on both sides, in no order."""
    return list(_all(a, b, pairs))


def things(found: Sequence[Change], a: Half, b: Half) -> Things:
    """Return the times of the changes in each step, as they are judged."""
    of_step = np.array([one.kind in _OF_STEP for one in found], dtype=bool)
    sides = [([one.a for one in found], a), ([one.b for one in found], b)]
    all_a, all_b = (_series(times, half.sample.count) for times, half in sides)
    return Things(all_a, all_b, of_step)


def changes(
    found: Sequence[Change],
    figures: pl.DataFrame,
    steps: tuple[Half, Half],
    step: Step,
    criteria: Criteria,
) -> pl.DataFrame:
    """Return one row a change: :data:`COLUMNS`, times, ``of_step``, ``p``, ``verdict``, ``least``.

    ``figures`` are what :func:`traceana.comparison.verdicts.judged` says of :func:`things`; another
    batch is the whole step, and has the verdict of its mean. Changes are views of the same work
    from different sides (an algorithm switches *and* its kernels are on one side only), so their
    times do not add up. What is neither another in kind nor differs in time for real is left out.
    ``least`` tells that the effect on the step is below the least effect; those come last.
    """
    if not found:
        return pl.DataFrame(schema={**COLUMNS, **_figures(), "least": pl.Boolean})
    named = pl.DataFrame(
        [[getattr(one, column) for column in ("kind", *list(COLUMNS)[1:])] for one in found],
        schema=COLUMNS,
        orient="row",
    )
    rows = _of_batch(named.hstack(figures.select(_FIGURES)), step)
    smallest = criteria.least(*step_times(*(half.sample for half in steps)))
    counts = pl.col("count_b") - pl.col("count_a")
    fewer = criteria.minimum_effect * pl.min_horizontal("count_a", "count_b")
    least = (
        pl.when(pl.col("change") == "launches")
        .then(counts.abs() < fewer)
        .otherwise((pl.col("delta_ns").abs() < smallest) & (pl.col("change") != "batch"))
    )
    told = rows.with_columns(least.alias("least"))
    by_time = pl.col("change").is_in(_TIME_ALONE)
    return (
        told.filter(~by_time | (~pl.col("least") & (pl.col("verdict") != "same")))
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort(
            *("least", "_size", "change", "subject", "before", "after"),
            descending=[False, True, False, False, False, False],
            nulls_last=True,
        )
        .drop("_size")
    )


def _series(times: Sequence[Times], steps: int) -> Series:
    together = np.column_stack([np.zeros((steps, 0), dtype=np.int64), *times])
    return Series(together, np.ones_like(together))


def _of_batch(rows: pl.DataFrame, step: Step) -> pl.DataFrame:
    mean = step.mean
    bounds = (None, None) if mean.interval is None else (mean.interval.low, mean.interval.high)
    told = {
        "low_ns": None if bounds[0] is None else round(bounds[0]),
        "high_ns": None if bounds[1] is None else round(bounds[1]),
        "p": mean.p,
        "verdict": mean.verdict,
    }
    batch = pl.col("change") == "batch"
    return rows.with_columns(
        pl.when(batch).then(pl.lit(value, SCHEMA[name])).otherwise(name).alias(name)
        for name, value in told.items()
    )


def _sure(a: Half, b: Half, pairs: pl.DataFrame) -> tuple[Half, Half, pl.DataFrame]:
    """Return both sides and the pairs without what is told of doubtful pairs of layers."""
    numbered = pairs.with_row_index("pair")
    unsure = numbered.filter(doubtful())["pair"].implode()
    halves = [
        replace(
            half,
            cells=half.cells.with_columns(
                pl.when(~pl.col("pair").is_in(unsure)).then("pair").alias("pair")
            ),
        )
        for half in (a, b)
    ]
    told = [f"{what}_{side}" for what in ("shape", "weight", "memory_format") for side in "ab"]
    sure = pairs.with_columns(pl.when(~doubtful()).then(one).alias(one) for one in told)
    return halves[0], halves[1], sure


def _all(a: Half, b: Half, pairs: pl.DataFrame) -> Iterator[Change]:
    yield from batches(a, b)
    yield from idle(a, b)
    yield from data_loader(a, b)
    yield from communication(a, b)
    yield from copies(a, b)
    yield from layouts(a, b)
    yield from launches(a, b)
    yield from one_sided(a, b)
    yield from compiled(a, b)
    yield from layers(a, b, pairs)
    a, b, pairs = _sure(a, b, pairs)
    yield from layer_changes.algorithms(a, b, pairs)
    yield from layer_changes.biases(a, b, pairs)
    yield from layer_changes.shapes(a, b, pairs)
    yield from layer_changes.memory_formats(a, b, pairs)
    yield from layer_changes.precisions(a, b, pairs)


def _figures() -> dict[str, pl.DataType | type[pl.DataType]]:
    return {name: SCHEMA[name] for name in _FIGURES}


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


def loading(trace: Trace, numbers: pl.Series) -> npt.NDArray[np.int64] | None:
    """Return the union of the data loader's ranges within each step (ns), null without any.

    ``numbers`` are those of the steps that are compared; of several processes the times add up.
    """
    texts = pl.col("text").cast(pl.String)
    ranges = trace.ranges.filter(
        (role_of(texts) == "data") & pl.col("kind").is_in(["annotation", "nvtx"])
    )
    if ranges.is_empty() or trace.steps.is_empty():
        return None
    at = dict(zip(numbers, range(len(numbers)), strict=True))
    found = np.zeros(len(numbers), dtype=np.int64)
    chosen = trace.steps[measured_steps(trace).rows]
    for process, steps in chosen.group_by("process", maintain_order=True):
        own = ranges.filter(pl.col("process").eq_missing(pl.lit(process[0], pl.Int64)))
        starts = own["start"].to_numpy()
        begins, ends = union(starts, starts + own["duration"].to_numpy())
        for number, start, duration in steps.select("number", "start", "duration").iter_rows():
            inside = np.minimum(ends, start + duration) - np.maximum(begins, start)
            if number in at:
                found[at[number]] += int(np.maximum(inside, 0).sum())
    return found
