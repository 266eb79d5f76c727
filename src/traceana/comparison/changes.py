"""The changes between two runs, largest effect on the step first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from traceana.comparison.columns import FIGURE, in_both
from traceana.comparison.compared_run import UNKNOWN_GPU, devices
from traceana.comparison.layer_features import modules_of, plain_name
from traceana.comparison.paired_run import PairedRun
from traceana.comparison.verdicts import Criteria, RowPairs, RowTimes, Step, step_times
from traceana.settings import LEAST_CONFIDENCE, RUN_TO_RUN_HOST
from traceana.table import COUNT, FLAG, MEAN, PART, TEXT, Column, conformed, laid_out, names_of
from traceana.timeline.idle import idle_time
from traceana.timeline.idle_gaps import CAUSES, within

_NAMED: Final = (
    Column("number", TEXT, "place in the tree: `2.1` is a part of `2`"),
    Column("change", TEXT, "kind of the change: see [Two runs compared](diff.md)"),
    Column("subject", TEXT, "pass, direction, category, or cause of idle time"),
    Column("before", TEXT, "value in the baseline"),
    Column("after", TEXT, "value in the candidate"),
    *in_both(Column("count", MEAN, "number of the work, per step")),
    Column("layers", COUNT, "number of pairs of layers with this work"),
    Column("layer_a", TEXT, "baseline: the layer with the most effect"),
    Column("layer_b", TEXT, "candidate: the layer with the most effect"),
)
_FIGURES: Final = tuple(
    FIGURE[name]
    for name in (
        *("time_a_ns", "time_b_ns", "delta_ns", "low_ns", "high_ns", "of_step", "p", "verdict"),
    )
)
CHANGES: Final = (
    *_NAMED,
    *_FIGURES,
    Column(
        "least",
        FLAG,
        "true where the effect on the step is below `minimum_effect`; these come last, also among "
        "the parts of a change",
    ),
)
IDLE: Final = laid_out(
    (Column("cause", PART, "the [cause](idle.md#idle-time)"), *_FIGURES),
    shown="cause time_a_ns time_b_ns delta_ns of_step verdict",
)
"""The idle time of both runs."""
_TIME_ALONE: Final = ("idle", "communication", "copies")
"""Kinds of changes that are in every run: their time can change alone."""
_ALWAYS: Final = ("gpu", "batch")
"""Causes that are listed whatever their effect."""
_OF_AMOUNTS: Final = ("idle", "communication", "copies", "layouts", "kernels", "calls", "layers")
"""Kinds of changes of how much work there is, and of its time."""
NOT_COMPARED: Final = "not compared"
"""The verdict where the runs hold different work."""
_COUNTED_BY_NAME: Final = ("kernels", "layers", "compiled")
"""Kinds of changes whose counts are not numbers of calls."""
_CERTAIN: Final = ("faster", "slower")

Flags = npt.NDArray[np.bool_]
Work: TypeAlias = tuple[Flags, Flags]
"""Which cells of baseline and candidate."""

_KERNELS: Final = pl.col("kind").is_in(["kernel", "op"])
"""Kernels, and operators where the device is the CPU."""
_COMPUTING: Final = _KERNELS & pl.col("category").ne_missing("collective")

_HOST: Final = ("pageable", "pinned", "managed")
_PRODUCTS: Final = ("conv", "gemm")
_UNKNOWN: Final = ("unknown", "(unknown)")


class Change(msgspec.Struct, frozen=True):
    """One change: its ``kind`` (see ``docs/diff.md``), and its layer or subject.

    ``before`` and ``after`` are the values in baseline and candidate; ``layers`` is the number of
    pairs of layers that changed, ``layer_a`` and ``layer_b`` the pair whose time changed most.
    ``a`` and ``b`` are the time of the affected work in each step of either run (one row).
    ``work`` has the affected cells of baseline and candidate, None without work. The
    change is a part of the change ``within``, by its position.
    """

    kind: str
    a: RowTimes
    b: RowTimes
    subject: str | None = None
    before: str | None = None
    after: str | None = None
    count_a: float | None = None
    count_b: float | None = None
    layers: int | None = None
    layer_a: str | None = None
    layer_b: str | None = None
    work: Work | None = None
    within: int | None = None


def low_confidence() -> pl.Expr:
    """Return whether a row of pairs of layers is one below :data:`LEAST_CONFIDENCE`."""
    paired = pl.col("a").is_not_null() & pl.col("b").is_not_null()
    return (paired & (pl.col("confidence") < LEAST_CONFIDENCE)).fill_null(value=False)


def not_compared(frame: pl.DataFrame, rows: pl.Expr, verdict: str = NOT_COMPARED) -> pl.DataFrame:
    """Return ``frame`` without the differences of ``rows``, which have this ``verdict``."""
    differences = ("delta_ns", "low_ns", "high_ns", "relative", "of_step", "p")
    return frame.with_columns(
        *(pl.when(~rows).then(name).alias(name) for name in differences if name in frame.columns),
        pl.when(rows).then(pl.lit(verdict)).otherwise("verdict").alias("verdict"),
    )


def found_changes(
    a: PairedRun, b: PairedRun, pairs: pl.DataFrame, criteria: Criteria
) -> list[Change]:
    """Return the changes from ``a`` to ``b`` before any test, each after the one it is a part of.

    ``pairs`` are the rows of layers and roles (:func:`traceana.comparison.diff.layer_rows`). Work
    belongs to one change, and to its parts: what several changes affect is a part of the first of
    them. A remainder of less than the minimum effect on the step is left out.
    """
    below = pairs.with_row_index("pair").filter(low_confidence())["pair"].implode()
    pair = pl.when(~pl.col("pair").is_in(below)).then("pair").alias("pair")
    sure_a, sure_b = (replace(run, cells=run.cells.with_columns(pair)) for run in (a, b))
    columns = [f"{what}_{side}" for what in ("shape", "weight", "memory_format") for side in "ab"]
    sure = [pl.when(~low_confidence()).then(column).alias(column) for column in columns]
    sure_pairs = pairs.with_columns(sure)
    compiled = _of_work("compiled", a, b, pl.col("compiled"))
    of_run = list(_of_run(a, b))
    if bool(compiled.count_a) != bool(compiled.count_b):
        # The compiled kernels replace others: together they are one change, not a sum of kernels
        # and layers that are in one run only.
        whole = _of_work("compiled", a, b, _COMPUTING)
        of_run.append(replace(whole, count_a=compiled.count_a, count_b=compiled.count_b))
    else:
        only = _unmatched_layers(pairs)
        unmatched = [pl.col("pair").is_in(rows.implode()) for rows in only]
        if any(map(len, only)):
            of_run.append(
                _of_both("layers", (a, b), unmatched, [float(len(rows)) for rows in only])
            )
        of_run += _of_kernels(a, b, pairs, unmatched)
    every = [*of_run, *_inside_layers(sure_a, sure_b, sure_pairs)]
    every.sort(key=lambda change: _CONTAINING.index(change.kind))

    placed: list[Change] = []
    smallest = criteria.least(*step_times(a.steps, b.steps))
    of_everything = None
    for change in every:
        if change.work is None:
            placed.append(replace(change, within=of_everything))
            if change.kind == "batch":
                of_everything = len(placed) - 1
            continue
        parts = [
            _affecting(change, work, within, (a, b), pairs)
            for work, within in _shared_out(change.work, placed, of_everything)
        ]
        effects = [abs(float(part.b.times.mean() - part.a.times.mean())) for part in parts]
        largest = max(effects, default=0.0)
        placed += [
            part
            for part, effect in zip(parts, effects, strict=True)
            if effect >= min(smallest, largest)
        ]
    return placed


def _shared_out(
    work: Work, placed: Sequence[Change], within: int | None
) -> Iterator[tuple[Work, int | None]]:
    """Yield the parts of ``work``, each with the position of the smallest change that contains it.

    ``placed`` are the changes that come before, ``within`` the one that contains all of ``work``.
    """
    for position, change in enumerate(placed):
        if change.work is None or change.within != within:
            continue
        common = work[0] & change.work[0], work[1] & change.work[1]
        if common[0].any() or common[1].any():
            work = work[0] & ~common[0], work[1] & ~common[1]
            yield from _shared_out(common, placed, position)
    if work[0].any() or work[1].any():
        yield work, within


_CONTAINING: Final = (
    *("batch", "gpu", "compiled", "idle", "communication", "copies", "host_memory", "layers"),
    *("kernels", "layouts", "calls", "shape", "weight", "memory_format", "precision"),
    *("tensor_cores", "algorithm", "bias_apart", "bias_fused", "launches"),
)
"""The kinds of changes: what two of them affect is a part of the one that comes first."""


def _affecting(
    change: Change,
    work: Work,
    within: int | None,
    runs: tuple[PairedRun, PairedRun],
    pairs: pl.DataFrame,
) -> Change:
    """Return ``change`` with the times of ``work`` alone, and with the layers of that work."""
    before, after = (
        run.times(pl.lit(pl.Series(cells))) for run, cells in zip(runs, work, strict=True)
    )
    part = replace(change, a=before, b=after, work=work, within=within)
    if change.kind not in _COUNTED_BY_NAME:
        part = _with_calls(part)
    if change.layers is None:
        return part
    sums = [
        run.cells.filter(cells).group_by("pair").agg(pl.col("time_ns").sum() / run.steps.count)
        for run, cells in zip(runs, work, strict=True)
    ]
    both = sums[0].join(sums[1], on="pair", how="full", coalesce=True, suffix="_b").fill_null(0)
    apart = (pl.col("time_ns_b") - pl.col("time_ns")).abs()
    ordered = both.sort(apart, "pair", descending=[True, False])["pair"]
    most = pairs.row(int(ordered[0]), named=True)
    return replace(part, layers=len(ordered), layer_a=most["a"], layer_b=most["b"])


def _of_work(
    kind: str, a: PairedRun, b: PairedRun, chosen: pl.Expr, subject: str | None = None
) -> Change:
    """Return the change of the time and the calls of the ``chosen`` work."""
    change = _of_both(kind, (a, b), (chosen, chosen), (None, None), subject)
    return _with_calls(change)


def _of_both(
    kind: str,
    runs: tuple[PairedRun, PairedRun],
    chosen: Sequence[pl.Expr],
    counts: Sequence[float | None],
    subject: str | None = None,
) -> Change:
    """Return the change of the time of the ``chosen`` work of either run, with its ``counts``."""
    (before, cells_a), (after, cells_b) = (
        (
            run.times(of_run),
            run.cells.select(of_run.fill_null(value=False).alias("chosen"))["chosen"].to_numpy(),
        )
        for run, of_run in zip(runs, chosen, strict=True)
    )
    count_a, count_b = counts
    return Change(
        kind, before, after, subject, count_a=count_a, count_b=count_b, work=(cells_a, cells_b)
    )


def _with_calls(change: Change) -> Change:
    """Return ``change`` with the number of its calls per step."""
    count_a, count_b = (
        float(times.calls.sum() / len(times.calls)) for times in (change.a, change.b)
    )
    return replace(change, count_a=count_a, count_b=count_b)


def _of_run(a: PairedRun, b: PairedRun) -> Iterator[Change]:
    """Yield the changes of GPU, batch, idle time, collectives, copies, layouts and launches."""
    used = devices(a.run.trace), devices(b.run.trace)
    if used[0] != used[1] and not any(UNKNOWN_GPU in names for names in used):
        kernels = _of_work("gpu", a, b, _COMPUTING)
        yield replace(kernels, before=used[0], after=used[1])
    nothing = a.times(pl.lit(value=False)), b.times(pl.lit(value=False))
    batches = a.layers.batch, b.layers.batch
    if all(batches) and batches[0] != batches[1]:
        # A batch size changes the time of the whole step.
        wall_a, wall_b = (
            RowTimes.alone(run.steps.frame["wall_ns"].to_numpy(), 0.0) for run in (a, b)
        )
        yield Change("batch", wall_a, wall_b, None, str(batches[0]), str(batches[1]))
    idle_a, idle_b = _idle(a), _idle(b)
    for cause in CAUSES:
        if cause in idle_a or cause in idle_b:
            before, after = idle_a.get(cause, nothing[0]), idle_b.get(cause, nothing[1])
            yield Change("idle", before, after, cause)
    collectives = _of_work("communication", a, b, pl.col("category") == "collective")
    if collectives.count_a or collectives.count_b:
        yield collectives
    is_copy = pl.col("kind") == "memcpy"
    directions = {kind for run in (a, b) for kind in run.cells.filter(is_copy)["copy_kind"]}
    for direction in sorted(directions, key=str):
        chosen = is_copy & pl.col("copy_kind").eq_missing(pl.lit(direction))
        copies = _of_work("copies", a, b, chosen, direction)
        yield copies
        memory = []
        for run in (a, b):
            most = (
                run.cells.filter(chosen & pl.col("host_memory").is_in(_HOST))
                .group_by("host_memory")
                .agg(pl.col("bytes").sum())
                .sort("bytes", "host_memory", descending=[True, False])["host_memory"]
            )
            memory.append(str(most[0]) if len(most) else None)
        if None not in memory and memory[0] != memory[1]:
            yield replace(copies, kind="host_memory", before=memory[0], after=memory[1])
    layouts = _of_work("layouts", a, b, pl.col("category") == "layout")
    if layouts.count_a != layouts.count_b:
        yield layouts
    # The number of launches has no time.
    launches = _of_work("launches", a, b, pl.col("kind") == "kernel")
    if launches.count_a != launches.count_b:
        yield replace(launches, a=nothing[0], b=nothing[1], work=None)


def _idle(run: PairedRun) -> dict[str, RowTimes]:
    """Return the idle time of each step by cause, added up over the devices (ns)."""
    trace, numbers = run.run.trace, run.steps.frame["number"]
    idle = idle_time(trace)
    windows = idle.measured if run.steps.marked else idle.windows
    parts = within(idle.gaps, windows)
    if run.steps.marked:
        at = dict(zip(numbers, range(len(numbers)), strict=True))
        number = trace.tables.steps["number"].gather(windows["step"]).gather(parts["window"])
        step = number.replace_strict(at, return_dtype=pl.Int64)
    else:
        step = pl.zeros(parts.height, pl.Int64, eager=True)
    cause = idle.gaps["cause"].cast(pl.String).gather(parts["gap"])
    sums = pl.DataFrame({"step": step, "cause": cause, "time_ns": parts["time_ns"]})
    each = {}
    for (name,), rows in sums.group_by("cause"):
        times = np.zeros(run.steps.count, dtype=np.int64)
        np.add.at(times, rows["step"].to_numpy(), rows["time_ns"].to_numpy())
        each[str(name)] = RowTimes.alone(times, RUN_TO_RUN_HOST * float(times.mean()))
    return each


def _of_kernels(
    a: PairedRun, b: PairedRun, pairs: pl.DataFrame, unmatched: Sequence[pl.Expr]
) -> Iterator[Change]:
    """Yield the kernels of only one run, by class; without paired layers also changes of calls.

    Paired layers have the change of an algorithm. With them a class is the category, and its time
    is the time of all its kernels: work moves between kernels of one run and kernels of both.
    Kernels of ``unmatched`` layers are left out then.
    Without them a class is category and part, and its time is the time of the kernels in one run
    only. Then the classes of kernels that both runs have are compared by their number of calls.
    Runs without a common kernel name (two vendors or frameworks) are not compared by names.
    """
    both = pl.col("a").is_not_null() & pl.col("b").is_not_null()
    paired = not pairs.filter(pl.col("role") == "layer", both).is_empty()
    names = [set(run.cells.filter(_KERNELS)["name"].drop_nulls()) for run in (a, b)]
    common = pl.col("name").is_in(list(names[0] & names[1]))
    classes = ["category"] if paired else ["category", "part"]
    if names[0] & names[1]:
        matched = [pl.lit(value=True)] * 2
        if paired:
            matched = [~alone.fill_null(value=False) for alone in unmatched]
        only = [
            run.cells.filter(_KERNELS, ~common, of_run)
            for run, of_run in zip((a, b), matched, strict=True)
        ]
        for subject, of_class in _classes(only, classes):
            kernels = [cells.filter(of_class)["name"].unique() for cells in only]
            chosen = [
                _KERNELS & of_class & (of_run if paired else pl.col("name").is_in(names.implode()))
                for of_run, names in zip(matched, kernels, strict=True)
            ]
            counts = [float(len(names)) for names in kernels]
            yield _of_both("kernels", (a, b), chosen, counts, subject)
    if not paired:
        # Layout conversions and collectives have changes of their own.
        shared = _KERNELS & common & ~pl.col("category").is_in(["layout", "collective"])
        for subject, of_class in _classes([run.cells.filter(shared) for run in (a, b)], classes):
            calls = _of_work("calls", a, b, shared & of_class, subject)
            if calls.count_a != calls.count_b:
                yield calls


def _classes(cells: Sequence[pl.DataFrame], keys: Sequence[str]) -> Iterator[tuple[str, pl.Expr]]:
    """Yield each class in ``cells``, as ``category: part``, and what chooses its cells."""
    classes = pl.concat(frame.select(keys) for frame in cells).unique().sort(keys)
    for values in classes.iter_rows():
        chosen = pl.all_horizontal(
            pl.col(key).eq_missing(pl.lit(value)) for key, value in zip(keys, values, strict=True)
        )
        yield ": ".join(str(value) for value in values if value is not None), chosen


def _unmatched_layers(pairs: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the rows of ``pairs`` of either run that have no match, and none inside a module.

    A framework names a layer that another runs as a function of the module around it: such layers,
    and the module, are left out.
    """
    numbered = pairs.with_row_index("pair").filter(pl.col("role") == "layer")
    alone = [
        dict(numbered.filter(pl.col(other).is_null()).select("pair", side).iter_rows())
        for side, other in ("ab", "ba")
    ]
    inside: set[int] = set()
    for layers, others in (alone, alone[::-1]):
        module = {plain_name(label): row for row, label in others.items()}
        for row, label in layers.items():
            for around in map(plain_name, modules_of(label)):
                if around in module:
                    inside |= {row, module[around]}
    only_a, only_b = (
        pl.Series(sorted(labels.keys() - inside), dtype=pl.UInt32) for labels in alone
    )
    return only_a, only_b


