"""Steps (iterations): their markers, and the lookup of a step by process and time."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from traceana.columns.distinct import Texts, thread_numbers
from traceana.columns.nesting import NONE, Ints, Nesting
from traceana.enrich.serving import ITERATION, SERVERS, SOURCE, iterations
from traceana.errors import NoSuchSelectionError, UsageError
from traceana.settings import CUT_STEP, STEP_COVERAGE
from traceana.trace import Trace
from traceana.trace.ledger import Ledger
from traceana.trace.schema import DEVICE_WORK, PERIOD, conform

STEP_TEXT: Final = (
    r"(?i)^_?(?:ProfilerStep[#*]?|(?:train[ _-]?|training[ _-]?|global[ _-]?|minibatch[ _-]?)?"
    r"(?:step|iter|iteration|batch))[ _#:=\[-]*(\d*)\]?$"
)
"""Names of iteration ranges: ``ProfilerStep#3``, ``iteration 3``, ``step_3``, ``batch:3``; CNTK's
``_Minibatch Iteration``."""


_AFTER_STEPS: Final = r"^traceana: after the last step$"
"""The recorder's empty range in a step that has begun and did not end: the program ended."""

OUTSIDE_TEXT: Final = rf"(?i)^warm[ _-]?up[ _:#=-]*\d*$|{_AFTER_STEPS}"
"""Ranges around warm-up iterations, and the recorder's; they are not steps and not layers."""

OPTIMIZER_STEP: Final = "Optimizer.step"
"""torch.profiler records ``Optimizer.step#SGD.step`` around every ``optimizer.step()``."""

SET_BY_PROGRAM: Final = ("annotation", "nvtx", "nvtx_start")
"""Kinds of host ranges whose text is set by the program or its framework."""

_NUMBERED: Final = r"[#*]?\d+$"
_NUMBER: Final = r"(\d+)\]?$"
_STEM: Final = r"^(.*?)[ _#*:=\[-]*\d*\]?$"
_ON_HOST: Final = ("step", *SET_BY_PROGRAM, "module", "python", "runtime")
_LOADS: Final = "enumerate(DataLoader)"
_MOST_CANDIDATES: Final = 6


def steps(trace: Trace, activities: pl.DataFrame, marker: str | None = None) -> pl.DataFrame:
    """Return the ``steps`` table of ``trace``; ``activities`` are its activities with calls.

    The first of these sources marks the steps of all processes: the profiler's own step ranges,
    unless the iterations of a server are at least half as many; ranges named as iterations on the
    launching thread that launch at least half of the work; the steps of the optimizer; the period
    of the kernels; ranges named as iterations on another thread,
    or a single one. Annotations on the device's timeline are not used. ``marker`` replaces all of
    these: see :func:`marked_by`.
    """
    if marker is not None:
        return marked_by(trace, activities, marker)
    ranges = trace.tables.ranges
    # The program ended in the ranges around the recorder's mark: they are no iterations.
    marks = ranges.filter(Texts.of(ranges["text"]).matching(_AFTER_STEPS))
    for mark in marks.iter_rows(named=True):
        around = (
            (pl.col("start") <= mark["start"])
            & (pl.col("start") + pl.col("duration") >= mark["start"] + mark["duration"])
            & pl.col("process").eq_missing(mark["process"])
            & pl.col("thread").eq_missing(mark["thread"])
        )
        ranges = ranges.filter(~around)
    texts = Texts.of(ranges["text"])
    numbered = pl.Series(texts.matching(_NUMBERED))
    by_profiler = ranges.filter((ranges["kind"] == "step") & numbered)
    of_program = ranges["kind"].is_in(SET_BY_PROGRAM)
    served = pl.Series(texts.matching(ITERATION))
    if by_profiler.height:
        profiled = _step_table(_without_overlaps(by_profiler, trace, activities))
        if not (of_program & served).any():
            return profiled
        # vLLM calls the profiler's step before each iteration, which has the requests. It does not
        # train, so optimizers are not looked for.
        no_optimizer = _Optimizer.of(ranges.clear())
        requests = ranges.filter(of_program & served)
        for iteration_table in _iterations(requests, trace, activities, no_optimizer):
            if iteration_table.height and 2 * iteration_table.height >= profiled.height:
                return iteration_table
        return profiled
    optimizer = _Optimizer.of(ranges)
    named = ranges.filter(of_program & (pl.Series(texts.matching(STEP_TEXT)) | served))
    sure_steps, possible_steps = _iterations(named, trace, activities, optimizer)
    for step_table in (sure_steps, optimizer.table()):
        if step_table.height:
            return step_table
    from traceana.enrich.periods import periods

    repeated = periods(activities, trace.tables.names, trace.tables.calls)
    return repeated if repeated.height else possible_steps


