"""Repeated trials: traces with batch, layer and trial in their file names, as one sweep."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from traceana.errors import NotFoundError, TraceanaError, UsageError
from traceana.plain_text import as_unicode
from traceana.readers.source import silent
from traceana.settings import CONFIDENCE_LEVEL
from traceana.study.recorded_runs import KERNELS, Recorded
from traceana.table import COUNT, LONG, PARTS, Column, conformed
from traceana.timeline.work import work
from traceana.trace import Trace
from traceana.trace.merge import merge

SWITCHES: Final = (
    Column("run", LONG, "the series of trials"),
    Column("batch_before", COUNT, "batch size before the change"),
    Column("algorithm_before", PARTS, "algorithm with most time at that batch size"),
    Column("batch_after", COUNT, "the next batch size"),
    Column("algorithm_after", PARTS, "algorithm with most time at that batch size"),
)
_FIELD: Final = re.compile(r"\{(\w*)\}")
_NUMBERS: Final = ("batch", "trial")
_TEXT: Final = "[^_/]+"
_NUMBER: Final = r"\d{1,9}"
_OF_RUN: Final = ("batch", "trial", "network", "framework")


class Trial(msgspec.Struct, frozen=True):
    """A file, and the values of the pattern's fields in its name."""

    file: Path
    fields: Mapping[str, str]

    @property
    def batch(self) -> int:
        """The batch size."""
        return int(self.fields["batch"])

    @property
    def series(self) -> str:
        """The fields that all batches and trials share: ``layer 3``."""
        values = [f"{name} {value}" for name, value in self.fields.items() if name not in _OF_RUN]
        return ", ".join(values) or self.fields.get("framework") or self.file.parent.name


class Trials(msgspec.Struct, frozen=True):
    """``trials`` in one ``trace``, in which the rank of an activity is the number of its trial."""

    trials: tuple[Trial, ...]
    trace: Trace


def find_trials(paths: Sequence[Path], pattern: str) -> tuple[list[Trial], int]:
    """Return the files of ``paths`` with ``pattern`` in their names, and the number of other files.

    ``l{layer}_bs{batch}_{trial}`` is found in ``GPUTrace_l3_bs100_7.csv``. ``batch`` and ``trial``
    are numbers, other fields any text without ``_``. Folders are searched with all below them.
    Raises :class:`~traceana.errors.UsageError` on a pattern that cannot be used and
    :class:`~traceana.errors.NotFoundError` where no file name contains it.
    """
    names, expression = _compiled(pattern)
    trials, others = [], 0
    for path in paths:
        if not path.exists():
            raise NotFoundError(f"{path} does not exist: check the path")
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in (entry for entry in below if entry.is_file()):
            match = expression.search(as_unicode(file.name))
            if match is None:
                others += 1
            else:
                trials.append(Trial(file, dict(zip(names, match.groups(), strict=True))))
    if not trials:
        raise NotFoundError(
            f"no file name contains {pattern}: --sweep-from is part of the names, as in "
            "l{layer}_bs{batch}_{trial}"
        )
    return sorted(trials, key=lambda trial: (trial.series, trial.batch, trial.file)), others


def _compiled(pattern: str) -> tuple[list[str], re.Pattern[str]]:
    literals = _FIELD.split(pattern)
    names = literals[1::2]
    if "batch" not in names:
        raise UsageError(f"--sweep-from {pattern}: has no {{batch}}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--sweep-from {pattern}: {{{twice}}} occurs twice")
    if not all(names) or any(brace in text for text in literals[::2] for brace in "{}"):
        raise UsageError(f"--sweep-from {pattern}: fields are words in braces, as {{layer}}")
    parts = [
        re.escape(text) if i % 2 == 0 else f"({_NUMBER if text in _NUMBERS else _TEXT})"
        for i, text in enumerate(literals)
    ]
    # A number is whole: {batch} is not the 1 of 10.
    return names, re.compile("".join(parts) + (r"(?!\d)" if not literals[-1] else ""))


def read_trials(trials: Sequence[Trial], left_out: Callable[[str], None]) -> Trials:
    """Return the traces of ``trials`` as one classified Trace.

    A file that cannot be read is given to ``left_out`` with the reason. Raises the first error
    where none can be read.
    """
    from traceana.enrich import attribute, with_classes
    from traceana.enrich.classify import rules_in_use
    from traceana.readers import read

    traces: list[Trace] = []
    readable: list[Trial] = []
    first: TraceanaError | None = None
    for trial in trials:
        try:
            trace = read(trial.file, silent)
        except TraceanaError as error:
            first = first or error
            left_out(str(error))
            continue
        # Without host events there is nothing to attribute.
        hosted = any(
            table.height for table in (trace.tables.calls, trace.tables.ops, trace.tables.ranges)
        )
        traces.append(attribute(trace) if hosted else trace)
        readable.append(trial)
    if first is not None and not traces:
        raise first
    merged = merge(traces, range(len(traces)), traces[0].meta)
    return Trials(tuple(readable), with_classes(merged, rules_in_use(None)))