def _inside_layers(a: PairedRun, b: PairedRun, pairs: pl.DataFrame) -> Iterator[Change]:
    """Yield what changed in pairs of layers: one change per pair of values.

    The algorithm of a pass, the bias as a separate kernel, input and weight shapes, the memory
    format, the precision and the use of tensor cores.
    """

    def change(
        kind: str,
        of: Sequence[int],
        among: pl.Expr,
        subject: str | None = None,
        before: str | None = None,
        after: str | None = None,
    ) -> Change:
        whole = _of_work(kind, a, b, pl.col("pair").is_in(list(of)) & among, subject)
        return replace(whole, before=before, after=after, layers=len(of))

    conv, product = pl.col("category") == "conv", pl.col("category").is_in(_PRODUCTS)
    switched = _switched(a, b, conv & ~pl.col("part").is_in(_UNKNOWN), "pass", "part")
    for of, direction, before, after in switched:
        this_pass = pl.col("pass").cast(pl.String).eq_missing(pl.lit(direction))
        yield change("algorithm", of, conv & this_pass, direction, before, after)

    apart = pl.col("category") == "bias"
    before_a, after_b, in_a, in_b = (
        set(run.cells.filter(chosen)["pair"].drop_nulls())
        for chosen in (apart, product)
        for run in (a, b)
    )
    for kind, of_kind in (("bias_apart", after_b - before_a), ("bias_fused", before_a - after_b)):
        if of := sorted(of_kind & in_a & in_b):
            yield change(kind, of, apart)

    # Without recorded strides the memory format follows from the layer's kernels.
    for side, run in (("a", a), ("b", b)):
        column = f"memory_format_{side}"
        formats = _formats_by_kernels(run)
        pairs = (
            pairs.with_row_index("pair")
            .join(formats, on="pair", how="left", maintain_order="left")
            .with_columns(pl.coalesce(column, "format").alias(column))
            .drop("pair", "format")
        )
    for kind in ("shape", "weight", "memory_format"):
        columns = f"{kind}_a", f"{kind}_b"
        other = (
            pairs.with_row_index("pair")
            .filter(pl.col(columns[0]) != pl.col(columns[1]))
            .sort(*columns, "pair")
        )
        for (before, after), rows in other.group_by(*columns, maintain_order=True):
            yield change(kind, rows["pair"].to_list(), pl.lit(value=True), None, before, after)

    changed: set[tuple[int, str]] = set()
    for kind, column in (("precision", "precision"), ("tensor_cores", "tensor_core")):
        recorded = product & pl.col(column).is_not_null()
        for of, category, before, after in _switched(a, b, recorded, "category", column):
            # Another precision may use tensor cores: one change.
            rest = [row for row in of if (row, category) not in changed]
            if kind == "precision":
                changed |= {(row, category) for row in of}
            if rest:
                of_class = pl.col("category") == category
                yield change(kind, rest, of_class, category, before, after)


