"""``traceana ranks``: one row per rank of a distributed job, from summaries of the ranks.

The summaries of many ranks are joined in a tree: processes join the summaries of a few ranks, then
the joined ones, until few are left. These are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import polars as pl

from traceana import cache
from traceana.analyze.collective_ranks import Matched, match
from traceana.cores import cores
from traceana.enrich.classify import rules_in_use
from traceana.enrich.steps import matches_marker
from traceana.errors import CannotWriteError, NotFoundError, UsageError
from traceana.files import scratch_folder
from traceana.job.clocks import CLOCKS, offsets
from traceana.job.disagreements import disagreements
from traceana.job.exposed import exposed_by_class
from traceana.job.parallelism import BANDWIDTHS, bandwidths, experts, groups, pipeline
from traceana.job.rank_summary import TABLES, Facts, read_facts, read_table, summaries, write
from traceana.job.replay import JobSteps, job_steps
from traceana.job.segments import steps_of_job
from traceana.job.slowdown import Slowdown, slowdown
from traceana.job.sources import Source
from traceana.job.stragglers import (
    EXCESS,
    arrivals,
    by_step,
    cause,
    comparable,
    own_times,
    spent_per_step,
    stragglers,
)
from traceana.job.tasks import Done, Kept, Processes, Reading, default_workers, kept_or_read
from traceana.readers.ranks import check_one_run, rank_in
from traceana.readers.ranks import ranks as ranks_of
from traceana.table import (
    BYTES,
    COUNT,
    LONG,
    NUMBER,
    ONE_CALL,
    PART,
    STEP,
    TEXT,
    TIME,
    Column,
    aggregated,
    completed,
    conformed,
    laid_out,
    names_of,
    schema_of,
)
from traceana.timeline.operations import operations_of
from traceana.trace.ledger import REASONS

if TYPE_CHECKING:
    from traceana.trace import Trace

OK: Final = "ok"
DAMAGED: Final = "damaged"
NOT_READ: Final = "not read"
MISSING: Final = "missing"
"""The values of a rank's ``status``."""
_MOST_MISSING: Final = 100_000
"""Rows of missing ranks; a world size beyond is damaged."""