def without_cut_step(trace: Trace, table: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Return ``table``, the steps of ``trace``, without those that the end of the recording cut.

    Of each process that can be its last step alone: a profiler that is stopped in an iteration
    closes the marker. It is counted in ``ledger``. The iterations of a server differ in their
    requests, and steps of the optimizer end with it.
    """
    sources = table["source"].unique().cast(pl.String).drop_nulls()
    can_be_cut = ~(sources.str.ends_with(SOURCE) | sources.str.starts_with(OPTIMIZER_STEP))
    if table.height <= _FEWEST_WHOLE or not (can_be_cut & (sources != PERIOD)).all():
        return table
    kept = []
    for steps in table.partition_by("process", maintain_order=True):
        events = [
            frame if steps["process"][0] is None else frame.filter(process=steps["process"][0])
            for frame in (trace.tables.ops, trace.tables.calls)
        ]
        start = np.concatenate([frame["start"].to_numpy() for frame in events])
        kept.append(steps[:-1] if _is_cut(steps, start) else steps)
    whole = pl.concat(kept)
    ledger.add("cut_step", table.height - whole.height, table="steps", kept=False)
    return whole


_FEWEST_WHOLE: Final = 2
"""Steps of a recording from which the least number of events in a whole step is known."""


def _is_cut(steps: pl.DataFrame, start: Ints) -> bool:
    """Return whether the last of ``steps`` has far fewer of the events at ``start`` than any."""
    if steps.height <= _FEWEST_WHOLE:
        return False
    begin = steps["start"].to_numpy()
    end = begin + steps["duration"].to_numpy()
    in_last = int(np.count_nonzero((start >= begin[-1]) & (start < end[-1])))
    in_others = int(np.count_nonzero((start >= begin[0]) & (start < begin[-1])))
    # The least of them has at most the mean. Few steps are cut, and sorting takes longer.
    if in_last >= CUT_STEP * in_others / (len(begin) - 1):
        return False
    ordered = np.sort(start)
    events_of_step = np.searchsorted(ordered, end) - np.searchsorted(ordered, begin)
    return bool(in_last < CUT_STEP * events_of_step[:-1].min())


def marked_by(trace: Trace, activities: pl.DataFrame, marker: str) -> pl.DataFrame:
    """Return the ``steps`` table of the ranges that match ``marker``.

    ``marker`` is the text of host ranges, with or without their number, or else a regular
    expression that is searched for in the texts. The outermost of the matching ranges are the
    steps. If they are steps of the optimizer, a step ends with the last one of each iteration.
    Raises :class:`~traceana.errors.UsageError` on an invalid expression, and
    :class:`~traceana.errors.NoSuchSelectionError` if no range matches.
    """
    chosen = marks(trace, marker)
    if chosen["text"].cast(pl.String).str.starts_with(f"{OPTIMIZER_STEP}#").all():
        return _Optimizer.of(chosen).table(fewest=1)
    return _step_table(_without_overlaps(chosen, trace, activities), marker)


def marks(trace: Trace, marker: str) -> pl.DataFrame:
    """Return the host ranges (in old traces, operators) that match ``marker``."""
    ranges = trace.tables.ranges.filter(pl.col("kind").is_in(_ON_HOST))
    named_ops = pl.lit("annotation").cast(trace.tables.ranges.schema["kind"]).alias("kind")
    columns = ("text", "kind", "process", "thread", "start", "duration", "rank")
    operators = trace.tables.ops.select(pl.col("name").alias("text"), named_ops, *columns[2:])
    for host in (ranges.select(columns), operators):
        texts = host["text"].unique().cast(pl.String).drop_nulls()
        wanted = texts.filter((texts == marker) | (texts.str.extract(_STEM, 1) == marker))
        if wanted.is_empty():
            wanted = texts.filter(matches_marker(texts, marker))
        if wanted.len():
            return host.filter(pl.col("text").cast(pl.String).is_in(wanted.implode()))
    repeating = candidates(trace.tables.ranges)
    alternatives = f"repeating ranges: {repeating}" if repeating else "no host ranges repeat"
    raise NoSuchSelectionError(
        f"{trace.meta.source}: no range matches --step-marker {marker!r}; {alternatives}"
    )


def as_steps(trace: Trace, marker: str) -> pl.DataFrame:
    """Return the ranges of ``trace``, with kind ``step`` for the program's that match ``marker``.

    Ranges of the optimizer keep their kind, because they are not steps: they end a step.
    """
    text = pl.col("text").cast(pl.String)
    named = marks(trace, marker)["text"].unique().cast(pl.String)
    chosen = (
        pl.col("kind").is_in(SET_BY_PROGRAM)
        & text.is_in(named.implode())
        & ~text.str.starts_with(f"{OPTIMIZER_STEP}#")
    )
    kind = pl.when(chosen).then(pl.lit("step").cast(trace.tables.ranges.schema["kind"]))
    return trace.tables.ranges.with_columns(kind.otherwise("kind").alias("kind"))


def matches_marker(texts: pl.Series, marker: str) -> pl.Series:
    """Return which ``texts`` the expression of ``--step-marker`` matches.

    The time is linear in the texts, which a trace or the expression could else make endless. So
    look-arounds and back-references are not supported: ``UsageError``, as for an invalid one.
    """
    try:
        return texts.str.contains(marker)
    except pl.exceptions.ComputeError as error:
        first, *lines = str(error).splitlines()
        reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        reason = (reasons or [first.removeprefix("regex error: ")])[0]
        raise UsageError(
            f"--step-marker {marker!r}: invalid regular expression: {reason}"
        ) from error


def candidates(ranges: pl.DataFrame) -> str:
    """Return the names of the program's repeated ranges as text, most frequent first.

    Names are without trailing numbers. Empty if no range repeats.
    """
    counted = (
        ranges.filter(pl.col("kind").is_in(("step", *SET_BY_PROGRAM)))
        .group_by("text")
        .len()
        .select(pl.col("text").cast(pl.String).str.extract(_STEM, 1).alias("stem"), "len")
        .filter(pl.col("stem").fill_null("") != "")
        .group_by("stem")
        .agg(pl.col("len").sum())
        .filter(pl.col("len") > 1)
        .sort(["len", "stem"], descending=[True, False])
    )
    return ", ".join(f"{stem!r} ({n})" for stem, n in counted.head(_MOST_CANDIDATES).iter_rows())


class Work(msgspec.Struct, frozen=True):
    """Process, thread, time and weight of the launches of work.

    Work is device work with its duration (at least 1 ns) as the weight, else operators, else
    ranges. ``kernel`` is false for copies, which a data loader may launch.
    """

    frame: pl.DataFrame
    weights: dict[int | None, tuple[_Weights, dict[int, _Weights]]] = msgspec.field(
        default_factory=dict
    )

    @classmethod
    def of(cls, trace: Trace, activities: pl.DataFrame) -> Work:
        calls, time = trace.tables.calls, pl.col("start").alias("time")
        columns = ("kind", "call", "process", "start", "duration")
        device = activities.select(columns).filter(pl.col("kind").is_in(DEVICE_WORK))
        if device.height:
            call = device["call"]
            frame = device.select(
                "process",
                calls["thread"].gather(call).alias("thread"),
                pl.coalesce(calls["start"].gather(call), "start").alias("time"),
                # A coarse clock gives the shortest kernels a duration of 0; they count as work.
                pl.col("duration").clip(1).alias("weight"),
                pl.col("kind").is_in(["kernel", "graph"]).alias("kernel"),
            )
        else:
            host = trace.tables.ops
            if host.is_empty():
                text = pl.col("text").cast(pl.String)
                inner = pl.col("kind").is_in(SET_BY_PROGRAM) & ~text.str.contains(STEP_TEXT)
                host = trace.tables.ranges.filter(inner)
            frame = host.select(
                *("process", "thread", time),
                pl.lit(1, pl.Int64).alias("weight"),
                pl.lit(value=True).alias("kernel"),
            )
        time_ns = frame["time"].to_numpy()
        in_order = not (time_ns[1:] < time_ns[:-1]).any()
        return cls(frame if in_order else frame.sort("time"))

    def of_process(self, process: int | None) -> pl.DataFrame:
        """Return the work of ``process``, or all work if no process is recorded."""
        if process is None or self.frame["process"].null_count() == self.frame.height:
            return self.frame
        wanted = (self.frame["process"] == process).fill_null(value=False)
        return self.frame if wanted.all() else self.frame.filter(wanted)

    def launched(self, marks: pl.DataFrame) -> tuple[int, int, int]:
        """Return the weight inside ``marks`` (disjoint, of one process), the weight from the first
        to the last of them, and that of the kernels inside that were launched on their threads."""
        process = marks["process"][0]
        work, kernels_by_thread = self._weights_of(process)
        first, last = marks["start"].min(), (marks["start"] + marks["duration"]).max()
        span = pl.DataFrame({"start": [first], "duration": pl.Series([last]) - first})
        threads = marks["thread"].unique().drop_nulls()
        on_threads = sum(
            kernels_by_thread[thread].inside(marks)
            for thread in threads
            if thread in kernels_by_thread
        )
        return work.inside(marks), work.inside(span), on_threads

    def _weights_of(self, process: int | None) -> tuple[_Weights, dict[int, _Weights]]:
        """Return the weights of all work of ``process``, and of the kernels of each thread.

        They are made once: a process may have thousands of threads with marks.
        """
        if process not in self.weights:
            work = self.of_process(process)
            kernels = work.filter(pl.col("kernel") & pl.col("thread").is_not_null())
            by_thread = kernels.partition_by("thread", maintain_order=True)
            kernels_by_thread = {part["thread"][0]: _Weights.of(part) for part in by_thread}
            self.weights[process] = _Weights.of(work), kernels_by_thread
        return self.weights[process]


class _Weights(msgspec.Struct, frozen=True):
    """The times of work, sorted, and the sums of the weights before each, and of all."""

    time: Ints
    total: Ints

    @classmethod
    def of(cls, work: pl.DataFrame) -> _Weights:
        total = np.concatenate(([0], np.cumsum(work["weight"].to_numpy())))
        return cls(work["time"].to_numpy(), total)

    def inside(self, windows: pl.DataFrame) -> int:
        """Return the weight inside ``windows``, which are disjoint."""
        start = windows["start"].to_numpy()
        end = start + windows["duration"].to_numpy()
        upto, before = (self.total[np.searchsorted(self.time, at)] for at in (end, start))
        return int((upto - before).sum())


def _without_overlaps(ranges: pl.DataFrame, trace: Trace, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost of the ``ranges``, without overlaps within a process.

    If ranges of several threads overlap, the thread that launches most work counts.
    """
    ranges = _with_process(ranges)
    kept = [ranges.clear()]
    for of_process in ranges.partition_by("process", maintain_order=True):
        threads = _timelines(of_process)
        if len(threads) > 1:
            work = Work.of(trace, activities)
            threads = [
                max(threads, key=lambda timeline: (work.launched(timeline)[2], timeline.height))
            ]
        kept += threads
    return pl.concat(kept)


def _with_process(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges with a process, or all ranges if no process is recorded."""
    with_process = pl.col("process").is_not_null()
    return ranges.filter(with_process) if ranges["process"].null_count() < ranges.height else ranges


def _outermost(ranges: pl.DataFrame, keys: Ints) -> pl.DataFrame:
    nesting = Nesting.of(keys, ranges["start"].to_numpy(), ranges["duration"].to_numpy())
    return ranges.filter(pl.Series(nesting.depth == 0, dtype=pl.Boolean))


class _Optimizer(msgspec.Struct, frozen=True):
    """The optimizer steps that end iterations: ``process``, ``thread`` and ``end``."""

    ends: pl.DataFrame

    @classmethod
    def of(cls, ranges: pl.DataFrame) -> _Optimizer:
        """Return the optimizer steps among ``ranges`` that end iterations.

        In each process they are the outermost ranges of the thread that has most, of the optimizer
        class that steps most often. Of equally frequent classes the one that starts last counts:
        two networks that are trained in turn step two optimizers per iteration. If every batch of
        the data loader has equally many steps, the last of them ends the iteration.
        """
        text = pl.col("text").cast(pl.String)
        by_program = ranges.filter(pl.col("kind").is_in(SET_BY_PROGRAM))
        optimizer_steps = _with_process(
            by_program.filter(text.str.starts_with(f"{OPTIMIZER_STEP}#")).select(
                "process",
                "thread",
                "start",
                "duration",
                text.str.extract(r"^([^,]*)", 1).alias("optimizer"),
            )
        )
        loads = by_program.filter(text.str.starts_with(_LOADS)).select("process", "start")
        (keys,) = thread_numbers(optimizer_steps)
        kept = []
        for of_process in _outermost(optimizer_steps, keys).partition_by(
            "process", maintain_order=True
        ):
            thread = max(
                of_process.partition_by("thread", maintain_order=True), key=lambda t: t.height
            )
            by_class = thread.partition_by("optimizer", maintain_order=True)
            of_class = max(by_class, key=lambda steps: (steps.height, steps["start"].min()))
            process = pl.col("process").eq_missing(pl.lit(of_process["process"][0], pl.Int64))
            kept.append(
                _last_of_batch(of_class.sort("start"), loads.filter(process)["start"].sort())
            )
        end = (pl.col("start") + pl.col("duration")).alias("end")
        return cls(pl.concat([optimizer_steps.clear(), *kept]).select("process", "thread", end))

    def table(self, fewest: int = 2) -> pl.DataFrame:
        """Return the steps between the ends, of processes with at least ``fewest`` ends."""
        ends = self.ends.filter(pl.len().over("process") >= fewest).sort("process", "end")
        start = pl.col("end").shift(1).over("process").fill_null(0)
        return conform(
            "steps",
            ends.select(
                pl.int_range(pl.len(), dtype=pl.Int64).over("process").alias("number"),
                start.alias("start"),
                (pl.col("end") - start).alias("duration"),
                "process",
                pl.lit(OPTIMIZER_STEP).alias("source"),
            ),
        )

    def agrees(self, marks: pl.DataFrame) -> bool:
        """Return whether ``marks``, of one process, can be iterations: they are on the optimizer's
        thread, and there is one of them per optimizer step."""
        process = pl.col("process").eq_missing(pl.lit(marks["process"][0], pl.Int64))
        ends = self.ends.filter(process)
        if ends.is_empty():
            return True
        if not marks["thread"].is_in(ends["thread"].implode(), nulls_equal=True).all():
            return False
        begun = np.searchsorted(np.sort(marks["start"].to_numpy()), ends["end"].to_numpy())
        return ends.height < 2 or bool(np.median(np.diff(begun)) < 2)


def _last_of_batch(steps: pl.DataFrame, loads: pl.Series) -> pl.DataFrame:
    """Return the last optimizer step after each of the ``loads`` of a batch.

    Return all steps if batches, except the first and the last, differ in the number of steps.
    """
    batch = np.searchsorted(loads.to_numpy(), steps["start"].to_numpy())
    last = np.flatnonzero(np.diff(batch, append=len(loads) + 1))
    sizes = np.diff(last, prepend=-1)
    whole = sizes[1:-1] if len(sizes) > 2 else sizes
    alike = len(sizes) > 1 and (whole == whole[0]).all() and sizes.max() == whole[0]
    return steps[last] if alike else steps


def _iterations(
    ranges: pl.DataFrame, trace: Trace, activities: pl.DataFrame, optimizer: _Optimizer
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the steps of ranges that are unambiguously iterations, and fallback candidates.

    In each process the ranges of one name count: those that launch most work, and of equals the
    fewest. Ranges are unambiguous if there are several, on a thread that launches kernels inside
    them (the optimizer's, if known), and not several per optimizer step (micro-batches).
    """
    stem = _names_of_steps(ranges["text"]).str.to_lowercase()
    sure_steps, possible_steps = [ranges.clear()], [ranges.clear()]
    if ranges.is_empty():
        return _step_table(ranges), _step_table(ranges)
    work = Work.of(trace, activities)
    for of_process in ranges.with_columns(stem.alias("stem")).partition_by(
        "process", maintain_order=True
    ):
        best: dict[bool, tuple[tuple[bool, int, int], pl.DataFrame]] = {}
        for of_stem in of_process.partition_by("stem", maintain_order=True):
            for timeline in _timelines(of_stem.drop("stem")):
                inside, between, kernel_weight = work.launched(timeline)
                if work.frame.height and inside < max(STEP_COVERAGE * between, 1):
                    continue
                is_sure = timeline.height > 1 and optimizer.agrees(timeline)
                is_sure = is_sure and (
                    kernel_weight > 0 or not work.of_process(timeline["process"][0]).height
                )
                # SGLang runs code of vLLM, which annotates its own part of an iteration.
                of_sglang = bool(Texts.of(timeline["text"]).matching(SERVERS["SGLang"]).any())
                score = (of_sglang, inside, -timeline.height)
                if is_sure not in best or score > best[is_sure][0]:
                    best[is_sure] = (score, timeline)
        for is_sure, (_, timeline) in best.items():
            (sure_steps if is_sure else possible_steps).append(timeline)
    return _step_table(pl.concat(sure_steps)), _step_table(pl.concat(possible_steps))


def _timelines(ranges: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the outermost ranges of one process, by thread if ranges of threads overlap."""
    (keys,) = thread_numbers(ranges)
    outer = _outermost(ranges, keys)
    if _outermost(outer, np.zeros(outer.height, dtype=np.int64)).height == outer.height:
        return [outer]
    return outer.partition_by("thread", maintain_order=True)


def _step_table(ranges: pl.DataFrame, marker: str | None = None) -> pl.DataFrame:
    """Return the ``steps`` table of ranges that are steps.

    Steps have the numbers of their texts, or are numbered in order if these are not distinct within
    a process.
    """
    ranges = _with_process(ranges)
    text = pl.col("text").cast(pl.String)
    number = pl.col("number")
    served = {text: iteration.number for text, iteration in iterations(ranges["text"]).items()}
    number_in_text = text.str.extract(_NUMBER, 1).cast(pl.Int64, strict=False)
    ordered = ranges.select(
        text.replace_strict(served, default=number_in_text, return_dtype=pl.Int64).alias("number"),
        "start",
        "duration",
        "process",
        _names_of_steps(ranges["text"]).alias("source"),
        "rank",
    ).sort("process", "start", maintain_order=True)
    if marker is not None and ordered["source"].n_unique() > 1:
        ordered = ordered.with_columns(pl.lit(marker).alias("source"))
    return conform(
        "steps",
        ordered.with_columns(
            pl.when((number.is_null() | number.is_duplicated()).any().over("process"))
            .then(pl.int_range(pl.len()).over("process"))
            .otherwise("number")
            .alias("number")
        ),
    )


def _names_of_steps(texts: pl.Series) -> pl.Series:
    """Return the names of the steps that ``texts`` mark: the texts without numbers."""
    served = {text: f"{iteration.server}{SOURCE}" for text, iteration in iterations(texts).items()}
    plain = texts.cast(pl.String)
    return plain.replace_strict(served, default=plain.str.extract(_STEM, 1), return_dtype=pl.String)


def whole_steps_within(table: pl.DataFrame, ranges: pl.DataFrame) -> Ints:
    """Return the number of whole steps of its process within each of ``ranges``.

    Steps that are found by optimizer or by the period of the kernels are not counted.
    """
    count = np.zeros(ranges.height, dtype=np.int64)
    marked = table.filter(~pl.col("source").is_in([PERIOD, OPTIMIZER_STEP]))
    start = ranges["start"].to_numpy()
    end = start + ranges["duration"].to_numpy()
    for process in marked["process"].unique():
        begins = marked.filter(pl.col("process").eq_missing(process)).select(
            pl.col("start").sort(), end=(pl.col("start") + pl.col("duration")).sort()
        )
        before = np.searchsorted(begins["start"].to_numpy(), start, side="left")
        until = np.searchsorted(begins["end"].to_numpy(), end, side="right")
        of_process = ranges["process"].eq_missing(process).to_numpy()
        count[of_process] = np.maximum(until - before, 0)[of_process]
    return count


def step_of(table: pl.DataFrame, process: pl.Series, time: pl.Series) -> Ints:
    """Return the row in ``table`` of the step of ``process`` at ``time``, or NONE.

    A null process is looked up among the steps of all processes.
    """
    if table.is_empty():
        return np.full(len(time), NONE, dtype=np.int64)
    if table["process"].n_unique() <= 1:
        start, when = table["start"].to_numpy(), time.to_numpy()
        order = np.argsort(start, kind="stable")
        last = np.searchsorted(start[order], when, side="right") - 1
        step = np.where(last < 0, NONE, order[last])
        return np.where(when < (start + table["duration"].to_numpy())[step], step, NONE)
    lookup = pl.DataFrame({"process": process, "time": time}).with_row_index("row")
    marks = table.with_row_index("step").with_columns(
        (pl.col("start") + pl.col("duration")).alias("end")
    )
    step_of_row = (
        lookup.sort("time")
        .join_asof(
            marks.select("step", "start", "end", "process").sort("start"),
            left_on="time",
            right_on="start",
            by="process",
            strategy="backward",
            check_sortedness=False,
        )
        .sort("row")
        .select(
            pl.when(pl.col("time") < pl.col("end"))
            .then(pl.col("step").cast(pl.Int64))
            .otherwise(NONE)
            .fill_null(NONE)
        )
    )
    return step_of_row.to_series().to_numpy()