def _switched(
    a: PairedRun, b: PairedRun, chosen: pl.Expr, key: str, value: str
) -> Iterator[tuple[list[int], str, str, str]]:
    """Yield the pairs whose ``value`` changed. It is the value with most of the chosen time, by
    ``key``.

    They come with the key, and the value in the baseline and the candidate.
    """
    main = [
        run.cells.filter(chosen & pl.col("pair").is_not_null() & (pl.col("role") == "layer"))
        .with_columns(pl.col(key, value).cast(pl.String))
        .group_by("pair", key, value)
        .agg(pl.col("time_ns").sum())
        .sort("time_ns", value, descending=[True, False])
        .unique(["pair", key], keep="first")
        for run in (a, b)
    ]
    both = main[0].join(main[1], on=["pair", key], suffix="_b", nulls_equal=True)
    switched = both.filter(pl.col(value) != pl.col(f"{value}_b")).sort("pair")
    for values, rows in switched.group_by(key, value, f"{value}_b", maintain_order=True):
        yield rows["pair"].to_list(), *values


def _formats_by_kernels(run: PairedRun) -> pl.DataFrame:
    """Return ``pair`` and ``format`` where the names of convolution kernels imply the format."""
    name, conv = pl.col("name").str.to_lowercase(), pl.col("category") == "conv"
    turned = (pl.col("category") == "layout") & (pl.col("function") == "nchw_to_nhwc")
    last, first = (
        (conv & name.str.contains(axes, literal=True)).any() for axes in ("nhwc", "nchw")
    )
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