_WALL: Final = pl.col("wall_ns")
_TEXTS: Final = (
    Column("rank", NUMBER, "the rank; null of a file that was not read and has no rank"),
    Column(
        "status",
        LONG,
        "`ok`, `damaged` (figures of what is readable), `not read` or `missing` (of the recorded "
        "world size)",
    ),
    Column("reason", LONG, "the cause of another status than `ok`"),
    Column("file", TEXT, "the file"),
    Column("host", TEXT, "the recorded host"),
    Column("format", TEXT, "format of the file"),
    Column("problems", COUNT, "integrity problems of the file"),
)
_FIGURES: Final = (
    Column("devices", COUNT, "devices with work"),
    Column("kernels", COUNT, "number of kernels"),
    Column("kernel_ns", TIME, "summed durations of the kernels"),
    Column("span_ns", TIME, "length of the capture, summed over the devices"),
    Column("busy_ns", TIME, "the union of all work, summed over the devices"),
    Column(
        "compute_ns",
        TIME,
        "the union of the kernels other than collectives, summed over the devices",
        title="compute",
    ),
    Column("communication_ns", TIME, "the union of the collectives, summed over the devices"),
    Column(
        "exposed_communication_ns",
        TIME,
        "the part of that which no other kernel overlaps",
        title="exposed comm.",
    ),
    Column("copy_ns", TIME, "the union of the copies, summed over the devices"),
    Column(
        "exposed_copy_ns",
        TIME,
        "the part of that which no kernel overlaps",
        title="exposed copies",
    ),
)
"""The columns from :class:`~traceana.job.rank_summary.Facts`."""
_STEPS: Final = (
    Column("steps", COUNT, "number of measured steps", pl.len()),
    Column(
        "step_median_ns",
        TIME,
        "median of their wall times",
        _WALL.median().round(),
        title="median step",
        scale=STEP,
    ),
    Column("step_min_ns", TIME, "shortest wall time of a measured step", _WALL.min()),
    Column("step_max_ns", TIME, "longest wall time of a measured step", _WALL.max()),
)
_WAITS: Final = (
    Column(
        "wait_ns",
        TIME,
        "in the collectives matched across the ranks of their process group: the rank's waits for "
        "the last to arrive",
        pl.col("wait_ns").sum(),
        title="waiting",
    ),
    Column(
        "last_count",
        COUNT,
        "how often it was the last to arrive itself",
        pl.col("last").sum(),
        title="last to arrive",
    ),
    Column(
        "delay_ns",
        TIME,
        "by how much later than the rank before it, summed",
        pl.col("delay_ns").sum(),
    ),
)
_EVERY: Final = {
    column.name: column
    for column in (
        *(*_TEXTS, *_FIGURES),
        Column("idle_ns", TIME, "`span_ns` less `busy_ns`"),
        *(*_STEPS, *_WAITS, *CLOCKS, *EXCESS),
    )
}
_SHOWN: Final = (
    "rank status steps step_median_ns excess_share compute_ns exposed_communication_ns "
    "exposed_copy_ns idle_ns wait_ns last_count clock_offset_ns host reason"
)
COLUMNS: Final = laid_out(
    {**{name: _EVERY[name] for name in _SHOWN.split()}, **_EVERY}.values(),
    shown=_SHOWN,
    dropped="host clock_offset_ns exposed_copy_ns steps reason wait_ns last_count",
)
COLLECTIVES: Final = (
    Column("collective", PART, "the collective"),
    Column("message_bytes", BYTES, "message size as the NCCL tests define it"),
    Column("group_size", COUNT, "ranks of the process group"),
    Column("count", COUNT, "number of matched ones", pl.col("occurrence").n_unique()),
    Column("time_ns", TIME, "their durations, summed over the ranks", pl.col("time_ns").sum()),
    Column("wait_ns", TIME, "waits for the last to arrive", pl.col("wait_ns").sum()),
    Column("min_ns", TIME, "shortest duration", pl.col("time_ns").min(), scale=ONE_CALL),
    Column(
        "transfer_ns",
        TIME,
        "`time_ns` less `wait_ns`",
        value=pl.col("time_ns") - pl.col("wait_ns"),
    ),
    *BANDWIDTHS,
    Column("last_rank", NUMBER, "the rank that arrived last by most time, summed"),
    Column("last_count", COUNT, "how often it arrived last"),
)


class Job(msgspec.Struct, frozen=True):
    """The figures of a job, from the summaries of its ranks.

    ``rows`` has one row per rank, ``own`` the own time of each in each step
    (:func:`~traceana.job.stragglers.by_step`), ``arrivals`` who arrived last in collectives
    (:func:`~traceana.job.stragglers.arrivals`); ``stragglers``,
    ``collectives`` and ``groups`` are the tables of these names, ``causes`` has the cause of each
    straggler, ``matched`` and ``collective_count`` are numbers of collectives of all ranks.
    ``parts`` is where the time of each rank goes, ``pipeline`` and ``experts`` are tables of
    :mod:`traceana.job.parallelism`. ``left_out`` are the ranks with too few steps to be compared
    (:func:`~traceana.job.stragglers.comparable`), ``apart`` is what speaks against one job
    (:func:`~traceana.readers.ranks.check_one_run`). ``slowdown`` is what equal ranks would gain
    by a replay of ``job_steps``; None where the steps of the job cannot be replayed.
    ``disagreements`` are the collectives in which the ranks differ, ``exposed`` is the exposed
    communication by class (:mod:`traceana.job.exposed`).
    """

    rows: pl.DataFrame
    stragglers: pl.DataFrame
    own: pl.DataFrame
    arrivals: pl.DataFrame
    collectives: pl.DataFrame
    groups: pl.DataFrame
    causes: Mapping[int, str]
    collective_count: int
    matched: int
    steps: int
    parts: pl.DataFrame
    pipeline: pl.DataFrame
    experts: pl.DataFrame
    left_out: tuple[int, ...]
    apart: str | None
    slowdown: Slowdown | None
    job_steps: JobSteps | None
    disagreements: pl.DataFrame
    exposed: pl.DataFrame

    @property
    def count_text(self) -> str:
        """The number of matched collectives, in words; empty without any."""
        if not self.collective_count:
            return ""
        return f"{self.matched:,} of {self.collective_count:,} matched across ranks"