def kernel_times(of: Trials) -> pl.DataFrame:
    """Return the kernels of each trial, summed by algorithm of convolution.

    Columns: ``series``, ``network``, ``batch``, ``trial`` (its number in ``of``), ``algorithm``
    (null where they are no convolution), ``direction`` (null where it is unknown, or several are
    added up), ``calls``, ``time_ns``.
    """
    classes = ("category", "algorithm", "kernel_direction")
    kernels = work(of.trace, "kind", "rank", *classes, "duration").filter(kind="kernel")
    by_class = (
        kernels.group_by("rank", *classes)
        .agg(pl.len().cast(pl.Int64).alias("calls"), pl.col("duration").sum().alias("time_ns"))
        .with_columns(pl.col(classes).cast(pl.String))
    )
    convolves = pl.col("category") == "conv"
    algorithm = pl.when(convolves).then(pl.col("algorithm").fill_null("unknown"))
    directions = pl.col("kernel_direction").drop_nulls().unique()
    return (
        by_class.with_columns(algorithm.alias("algorithm"), pl.col("rank").alias("trial"))
        .group_by("trial", "algorithm")
        .agg(
            pl.when(directions.len() == 1).then(directions.first()).alias("direction"),
            pl.col("calls", "time_ns").sum(),
        )
        .join(
            pl.DataFrame(
                [
                    (number, trial.series, trial.fields.get("network"), trial.batch)
                    for number, trial in enumerate(of.trials)
                ],
                schema={
                    "trial": pl.Int32,
                    "series": pl.String,
                    "network": pl.String,
                    "batch": pl.Int64,
                },
                orient="row",
            ),
            on="trial",
        )
        .select(
            *("series", "network", "batch", "trial"),
            *("algorithm", "direction", "calls", "time_ns"),
        )
        .sort("series", "batch", "trial", "time_ns", "algorithm", nulls_last=True)
    )


def by_algorithm(times: pl.DataFrame) -> pl.DataFrame:
    """Return the convolutions of :func:`kernel_times` by series, batch and algorithm.

    Columns: ``series``, ``network``, ``batch``, ``algorithm``, ``direction``, ``calls`` (mean),
    ``time_ns`` (the median over the trials that ran it), ``low_ns``, ``high_ns``
    (:func:`median_interval`), ``trials`` (that ran it), ``of_trials``.
    """
    whole = times.group_by("series", "batch").agg(
        pl.col("trial").n_unique().cast(pl.Int64).alias("of_trials")
    )
    sums = (
        times.filter(pl.col("algorithm").is_not_null())
        .group_by("series", "network", "batch", "algorithm")
        .agg(
            pl.when(pl.col("direction").n_unique() == 1)
            .then(pl.col("direction").first())
            .alias("direction"),
            pl.col("calls").mean(),
            pl.col("time_ns").median().floor().cast(pl.Int64),
            pl.col("time_ns").sort().alias("_times"),
            pl.len().cast(pl.Int64).alias("trials"),
        )
        .join(whole, on=["series", "batch"])
    )
    bounds = [median_interval(values) for values in sums["_times"].to_list()]
    low, high = (
        [None if interval is None else interval[side] for interval in bounds] for side in (0, 1)
    )
    return (
        sums.drop("_times")
        .with_columns(
            pl.Series("low_ns", low, dtype=pl.Int64), pl.Series("high_ns", high, dtype=pl.Int64)
        )
        .sort("series", "batch", "time_ns", "algorithm", nulls_last=True)
    )


def switches(times: pl.DataFrame) -> pl.DataFrame:
    """Return where the algorithm with most time changes from one batch size to the next.

    The columns are :data:`SWITCHES`.
    """
    most = (
        times.filter(pl.col("algorithm").is_not_null())
        .group_by("series", "batch", "algorithm")
        .agg(pl.col("time_ns").sum())
        .sort("series", "batch", "time_ns", "algorithm", descending=[False, False, True, False])
        .unique(["series", "batch"], keep="first", maintain_order=True)
    )
    before = pl.col("batch", "algorithm").shift().over("series").name.suffix("_before")
    after = {"series": "run", "batch": "batch_after", "algorithm": "algorithm_after"}
    changed = pl.col("algorithm") != pl.col("algorithm_before")
    return conformed(most.with_columns(before).filter(changed).rename(after), SWITCHES)


def as_runs(of: Trials, times: pl.DataFrame) -> list[Recorded]:
    """Return a run for each series and batch; its steps are the kernels' time of each trial."""
    names = [*of.trace.tables.devices["name"].drop_nulls().unique(maintain_order=True)]
    sums = times.group_by("series", "batch", "trial").agg(pl.col("time_ns").sum())
    first = {(trial.series, trial.batch): trial for trial in reversed(of.trials)}
    runs = []
    for (series, batch), trial in sorted(first.items()):
        steps = sums.filter(pl.col("series") == series, pl.col("batch") == batch).sort("trial")
        fields = trial.fields
        runs.append(
            Recorded(
                folder=series,
                framework=fields.get("framework"),
                network=fields.get("network"),
                batch=batch,
                reason=None if steps.height else "no kernels",
                device_kind="CPU" if of.trace.on_cpu else "GPU",
                device_name=names[0] if len(names) == 1 else None,
                options={
                    name: value
                    for name, value in fields.items()
                    if name not in _OF_RUN and "framework" in fields
                },
                steps_ns=tuple(steps["time_ns"]),
                timed=KERNELS,
            )
        )
    return runs


def median_interval(values: Sequence[int]) -> tuple[int, int] | None:
    """Return the interval of the median of sorted ``values``, whatever their shape.

    Its bounds are the k-th value from either end, with the largest k whose B(k - 1; n, 1/2)
    is at most half of 1 - ``CONFIDENCE_LEVEL``. None for fewer than six values. (Conover,
    Practical Nonparametric Statistics, 3.2.)
    """
    count = len(values)
    ways, k = 0, 0
    while 2 * (ways + comb(count, k)) <= (1 - CONFIDENCE_LEVEL) * 2**count:
        ways += comb(count, k)
        k += 1
    return (values[k - 1], values[count - k]) if k else None