def change_times(changes: Sequence[Change], a: PairedRun, b: PairedRun) -> RowPairs:
    """Return the times of the changes in each step, to be tested like rows."""
    both = []
    times_a, times_b = [change.a for change in changes], [change.b for change in changes]
    for run, times in ((a, times_a), (b, times_b)):
        every = RowTimes.joined([run.times(pl.lit(value=False)), *times])
        # A change that one run has no calls of is tested like the others.
        both.append(
            RowTimes(every.times[:, 1:], np.ones_like(every.times[:, 1:]), every.spread[1:])
        )
    idle = np.array([change.kind == "idle" for change in changes], dtype=bool)
    return RowPairs(both[0], both[1], idle)


def change_table(
    changes: Sequence[Change],
    figures: pl.DataFrame,
    runs: tuple[PairedRun, PairedRun],
    step: Step,
    criteria: Criteria,
    *,
    same: bool,
) -> pl.DataFrame:
    """Return one row per change, followed by its parts. The columns are :data:`CHANGES`.

    ``figures`` are from :func:`traceana.comparison.verdicts.verdict_tables` for
    :func:`change_times`; a changed batch size affects the whole step and has the verdict of its
    mean. Idle time, communication and as many copies as before are left out unless
    their time changed. Changes without a verdict stand below those with one. ``least`` is True for
    effects below the minimum relative change of the step, which come last. Where the runs do not
    hold the ``same`` work, changes of amounts are left out, and no time is compared.
    """
    attributes = ("kind", *names_of(_NAMED[2:]))
    named = pl.DataFrame(
        [[getattr(change, name) for name in attributes] for change in changes],
        schema={column.name: column.dtype for column in _NAMED[1:]},
        orient="row",
    ).with_row_index("_position")
    mean, kind = step.mean, pl.col("change")
    of_batch = {
        "low_ns": None if mean.interval is None else round(mean.interval.low),
        "high_ns": None if mean.interval is None else round(mean.interval.high),
        "p": mean.p,
        "verdict": mean.verdict,
    }
    smallest = criteria.least(*step_times(*(run.steps for run in runs)))
    counts = pl.col("count_b") - pl.col("count_a")
    fewer = criteria.minimum_effect * pl.min_horizontal("count_a", "count_b")
    least = (
        pl.when(kind == "launches")
        .then(counts.abs() < fewer)
        .otherwise((pl.col("delta_ns").abs() < smallest) & ~kind.is_in(_ALWAYS))
    )
    by_time = kind.is_in(_TIME_ALONE) & (
        (kind != "copies") | (pl.col("count_a") == pl.col("count_b"))
    )
    verdict = pl.col("verdict")
    changed = pl.when("least").then(verdict.is_in(_CERTAIN)).otherwise(verdict != "same")
    table = (
        named.hstack(figures.select(names_of(_FIGURES)))
        .with_columns(
            pl.when(kind == "batch")
            .then(pl.lit(value, FIGURE[name].dtype))
            .otherwise(name)
            .alias(name)
            for name, value in of_batch.items()
        )
        .with_columns(least.alias("least"), pl.col("delta_ns").abs().alias("_size"))
        .filter(~by_time | changed)
        .sort(
            "least",
            ~verdict.is_in(_CERTAIN),
            *("_size", "change", "subject", "before", "after"),
            descending=[False, False, True, False, False, False, False],
            nulls_last=True,
        )
    )
    if not same:
        table = table.filter(~kind.is_in(_OF_AMOUNTS)).with_columns(least=pl.lit(value=False))
    table = conformed(_numbered(table, changes), CHANGES)
    return table if same else not_compared(table, pl.lit(value=True))