def shard_of(files: Sequence[Source], shard: str) -> list[Source]:
    """Return the files of ``shard``, ``i/N``: every Nth from the ith on.

    Raises :class:`~traceana.errors.UsageError` unless 1 <= i <= N.
    """
    number, _, of = shard.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UsageError(f"{shard!r} is not a shard: use i/N with i from 1 to N, such as 3/16")
    return list(files)[int(number) - 1 :: int(of)]


def summarize(
    files: Sequence[Source],
    reading: Reading,
    folder: Path | None,
    *,
    workers: int | None,
    scheduler: str | None = None,
    done: Done,
) -> list[Kept]:
    """Return the summaries of ``files``, kept in ``folder``, by default in traceana's cache.

    ``workers`` processes of this machine read them, or the workers of a Dask ``scheduler``. Raises
    :class:`~traceana.errors.CannotWriteError`, ``MissingDependencyError``, and the errors of wrong
    options.
    """
    # A wrong option is an error of the command, not of each rank.
    rules_in_use(None if reading.rules is None else Path(reading.rules))
    if reading.step_marker is not None:
        matches_marker(pl.Series([""]), reading.step_marker)
    target = cache.folder("ranks") if folder is None else folder
    try:
        if folder is None:
            target = cache.made("ranks")
        target.mkdir(parents=True, exist_ok=True)
        if scheduler is None:
            engine = Processes(workers or default_workers(files))
            return kept_or_read(files, reading, target, engine, done)
        from traceana.job.tasks import Cluster

        with closing(Cluster(scheduler)) as cluster:
            return kept_or_read(files, reading, target, cluster, done)
    except OSError as error:
        raise CannotWriteError(
            f"cannot keep summaries in {target}: {error.strerror or error}"
        ) from error


def merged(folder: Path) -> list[Kept]:
    """Return the summaries that ``--shard`` wrote into ``folder``, in order of their files.

    Raises ``NotFoundError`` where it has none, and where one is not as written.
    """
    kept: dict[str, Kept] = {}
    for target in sorted(folder.glob("*/")):
        folders = tuple(sorted(target.glob("[0-9]*")))
        facts = [read_facts(subfolder) for subfolder in folders]
        if None in facts:
            raise NotFoundError(f"{target} is not as it was written: run its shard again")
        for summary in facts[:1]:
            assert summary is not None
            kept[summary.source] = Kept(summary.source, folders)
    if not kept:
        raise NotFoundError(
            f"{folder} has no summaries of ranks: write them with --shard i/N --keep"
        )
    return [kept[source] for source in sorted(kept)]


