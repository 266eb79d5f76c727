"""The changes between two runs, largest effect on the step first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from traceana.comparison.diff_rows import PairedRun, low_confidence
from traceana.comparison.layer_features import modules_of, plain_name
from traceana.comparison.verdicts import (
    SCHEMA,
    Criteria,
    RowPairs,
    RowTimes,
    Step,
    Times,
    step_times,
)
from traceana.settings import RUN_TO_RUN_HOST
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import CAUSES, within

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
_OF_STEP: Final = ("idle",)
_TIME_ALONE: Final = ("idle", "communication", "copies")
"""Kinds of changes that are in every run: their time can change alone."""
_CERTAIN: Final = ("faster", "slower")

_KERNELS: Final = pl.col("kind").is_in(["kernel", "op"])
"""Kernels, and operators where the device is the CPU."""

_HOST: Final = ("pageable", "pinned", "managed")


def found_changes(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> list[Change]:
    """Return the changes from ``a`` to ``b`` before any test, first of the run, then of layers."""
    return [*_of_run(a, b, pairs), *_inside_layers(*_confident(a, b, pairs))]


def _of_run(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    yield from batches(a, b)
    yield from idle(a, b)
    yield from communication(a, b)
    yield from copies(a, b)
    yield from layouts(a, b)
    yield from launches(a, b)
    yield from one_sided(a, b, pairs)
    yield from calls(a, b, pairs)
    yield from compiled(a, b)
    yield from layers(a, b, pairs)


def _inside_layers(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    yield from algorithms(a, b, pairs)
    yield from biases(a, b, pairs)
    yield from shapes(a, b, pairs)
    yield from memory_formats(a, b, pairs)
    yield from precisions(a, b, pairs)


def _confident(
    a: PairedRun, b: PairedRun, pairs: pl.DataFrame
) -> tuple[PairedRun, PairedRun, pl.DataFrame]:
    """Return both runs and the pairs, without pairs below the minimum match confidence."""
    numbered = pairs.with_row_index("pair")
    below = numbered.filter(low_confidence())["pair"].implode()
    runs = [
        replace(
            run,
            cells=run.cells.with_columns(
                pl.when(~pl.col("pair").is_in(below)).then("pair").alias("pair")
            ),
        )
        for run in (a, b)
    ]
    columns = [f"{what}_{side}" for what in ("shape", "weight", "memory_format") for side in "ab"]
    confident = pairs.with_columns(
        pl.when(~low_confidence()).then(one).alias(one) for one in columns
    )
    return runs[0], runs[1], confident


def change_times(found: Sequence[Change], a: PairedRun, b: PairedRun) -> RowPairs:
    """Return the times of the changes in each step, to be tested like rows."""
    of_step = np.array([one.kind in _OF_STEP for one in found], dtype=bool)
    sides = [([one.a for one in found], a), ([one.b for one in found], b)]
    all_a, all_b = (_series(times, run.steps.count) for times, run in sides)
    return RowPairs(all_a, all_b, of_step)


def change_table(
    found: Sequence[Change],
    figures: pl.DataFrame,
    runs: tuple[PairedRun, PairedRun],
    step: Step,
    criteria: Criteria,
) -> pl.DataFrame:
    """Return one row per change: :data:`COLUMNS`, :data:`_FIGURES` and ``least``.

    ``figures`` are those of :func:`traceana.comparison.verdicts.verdict_tables` for
    :func:`change_times`; a changed batch size affects the whole step and has the verdict of its
    mean. Changes overlap (an algorithm changes *and* its kernels are in one run only), so their
    times do not add up. Idle time, communication and as many copies as before are left out unless
    their time changed.
    ``least`` is True for effects below the minimum relative change of the step; those come last.
    """
    if not found:
        return pl.DataFrame(schema={**COLUMNS, **_figures(), "least": pl.Boolean})
    named = pl.DataFrame(
        [[getattr(one, column) for column in ("kind", *list(COLUMNS)[1:])] for one in found],
        schema=COLUMNS,
        orient="row",
    )
    rows = _of_batch(named.hstack(figures.select(_FIGURES)), step)
    smallest = criteria.least(*step_times(*(run.steps for run in runs)))
    counts = pl.col("count_b") - pl.col("count_a")
    fewer = criteria.minimum_effect * pl.min_horizontal("count_a", "count_b")
    least = (
        pl.when(pl.col("change") == "launches")
        .then(counts.abs() < fewer)
        .otherwise((pl.col("delta_ns").abs() < smallest) & (pl.col("change") != "batch"))
    )
    marked = rows.with_columns(least.alias("least"))
    by_time = pl.col("change").is_in(_TIME_ALONE) & (
        (pl.col("change") != "copies") | (pl.col("count_a") == pl.col("count_b"))
    )
    verdict = pl.col("verdict")
    changed = pl.when("least").then(verdict.is_in(_CERTAIN)).otherwise(verdict != "same")
    return (
        marked.filter(~by_time | changed)
        .with_columns(pl.col("delta_ns").abs().alias("_size"))
        .sort(
            *("least", "_size", "change", "subject", "before", "after"),
            descending=[False, True, False, False, False, False],
            nulls_last=True,
        )
        .drop("_size")
    )


def idle_table(found: Sequence[Change], figures: pl.DataFrame) -> pl.DataFrame:
    """Return ``cause`` and the figures of the idle time of both runs, largest change first.

    ``found`` and ``figures`` are those of :func:`change_table`. Every cause of either run has a
    row, also where its time is the same.
    """
    causes = pl.Series("cause", [one.subject for one in found], dtype=pl.String)
    rows = figures.select(_FIGURES).insert_column(0, causes)
    of_idle = pl.Series([one.kind == "idle" for one in found], dtype=pl.Boolean)
    return rows.filter(of_idle).sort(
        pl.col("delta_ns").abs(), "cause", descending=[True, False], nulls_last=True
    )


def _series(spent: Sequence[Spent], steps: int) -> RowTimes:
    times = (one.times for one in spent)
    together = np.column_stack([np.zeros((steps, 0), dtype=np.int64), *times])
    spread = np.array([one.spread for one in spent], dtype=np.float64)
    return RowTimes(together, np.ones_like(together), spread)


def _of_batch(rows: pl.DataFrame, step: Step) -> pl.DataFrame:
    mean = step.mean
    bounds = (None, None) if mean.interval is None else (mean.interval.low, mean.interval.high)
    verdict = {
        "low_ns": None if bounds[0] is None else round(bounds[0]),
        "high_ns": None if bounds[1] is None else round(bounds[1]),
        "p": mean.p,
        "verdict": mean.verdict,
    }
    batch = pl.col("change") == "batch"
    return rows.with_columns(
        pl.when(batch).then(pl.lit(value, SCHEMA[name])).otherwise(name).alias(name)
        for name, value in verdict.items()
    )


def _figures() -> dict[str, pl.DataType | type[pl.DataType]]:
    return {name: SCHEMA[name] for name in _FIGURES}


def idle(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the idle time of the devices by cause; the causes add up to the idle time."""
    before, after = _idle(a), _idle(b)
    for cause in CAUSES:
        if cause in before or cause in after:
            times_a, times_b = before.get(cause, _nothing(a)), after.get(cause, _nothing(b))
            yield Change("idle", times_a, times_b, cause)