def _numbered(table: pl.DataFrame, changes: Sequence[Change]) -> pl.DataFrame:
    """Return the rows of ``table`` with their ``number``, each followed by its parts.

    ``_position`` is the position of a row in ``changes``. A part of a change that is left out is a
    part of the change around it.
    """
    listed = table["_position"].to_list()
    parts: dict[int | None, list[int]] = {}
    for row, position in enumerate(listed):
        within = changes[position].within
        while within is not None and within not in listed:
            within = changes[within].within
        parts.setdefault(within, []).append(row)
    order: list[tuple[int, str]] = []

    def add_parts(within: int | None, prefix: str) -> None:
        for place, row in enumerate(parts.get(within, ()), start=1):
            order.append((row, f"{prefix}{place}"))
            add_parts(listed[row], f"{prefix}{place}.")

    add_parts(None, "")
    rows, numbers = [row for row, _ in order], [number for _, number in order]
    return table[rows].with_columns(pl.Series("number", numbers, pl.String))


def idle_table(changes: Sequence[Change], figures: pl.DataFrame, *, same: bool) -> pl.DataFrame:
    """Return the idle time of both runs by cause, largest change first.

    The columns are :data:`IDLE`. ``changes`` and ``figures`` are as in :func:`change_table`. Every
    cause of either run has a row, also where its time is the same.
    """
    causes = pl.Series("cause", [change.subject for change in changes], dtype=pl.String)
    rows = figures.select(names_of(_FIGURES)).insert_column(0, causes)
    of_idle = pl.Series([change.kind == "idle" for change in changes], dtype=pl.Boolean)
    table = rows.filter(of_idle).sort(
        pl.col("delta_ns").abs(), "cause", descending=[True, False], nulls_last=True
    )
    return table if same else not_compared(table, pl.lit(value=True))