def job(kept: Sequence[Kept]) -> Job:
    """Return the job of the summaries. Raises ``UsageError`` on two files of one rank, and on
    recordings that are not of one job."""
    folders = [folder for summaries in kept for folder in summaries.folders]
    facts = []
    for folder in folders:
        summary = read_facts(folder)
        if summary is None:
            raise NotFoundError(f"{folder} is not as it was written: run the command again")
        facts.append(summary)
    numbers, how = _numbers(facts)
    read = {
        number: (folder, summary)
        for number, folder, summary in zip(numbers, folders, facts, strict=True)
        if number is not None and not summary.reason
    }
    of_ranks = {rank: folder for rank, (folder, _) in read.items()}
    tables = gathered(of_ranks, "steps", "process_groups", "collectives", "idle", "operations")
    steps = tables["steps"]
    # Ranks of a group are a long text, and each of thousands of ranks has it.
    named = tables["process_groups"].with_columns(
        pl.col("group_name", "description", "group_ranks").cast(pl.Categorical)
    )
    epochs = pl.DataFrame(
        [(rank, summary.epoch_ns) for rank, (_, summary) in sorted(read.items())],
        schema={"rank": pl.Int64, "epoch_ns": pl.Int64},
        orient="row",
    )
    collectives = (
        tables["collectives"]
        .join(epochs, on="rank", how="left", maintain_order="left")
        .join(named, on=["rank", "process_group"], how="left", maintain_order="left")
    )
    ranks_read = [summary for _, summary in read.values()]
    apart = check_one_run(
        [Path(rank.source) for rank in ranks_read],
        [(rank.epoch_ns, rank.span_ns // max(rank.devices, 1)) for rank in ranks_read],
        how,
        communicating=collectives.height > 0,
    )
    smaller = any(rank.smaller_groups for rank in ranks_read)
    world = max(_world(facts), len(read))
    matched_of_all = match(collectives, read.keys(), world, smaller=smaller)
    clocks = offsets(matched_of_all)
    compared = comparable(steps)
    left_out = sorted(set(steps["rank"]).difference(compared["rank"]))
    matched, given = matched_of_all, collectives
    if left_out:
        # Collectives of the other ranks that these lack have waits all the same.
        given = collectives.filter(~pl.col("rank").is_in(left_out))
        matched = match(given, read.keys() - left_out, world, smaller=smaller)
    times = own_times(compared, matched.each)
    late = stragglers(times)
    # Time without any collective before it begins on the rank.
    end = pl.col("start_ns") + pl.col("time_ns")
    unused = pl.col("start_ns") - end.cum_max().over("rank").shift(1).over("rank").fill_null(0)
    pieces = given.with_row_index("row").select(
        *("row", "piece", "ends_in", "exposed_ns", "start_ns", "description"),
        unused.clip(lower_bound=0).alias("unused_ns"),
    )
    each = matched.each.join(pieces, on="row", how="left", maintain_order="left")
    stages = pipeline(steps, collectives)
    sharded = [rank for rank, (_, summary) in read.items() if summary.sharded]
    steps_to_replay = steps_of_job(tables["operations"], times, each, clocks)
    return Job(
        _rows(numbers, facts, steps, read, matched, late, clocks),
        late,
        by_step(times),
        arrivals(matched.each, times["step"].unique()),
        _by_collective(matched),
        groups(collectives, matched, {rank: summary.host for rank, (_, summary) in read.items()}),
        _causes(read, late, steps, tables["idle"]),
        matched_of_all.count,
        matched.matched,
        times["step"].n_unique(),
        _parts(read, steps, tables["idle"]),
        stages,
        experts(collectives),
        tuple(left_out),
        apart,
        None if steps_to_replay is None else slowdown(steps_to_replay),
        steps_to_replay,
        disagreements(given, matched, compared),
        exposed_by_class(times, compared, each, stages, sharded),
    )


def job_steps_of(trace: Trace) -> JobSteps | None:
    """Return the steps of the ranks of ``trace``, which is whole; None where they cannot be
    compared."""
    if trace.tables.operations.height:
        return job_steps(operations_of(trace))
    with scratch_folder() as folder:
        folders = []
        for number, summary in enumerate(summaries(trace)):
            folders.append(folder / f"{number:06}")
            write(summary, folders[-1])
        return job([Kept(trace.meta.source, tuple(folders))]).job_steps


def _numbers(facts: Sequence[Facts]) -> tuple[list[int | None], str]:
    """Return the rank of each summary, None for a file that was not read and has no rank, and the
    source of the ranks."""
    read = [summary for summary in facts if not summary.reason]
    files = [Path(summary.source) for summary in read]
    ranks, how = ranks_of(files, [summary.recorded for summary in read])
    of_read = iter(ranks)
    taken: set[int | None] = {*ranks}
    numbers: list[int | None] = []
    for summary in facts:
        if not summary.reason:
            numbers.append(next(of_read))
            continue
        named = rank_in(Path(summary.source))
        free = named is not None and named not in taken
        numbers.append(named if free else None)
        if free:
            taken.add(named)
    return numbers, how


def _rows(
    numbers: Sequence[int | None],
    facts: Sequence[Facts],
    steps: pl.DataFrame,
    read: Mapping[int, tuple[Path, Facts]],
    matched: Matched,
    late: pl.DataFrame,
    clocks: pl.DataFrame,
) -> pl.DataFrame:
    """Return the ranks: not read first, then stragglers, then by own time; missing last."""
    rows: list[tuple[Any, ...]] = [
        (
            *(number, *_status(summary), summary.source, summary.host, summary.format),
            sum(summary.problems.values()),
            *(None if summary.reason else getattr(summary, figure.name) for figure in _FIGURES),
        )
        for number, summary in zip(numbers, facts, strict=True)
    ]
    schema = schema_of((*_TEXTS, *_FIGURES))
    missing = sorted(set(range(_world(facts))) - set(numbers))
    # A file without a rank is that of a missing one.
    if sum(number is None for number in numbers) < len(missing):
        empty = (None,) * (len(schema) - 3)
        rows += [(rank, MISSING, "no file of this rank", *empty) for rank in missing]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    of_steps = aggregated(steps.filter(~pl.col("warm_up")), ["rank"], _STEPS)
    waits = aggregated(matched.each, ["rank"], _WAITS)
    for table in (of_steps, waits, clocks, late.select("rank", *names_of(EXCESS))):
        frame = frame.join(table, on="rank", how="left", maintain_order="left")
    was_read = pl.col("rank").is_in(list(read))
    frame = frame.with_columns(
        pl.when(was_read).then(pl.col("steps").fill_null(0)).alias("steps"),
        (pl.col("span_ns") - pl.col("busy_ns")).alias("idle_ns"),
        pl.col("straggler").fill_null(value=False),
    ).sort(
        pl.col("status") == MISSING,
        pl.col("status") == OK,
        ~pl.col("straggler"),
        "excess_ns",
        "rank",
        descending=[False, False, False, True, False],
        nulls_last=True,
    )
    return conformed(frame, COLUMNS)


def _status(facts: Facts) -> tuple[str, str | None]:
    if facts.reason:
        return NOT_READ, facts.reason
    if facts.truncated:
        return DAMAGED, "truncated file"
    # Work that was launched before the capture is whole.
    lost = {reason: count for reason, count in facts.problems.items() if reason != "no_launch"}
    if lost:
        listed = "; ".join(f"{count:,}: {REASONS[reason][1]}" for reason, count in lost.items())
        return DAMAGED, f"integrity problems: {listed}"
    return OK, None


def _world(facts: Sequence[Facts]) -> int:
    """Return the number of ranks that the files record, 0 where they do not."""
    return min(max((summary.world_size or 0 for summary in facts), default=0), _MOST_MISSING)


def _by_collective(matched: Matched) -> pl.DataFrame:
    """Return the columns :data:`COLLECTIVES` of the matched ones, most waiting first."""
    keys = ["collective", "message_bytes", "group_size"]
    last = (
        matched.each.filter("last")
        .group_by(*keys, "rank")
        .agg(pl.len().alias("last_count"), pl.col("delay_ns").sum())
        .sort("delay_ns", "last_count", "rank", descending=[True, True, False])
        .unique(keys, keep="first", maintain_order=True)
        .select(*keys, pl.col("rank").alias("last_rank"), "last_count")
    )
    rows = (
        aggregated(matched.each, keys, COLLECTIVES)
        .join(bandwidths(matched, keys), on=keys, how="left", nulls_equal=True)
        .join(last, on=keys, how="left", nulls_equal=True)
        .sort("wait_ns", *keys, descending=[True, False, False, False], nulls_last=True)
    )
    return conformed(completed(rows, COLLECTIVES), COLLECTIVES)


def _parts(
    read: Mapping[int, tuple[Path, Facts]], steps: pl.DataFrame, idle: pl.DataFrame
) -> pl.DataFrame:
    """Return where the time of each rank's devices goes, per step of its capture.

    ``rank``, ``part``, ``cause`` (of idle time, else null) and ``step_ns``.
    """
    counts = dict(steps.group_by("rank").len().rows())
    rows: list[tuple[int, str, str | None, float]] = []
    for rank, (_, summary) in sorted(read.items()):
        exposed = summary.compute_ns + summary.exposed_communication_ns + summary.exposed_copy_ns
        times = {
            "compute": summary.compute_ns,
            "exposed collectives": summary.exposed_communication_ns,
            "exposed copies": summary.exposed_copy_ns,
            "other work": summary.busy_ns - exposed,
        }
        rows += [(rank, part, None, time / counts.get(rank, 1)) for part, time in times.items()]
    rows += [
        (rank, "idle", cause, time / counts.get(rank, 1))
        for rank, cause, time in idle.select("rank", "cause", "time_ns").rows()
    ]
    schema = {"rank": pl.Int64, "part": pl.String, "cause": pl.String, "step_ns": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _causes(
    read: Mapping[int, tuple[Path, Facts]],
    late: pl.DataFrame,
    steps: pl.DataFrame,
    idle: pl.DataFrame,
) -> dict[int, str]:
    slow = late.filter("straggler")
    if slow.is_empty():
        return {}
    counts = dict(steps.group_by("rank").len().rows())
    compute = {rank: facts.compute_ns for rank, (_, facts) in read.items()}
    spent = spent_per_step(compute, idle, counts)
    # The largest of the tables, which only this needs.
    of_ranks = {rank: folder for rank, (folder, _) in read.items()}
    kernels = gathered(of_ranks, "kernels")["kernels"]
    kernels = kernels.filter(pl.col("category").fill_null("") != "collective")
    return {
        rank: cause(rank, spent, kernels, excess)
        for rank, excess in slow.select("rank", "excess_ns").iter_rows()
    }


FEW: Final = 256
"""Summaries that are read directly: to start processes takes longer."""
AT_ONCE: Final = 64
"""Summaries that a task puts together."""

_Part: TypeAlias = tuple[int | None, Path]
"""A folder with tables, and the rank that it is of; None where the tables have ranks."""


def gathered(folders: Mapping[int, Path], *names: str) -> dict[str, pl.DataFrame]:
    """Return the tables ``names`` of all ranks, with ``rank``, in order of the ranks.

    ``folders`` are the summaries by rank.
    """
    parts: list[_Part] = sorted(folders.items())
    if len(parts) <= FEW:
        return {name: _together(parts, name) for name in names}
    engine = Processes(cores())
    with scratch_folder() as scratch:
        root, level = parts, 0
        try:
            with engine.pool() as pool:
                while len(root) > AT_ONCE:
                    level += 1
                    groups = [root[at : at + AT_ONCE] for at in range(0, len(root), AT_ONCE)]
                    targets = [scratch / f"{level}-{number}" for number in range(len(groups))]
                    list(pool.map(_merge, groups, repeat(names), targets))
                    root = [(None, target) for target in targets]
        except engine.died:
            root = parts
        return {name: _together(root, name) for name in names}


def _merge(parts: Sequence[_Part], names: Sequence[str], target: Path) -> None:
    target.mkdir()
    for name in names:
        _together(parts, name).write_parquet(target / f"{name}.parquet", compression="lz4")


def _together(parts: Sequence[_Part], name: str) -> pl.DataFrame:
    tables = [pl.DataFrame(schema={"rank": pl.Int64, **TABLES[name]})]
    for rank, folder in parts:
        table = read_table(folder, name)
        if rank is not None:
            table = table.select(pl.lit(rank, pl.Int64).alias("rank"), pl.all())
        tables.append(table)
    return pl.concat(tables)