def layouts(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the layout conversions (such as transposes) where their number changed."""
    yield from _counted("layouts", a, b, pl.col("category") == "layout")


def communication(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the collectives."""
    change = _of_work("communication", a, b, pl.col("category") == "collective")
    if change.count_a or change.count_b:
        yield change


def launches(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the number of kernels per step where it changed; it has no time."""
    chosen = pl.col("kind") == "kernel"
    counts = calls_of(a, chosen), calls_of(b, chosen)
    if counts[0] != counts[1]:
        yield Change("launches", _nothing(a), _nothing(b), count_a=counts[0], count_b=counts[1])


def copies(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the copies of each direction, and a change of most of their host memory."""
    is_copy = pl.col("kind") == "memcpy"
    directions = {kind for run in (a, b) for kind in run.cells.filter(is_copy)["copy_kind"]}
    for direction in sorted(directions, key=str):
        chosen = is_copy & pl.col("copy_kind").eq_missing(pl.lit(direction))
        yield _of_work("copies", a, b, chosen, direction)
        memory = [_memory(run, chosen) for run in (a, b)]
        if None not in memory and memory[0] != memory[1]:
            change = _of_work("host_memory", a, b, chosen, direction)
            yield replace(change, before=memory[0], after=memory[1])


def batches(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the batch size where it is known and changed, with the time of the whole step."""
    if a.layers.batch and b.layers.batch and a.layers.batch != b.layers.batch:
        walls = [Spent(run.steps.frame["wall_ns"].to_numpy()) for run in (a, b)]
        yield Change(
            "batch", walls[0], walls[1], before=str(a.layers.batch), after=str(b.layers.batch)
        )


def one_sided(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the kernels of only one run, by name: the number of names, by class, and the time.

    The class is the category, and the time that of all its kernels, for work moves between kernels
    of one run and those of both. Where no layers are paired, which would have the change of an
    algorithm, the class is also the part of it, and the time that of the kernels of one run. Runs
    without a common kernel name (two vendors or frameworks) are not compared by names.
    """
    names = _kernel_names(a), _kernel_names(b)
    if not names[0] & names[1]:
        return
    paired = _paired_layers(pairs)
    keys = ["category"] if paired else ["category", "part"]
    only = [
        run.cells.filter(_KERNELS, ~pl.col("name").is_in(list(other)))
        for run, other in ((a, names[1]), (b, names[0]))
    ]
    for subject, of_class in _classes(only, keys):
        (own_a, own_b) = (one.filter(of_class)["name"].unique() for one in only)
        whole = _KERNELS & of_class
        yield Change(
            "kernels",
            time_of(a, whole if paired else whole & pl.col("name").is_in(own_a.implode())),
            time_of(b, whole if paired else whole & pl.col("name").is_in(own_b.implode())),
            subject,
            count_a=float(len(own_a)),
            count_b=float(len(own_b)),
        )


def calls(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the classes whose number of calls changed, of kernels that both runs have.

    Only where no layers are paired, which would have the change; layout conversions and collectives
    have changes of their own.
    """
    if _paired_layers(pairs):
        return
    both = _KERNELS & pl.col("name").is_in(list(_kernel_names(a) & _kernel_names(b)))
    both &= ~pl.col("category").is_in(["layout", "collective"])
    cells = [run.cells.filter(both) for run in (a, b)]
    for subject, of_class in _classes(cells, ["category", "part"]):
        yield from _counted("calls", a, b, both & of_class, subject)


def _paired_layers(pairs: pl.DataFrame) -> bool:
    both = pl.col("a").is_not_null() & pl.col("b").is_not_null()
    return not pairs.filter(pl.col("role") == "layer", both).is_empty()


def _kernel_names(run: PairedRun) -> set[str]:
    return set(run.cells.filter(_KERNELS)["name"].drop_nulls())


def _classes(cells: Sequence[pl.DataFrame], keys: Sequence[str]) -> Iterator[tuple[str, pl.Expr]]:
    """Yield each class in ``cells``, as ``category: part``, and what chooses its cells."""
    found = pl.concat(one.select(keys) for one in cells).unique().sort(keys)
    for values in found.iter_rows():
        chosen = pl.all_horizontal(
            pl.col(key).eq_missing(pl.lit(value)) for key, value in zip(keys, values, strict=True)
        )
        yield ": ".join(str(value) for value in values if value is not None), chosen


def compiled(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the work of compiled functions where only one run has compiled functions."""
    change = _of_work("compiled", a, b, pl.col("compiled"))
    if bool(change.count_a) != bool(change.count_b):
        yield change


def layers(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers without a match in the other run, which has them inside no module.

    ``before`` and ``after`` are ``compiled`` where most of their time is within compiled functions,
    which contain several layers.
    """
    numbered = pairs.with_row_index("pair").filter(pl.col("role") == "layer")
    alone_a = dict(numbered.filter(pl.col("b").is_null()).select("pair", "a").iter_rows())
    alone_b = dict(numbered.filter(pl.col("a").is_null()).select("pair", "b").iter_rows())
    inside = _inside(alone_a, alone_b) | _inside(alone_b, alone_a)
    only_a, only_b = (
        pl.Series(sorted(alone.keys() - inside), dtype=pl.UInt32) for alone in (alone_a, alone_b)
    )
    if len(only_a) or len(only_b):
        in_a, in_b = (pl.col("pair").is_in(only.implode()) for only in (only_a, only_b))
        yield Change(
            "layers",
            time_of(a, in_a),
            time_of(b, in_b),
            before=_mostly_compiled(a, in_a),
            after=_mostly_compiled(b, in_b),
            count_a=float(len(only_a)),
            count_b=float(len(only_b)),
        )


def _inside(layers: Mapping[int, str], others: Mapping[int, str]) -> set[int]:
    """Return the rows of ``layers`` in a module that is a row of ``others``, and of that module.

    A framework names a layer that another runs as a function of the module around it.
    """
    module = {plain_name(label): row for row, label in others.items()}
    found = {
        (row, module[plain_name(around)])
        for row, label in layers.items()
        for around in modules_of(label)
        if plain_name(around) in module
    }
    return {row for pair in found for row in pair}


def _mostly_compiled(run: PairedRun, chosen: pl.Expr) -> str | None:
    within = int(time_of(run, chosen & pl.col("compiled")).times.sum())
    return "compiled" if 2 * within > int(time_of(run, chosen).times.sum()) else None


def _counted(
    kind: str, a: PairedRun, b: PairedRun, chosen: pl.Expr, subject: str | None = None
) -> Iterator[Change]:
    change = _of_work(kind, a, b, chosen, subject)
    if change.count_a != change.count_b:
        yield change


def _of_work(
    kind: str, a: PairedRun, b: PairedRun, chosen: pl.Expr, subject: str | None = None
) -> Change:
    """Return the change of the time and the calls of the ``chosen`` work."""
    counts = calls_of(a, chosen), calls_of(b, chosen)
    return Change(
        kind, time_of(a, chosen), time_of(b, chosen), subject, count_a=counts[0], count_b=counts[1]
    )


def _memory(run: PairedRun, chosen: pl.Expr) -> str | None:
    """Return the kind of host memory with most of the copied bytes."""
    rows = (
        run.cells.filter(chosen & pl.col("host_memory").is_in(_HOST))
        .group_by("host_memory")
        .agg(pl.col("bytes").sum())
        .sort("bytes", "host_memory", descending=[True, False])
    )
    return str(rows["host_memory"][0]) if rows.height else None


def _idle(run: PairedRun) -> dict[str, Spent]:
    """Return the idle time of each step by cause, added up over the devices (ns)."""
    trace, numbers = run.run.trace, run.steps.frame["number"]
    found = idle_time(trace)
    windows = found.measured if run.steps.marked else found.windows
    parts = within(found.gaps, windows)
    if run.steps.marked:
        at = dict(zip(numbers, range(len(numbers)), strict=True))
        number = trace.tables.steps["number"].gather(windows["step"]).gather(parts["window"])
        step = number.replace_strict(at, return_dtype=pl.Int64)
    else:
        step = pl.zeros(parts.height, pl.Int64, eager=True)
    cause = found.gaps["cause"].cast(pl.String).gather(parts["gap"])
    sums = pl.DataFrame({"step": step, "cause": cause, "time_ns": parts["time_ns"]})
    each = {}
    for name, rows in sums.group_by("cause"):
        times = np.zeros(run.steps.count, dtype=np.int64)
        np.add.at(times, rows["step"].to_numpy(), rows["time_ns"].to_numpy())
        each[str(name[0])] = Spent(times, RUN_TO_RUN_HOST * float(times.mean()))
    return each


def _nothing(run: PairedRun) -> Spent:
    return Spent(np.zeros(run.steps.count, dtype=np.int64))


_PRODUCTS: Final = ("conv", "gemm")
_UNKNOWN: Final = ("unknown", "(unknown)")


class Spent(msgspec.Struct, frozen=True):
    """Time in each step of a run, and the standard deviation of its mean between runs (ns)."""

    times: Times
    spread: float = 0.0


class Change(msgspec.Struct, frozen=True):
    """One change: its ``kind`` (see ``docs/diff.md``), and its layer or subject.

    ``before`` and ``after`` are the values in baseline and candidate; ``layers`` is the number of
    pairs of layers that changed, ``layer_a`` and ``layer_b`` the pair whose time changed most.
    ``a`` and ``b`` are the time of the affected work in each step of either run (ns).
    """

    kind: str
    a: Spent
    b: Spent
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    count_a: float | None = None
    count_b: float | None = None
    layers: int | None = None
    layer_a: str | None = None
    layer_b: str | None = None


def time_of(run: PairedRun, chosen: pl.Expr) -> Spent:
    """Return the time of the ``chosen`` cells of ``run``."""
    rows = run.cells.filter(chosen)
    times = np.zeros(run.steps.count, dtype=np.int64)
    np.add.at(times, rows["step"].cast(pl.Int64).to_numpy(), rows["time_ns"].to_numpy())
    return Spent(times, float(rows["spread_ns"].sum()) / run.steps.count)


def calls_of(run: PairedRun, chosen: pl.Expr) -> float:
    """Return the mean number of calls per step of the ``chosen`` cells of ``run``."""
    return int(run.cells.filter(chosen)["calls"].sum()) / run.steps.count


def algorithms(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions whose main algorithm of a pass changed: one change per switch."""
    conv = (pl.col("category") == "conv") & ~pl.col("part").is_in(_UNKNOWN)
    main = [_main(run, conv, "pass", "part") for run in (a, b)]
    both = main[0].join(main[1], on=["pair", "pass"], suffix="_b", nulls_equal=True)
    switched = both.filter(pl.col("part") != pl.col("part_b")).sort("pass", "part", "part_b")
    keys = switched.select("pass", "part", "part_b").rows()
    rows = switched["pair"].to_list()
    for key, group in groupby(zip(keys, rows, strict=True), key=lambda entry: entry[0]):
        of = [row for _, row in group]
        direction, before, after = key
        chosen = (
            pl.col("pair").is_in(of)
            & (pl.col("category") == "conv")
            & (pl.col("pass").cast(pl.String).eq_missing(pl.lit(direction)))
        )
        yield _of_layers("algorithm", a, b, pairs, of, chosen, direction, before, after)


def biases(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions and GEMMs whose bias is a separate kernel in one run only."""
    product = pl.col("category").is_in(_PRODUCTS)
    apart = pl.col("category") == "bias"
    own = [set(run.cells.filter(apart)["pair"].drop_nulls()) for run in (a, b)]
    products = [set(run.cells.filter(product)["pair"].drop_nulls()) for run in (a, b)]
    shared = products[0] & products[1]
    for kind, of in (
        ("bias_apart", (own[1] - own[0]) & shared),
        ("bias_fused", (own[0] - own[1]) & shared),
    ):
        if of:
            yield _of_layers(kind, a, b, pairs, sorted(of), pl.col("pair").is_in(of) & apart)


def shapes(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input or weight shape changed: one change per pair of shapes."""
    for kind in ("shape", "weight"):
        yield from _other(kind, a, b, pairs)


def memory_formats(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the layers whose input changed its memory format: one change per pair of formats.

    Without recorded strides the format follows from the layer's kernels: the input of a convolution
    in NHWC is ``channels_last`` if no kernel of the layer transposes it, else ``contiguous``.
    """
    rows = pairs.with_row_index("pair")
    for column, run in (("a", a), ("b", b)):
        rows = rows.join(_formats_by_kernels(run), on="pair", how="left", maintain_order="left")
        known = pl.coalesce(f"memory_format_{column}", "format")
        rows = rows.with_columns(known.alias(f"memory_format_{column}")).drop("format")
    yield from _other("memory_format", a, b, rows.drop("pair"))


def _formats_by_kernels(run: PairedRun) -> pl.DataFrame:
    """Return ``pair`` and ``format`` where the names of convolution kernels imply the format."""
    name, conv = pl.col("name").str.to_lowercase(), pl.col("category") == "conv"
    turned = (pl.col("category") == "layout") & (pl.col("function") == "nchw_to_nhwc")
    last, first = ((conv & name.str.contains(one, literal=True)).any() for one in ("nhwc", "nchw"))
    format_ = (
        pl.when(last & first)
        .then(None)
        .when(last & ~turned.any())
        .then(pl.lit("channels_last"))
        .when(last | first)
        .then(pl.lit("contiguous"))
    )
    return (
        run.cells.filter(
            pl.col("pair").is_not_null()
            & (pl.col("role") == "layer")
            & ~pl.col("direction").is_in(["backward", "optimizer"]).fill_null(value=False)
        )
        .group_by("pair")
        .agg(format_.alias("format"))
        .drop_nulls()
    )


def _other(kind: str, a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the pairs whose columns ``kind`` differ: one change per pair of values."""
    columns = f"{kind}_a", f"{kind}_b"
    other = (
        pairs.with_row_index("pair")
        .filter(pl.col(columns[0]) != pl.col(columns[1]))
        .sort(*columns, "pair")
    )
    for (before, after), rows in other.group_by(*columns, maintain_order=True):
        of = rows["pair"].to_list()
        chosen = pl.col("pair").is_in(of)
        yield _of_layers(kind, a, b, pairs, of, chosen, None, str(before), str(after))


def precisions(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield the convolutions and GEMMs whose main precision or use of tensor cores changed."""
    product = pl.col("category").is_in(_PRODUCTS)
    changed: set[tuple[int, str]] = set()
    for kind, column in (("precision", "precision"), ("tensor_cores", "tensor_core")):
        known = product & pl.col(column).is_not_null()
        main = [_main(run, known, "category", column) for run in (a, b)]
        both = main[0].join(main[1], on=["pair", "category"], suffix="_b")
        other = both.filter(
            (pl.col(column) != pl.col(f"{column}_b"))
            & ~pl.Series(
                [r in changed for r in both.select("pair", "category").iter_rows()],
                dtype=pl.Boolean,
            )
        )
        changed |= set(other.select("pair", "category").iter_rows())
        keyed = other.with_columns(pl.col(column, f"{column}_b").cast(pl.String))
        for (category, before, after), rows in keyed.group_by(
            "category", column, f"{column}_b", maintain_order=True
        ):
            of = rows["pair"].to_list()
            chosen = pl.col("pair").is_in(of) & (pl.col("category") == category)
            yield _of_layers(kind, a, b, pairs, of, chosen, str(category), str(before), str(after))


def _main(run: PairedRun, chosen: pl.Expr, key: str, value: str) -> pl.DataFrame:
    """Return by pair and ``key`` the ``value`` with most of the chosen time."""
    return (
        run.cells.filter(chosen & pl.col("pair").is_not_null() & (pl.col("role") == "layer"))
        .with_columns(pl.col(key).cast(pl.String))
        .group_by("pair", key, value)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", value, descending=[True, False])
        .unique(["pair", key], keep="first", maintain_order=True)
        .select("pair", key, value)
        .sort("pair", key)
    )


def _of_layers(
    kind: str,
    a: PairedRun,
    b: PairedRun,
    pairs: pl.DataFrame,
    of: list[int],
    chosen: pl.Expr,
    subject: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> Change:
    most = _most(a, b, chosen)
    return Change(
        kind,
        time_of(a, chosen),
        time_of(b, chosen),
        subject,
        before,
        after,
        calls_of(a, chosen),
        calls_of(b, chosen),
        len(of),
        None if most is None else pairs["a"][most],
        None if most is None else pairs["b"][most],
    )


def _most(a: PairedRun, b: PairedRun, chosen: pl.Expr) -> int | None:
    """Return the pair whose chosen time changed most."""
    sums = [
        run.cells.filter(chosen).group_by("pair").agg(pl.col("time_ns").sum() / run.steps.count)
        for run in (a, b)
    ]
    both = sums[0].join(sums[1], on="pair", how="full", coalesce=True, suffix="_b").fill_null(0)
    apart = both.with_columns((pl.col("time_ns_b") - pl.col("time_ns")).abs().alias("_apart"))
    ordered = apart.sort("_apart", "pair", descending=[True, False])
    return int(ordered["pair"][0]) if ordered.height else None
