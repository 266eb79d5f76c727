"""``ranks``: the ranks of a distributed job, the slowest first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import polars as pl
from msgspec.structs import replace

from traceana.job.disagreements import DISAGREEMENTS, NUMBER_OF, OPERATION, ORDER, SIZE
from traceana.job.disagreements import MISSING as MISSING_COLLECTIVE
from traceana.job.exposed import CLASSES, EXPOSED, TRANSFER, UNCLASSIFIED
from traceana.job.parallelism import BY_DESCRIPTION, EXPERTS, GROUPS, PIPELINE
from traceana.job.ranks import (
    COLLECTIVES,
    COLUMNS,
    DAMAGED,
    MISSING,
    NOT_READ,
    OK,
    Job,
    job,
    merged,
    shard_of,
    summarize,
)
from traceana.job.slowdown import RANK_TYPES, SLOWDOWN, Slowdown, heat_of_types
from traceana.job.sources import Source, sources
from traceana.job.stragglers import (
    EXCESS,
    FEWEST_STEPS,
    RANKS,
    RUN,
    STEPS,
    STRAGGLERS,
    heat,
    in_runs,
)
from traceana.job.tasks import Done, Reading
from traceana.readers.ranks import spans
from traceana.readers.source import silent
from traceana.report import numbers
from traceana.report.page import Axis, Block, Chart, Facts, Marks, Notes, Page, Table
from traceana.report.pages import slowdown
from traceana.report.pages.single_table import data_of, notes_of, ranked, table_of, with_values
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, sums
from traceana.settings import STRAGGLER_SHARE
from traceana.table import Column, Kind, aggregated, by_name, completed, conformed, hiding

_SUMMED: Final = (
    *("kernels", "kernel_ns", "span_ns", "busy_ns", "compute_ns", "communication_ns"),
    *("exposed_communication_ns", "copy_ns", "exposed_copy_ns", "idle_ns", "wait_ns", "last_count"),
)
_MOST_NAMED: Final = 8
_MOST_DISAGREEMENTS: Final = 3
MOST_LINES: Final = 16
"""Ranks in the tables of a terminal."""
MOST_ROWS: Final = 32
MOST_CELLS: Final = 60
"""Runs of ranks and of steps in the heat map of a terminal."""


def ranks(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    keep: str | os.PathLike[str] | None = None,
    step_marker: str | None = None,
    device_model: str | None = None,
    rules: str | os.PathLike[str] | None = None,
    progress: Done = silent,
) -> CommandResult:
    """Return one row per rank of the job in ``paths``: files, or folders of them, or URLs.

    Every file is read by a task in a process of its own; ``workers`` is the number of processes
    (default: by cores and memory). With ``scheduler``, the address of a Dask scheduler or its
    scheduler file, its workers read; they need the files and the folder ``keep``. Summaries are
    kept in ``keep``, by default traceana's cache, and files that are unchanged are not read again.
    The columns are :data:`~traceana.job.ranks.COLUMNS`.

    The slowest ranks come first. Raises the errors of :mod:`traceana.errors`.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = sources(given)
    reading = Reading(step_marker, device_model, None if rules is None else os.fspath(rules))
    folder = None if keep is None else Path(keep)
    kept = summarize(files, reading, folder, workers=workers, scheduler=scheduler, done=progress)
    return page(job(kept))


def of_shards(folder: Path) -> CommandResult:
    """Return the rows of the summaries that :func:`write_shard` wrote into ``folder``."""
    return page(job(merged(folder)))


def write_shard(
    files: Sequence[Source],
    shard: str,
    reading: Reading,
    folder: Path,
    *,
    workers: int | None,
    scheduler: str | None = None,
    done: Done,
) -> int:
    """Write the summaries of ``shard``, i/N, into ``folder``; return their number."""
    kept = summarize(
        shard_of(files, shard), reading, folder, workers=workers, scheduler=scheduler, done=done
    )
    return sum(len(summary.folders) for summary in kept)


def page(all_ranks: Job) -> CommandResult:
    """Return the rows of a job with their page."""
    frame = all_ranks.rows
    result = Result(frame, sums(frame, *_SUMMED), tuple(_notes(all_ranks)), COLUMNS)
    return CommandResult.of(
        result,
        partial(_page, all_ranks),
        screenful=24,
        pictures=lambda: pictures(all_ranks),
        filterable=False,
    )


def _page(all_ranks: Job, shown: Arranged) -> Page:
    # The first line names the missing ranks, which have no figures.
    present = pl.col("status") != MISSING
    there, listed = all_ranks.rows.filter(present), shown.frame.filter(present)
    columns = COLUMNS
    if (there["status"] == OK).all():
        columns = hiding(COLUMNS, ("status", "reason"))
    hidden = there.height - listed.height
    table = table_of(replace(shown, frame=listed, hidden=hidden, columns=columns))
    each = [all_ranks.causes.get(rank) or None for rank in all_ranks.stragglers["rank"]]
    causes = pl.Series("cause", each, dtype=pl.String)
    sections = {
        "stragglers": Result(all_ranks.stragglers.with_columns(causes), columns=STRAGGLERS),
        "collectives": Result(all_ranks.collectives, columns=COLLECTIVES),
        "groups": Result(all_ranks.groups, columns=GROUPS),
        "disagreements": Result(all_ranks.disagreements, columns=DISAGREEMENTS),
        "steps": Result(all_ranks.own, columns=STEPS),
        "pipeline": Result(all_ranks.pipeline, columns=PIPELINE),
        "experts": Result(all_ranks.experts, columns=EXPERTS),
        "exposed": Result(all_ranks.exposed, columns=EXPOSED),
    }
    slow = all_ranks.slowdown
    if slow is not None and slowdown.is_sound(slow):
        sections["slowdown"] = Result(slow.rows, columns=SLOWDOWN)
        sections["rank_types"] = Result(slow.rank_types, columns=RANK_TYPES)
    source = {"ranks": all_ranks.rows.height, "read": _count(all_ranks.rows, OK, DAMAGED)}
    data = replace(data_of(shown, source, sections), summary=slowdown.summary(slow))
    facts = Facts(
        (*_disagreements(all_ranks.disagreements), *slowdown.facts(slow), *_facts(all_ranks))
    )
    listed_ranks = listed["rank"].drop_nulls().head(MOST_LINES)
    blocks: tuple[Block, ...] = (
        *(facts, table, *slowdown.blocks(slow, listed_ranks)),
        *_heat(all_ranks),
        *_exposed(all_ranks.exposed, listed_ranks),
        *_groups(all_ranks.groups),
        *notes_of(shown.notes),
    )
    return Page("ranks", blocks, data)


def _heat(all_ranks: Job) -> tuple[Block, ...]:
    """Return a line of shades a run of ranks, a shade a run of steps: how far the own time of the
    slowest is above the median."""
    cells = by_steps(all_ranks.own, MOST_ROWS, MOST_CELLS)
    if cells.is_empty():
        return ()
    slowest = (
        all_ranks.own.group_by("rank")
        .agg(pl.col("excess_ns").median())
        .join(in_runs(all_ranks.own["rank"], MOST_ROWS, "rank"), on="rank")
        .sort("excess_ns", "rank", descending=[True, False])
        .group_by(RANKS)
        .agg(pl.col("rank").first().alias("slowest"))
    )
    shades = (
        cells.with_columns(pl.col("band").replace_strict(SHADES).alias("shade"))
        .group_by(*RANKS, maintain_order=True)
        .agg(pl.col("shade").str.join("").alias("steps"))
        .join(slowest, on=RANKS, maintain_order="left")
        .with_columns(spanned(RANKS, "{}-{}").alias("ranks"))
    )
    first, last = cells.select(pl.col(RUN[0]).min(), pl.col(RUN[1]).max()).row(0)
    title = f"own time, steps {first} to {last}"
    columns = [Column("ranks", Kind.TEXT), Column("steps", Kind.LONG, title=title)]
    if (shades[RANKS[0]] != shades[RANKS[1]]).any():
        columns.insert(1, Column("slowest", Kind.NUMBER))
    table = Table(
        shades.select(column.name for column in columns), tuple(columns), layout="compact"
    )
    legend = "  ".join(f"{shade} {band}" for band, shade in SHADES.items())
    each = cells.group_by(pl.col(RUN[0])).len().height
    steps = -(-all_ranks.own["step"].n_unique() // each)
    ranks = -(-all_ranks.own["rank"].n_unique() // shades.height)
    most = [f"{count} {name}" for count, name in ((ranks, "ranks"), (steps, "steps")) if count > 1]
    label = "above the step's median rank"
    if most:
        label += f", the largest of {' and '.join(most)}"
    return (table, Notes(((label, legend),)))


def _exposed(exposed: pl.DataFrame, ranks: pl.Series) -> tuple[Table, ...]:
    """Return a line for each of the ``ranks``: exposed communication per step by class; none where
    all of it is unclassified."""
    classes = [name for name in CLASSES if (exposed["class"] == name).any()]
    if set(classes) <= {UNCLASSIFIED, TRANSFER}:
        return ()
    order = pl.DataFrame({"rank": ranks}).with_row_index("order")
    wide = exposed.pivot("class", index="rank", values="step_ns").join(order, on="rank")
    frame = wide.sort("order").select("rank", pl.col(classes).fill_null(0))
    time = by_name(EXPOSED)["step_ns"]
    columns = (
        Column("rank", Kind.NUMBER),
        *(replace(time, name=name, title=name, group="exposed communication per step")
          for name in classes),
    )  # fmt: skip
    return (Table(frame, columns, dropped=tuple(reversed(classes))),)


def _groups(groups: pl.DataFrame) -> tuple[Table, ...]:
    """Return the table of the process groups, one row per description and size."""
    named = groups.drop_nulls("group")
    if named.is_empty():
        return ()
    keys = [
        column.name
        for column in BY_DESCRIPTION
        if column.aggregate is None and column.value is None
    ]
    frame = aggregated(named, keys, BY_DESCRIPTION).sort(
        "time_ns", *keys, descending=[True, *[False] * len(keys)], nulls_last=True
    )
    frame = conformed(completed(frame, BY_DESCRIPTION), BY_DESCRIPTION)
    columns = with_values(frame, BY_DESCRIPTION)
    return (Table(frame, columns, dropped=ranked(BY_DESCRIPTION)),)


def _count(rows: pl.DataFrame, *status: str) -> int:
    return int(rows["status"].is_in(status).sum())


def _facts(all_ranks: Job) -> Iterator[tuple[str, str]]:
    rows = all_ranks.rows
    counts = [f"{_count(rows, OK, DAMAGED)} of {rows.height} read"]
    for status in (DAMAGED, NOT_READ, MISSING):
        if number := _count(rows, status):
            which = rows.filter(status=status)["rank"].drop_nulls().sort().to_list()
            counts.append(f"{number} {status}" + (f": {spans(which)}" if which else ""))
    yield "Ranks", " · ".join(counts)
    if _count(rows, OK, DAMAGED):
        yield "Table", "sums over the capture of each rank and its devices, slowest rank first"
    times = rows["step_median_ns"].drop_nulls().sort()
    if times.len():
        median, least, most = map(numbers.duration, (_median(times), times[0], times[-1]))
        yield "Step time", f"{median} median of the ranks' medians · {least} to {most}"
    for number, text in enumerate(_stragglers(all_ranks)):
        yield "" if number else "Stragglers", text
    if all_ranks.count_text:
        yield "Collectives", all_ranks.count_text
    yield from _parallelism(all_ranks)
    if all_ranks.exposed.height:
        summed = all_ranks.exposed.group_by("class").agg(pl.col("time_ns").sum())
        mean = {name: time / all_ranks.own.height for name, time in summed.iter_rows()}
        parts = [f"{name} {numbers.duration(mean[name])}" for name in CLASSES if name in mean]
        yield "Exposed comm.", f"{' · '.join(parts)}, mean per rank and step"
    offsets = rows.drop_nulls("clock_offset_ns")
    if offsets.height:
        ahead = offsets["clock_offset_ns"].abs()
        row = offsets.row(int(ahead.arg_max() or 0), named=True)
        yield (
            "Clocks",
            f"maximum offset from the median: rank {row['rank']}, "
            f"{numbers.signed(row['clock_offset_ns'])} ± "
            f"{numbers.duration(row['clock_uncertainty_ns'])}",
        )


_DISAGREE: Final = {
    MISSING_COLLECTIVE: "missing collective",
    OPERATION: "different collectives",
    ORDER: "different order of collectives",
    SIZE: "different message sizes",
    NUMBER_OF: "different numbers of collectives",
}


def _disagreements(rows: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield a line for each of the first disagreements between ranks."""
    for number, row in enumerate(rows.head(_MOST_DISAGREEMENTS).iter_rows(named=True)):
        ranks = f"rank{'' if row['ranks'].isdecimal() else 's'} {row['ranks']}"
        where = ["no recorded process group"]
        if row["group"] is not None:
            described = "" if row["description"] is None else f" ({row['description']})"
            where = [f"process group {row['group']}{described}"]
        if row["step"] is not None:
            where.append(f"step {row['step']}")
        if row["kind"] == NUMBER_OF:
            other, usual = row["other_calls"], row["calls"]
        else:
            where.append(f"collective {row['sequence']}")
            other = _message(row["other_collective"], row["other_bytes"])
            usual = _message(row["collective"], row["message_bytes"])
        more = f" · {row['count'] - 1:,} more" if row["count"] > 1 else ""
        hint = "" if number else " · a usual cause of hangs"
        yield (
            "" if number else "Problem",
            f"{_DISAGREE[row['kind']]}: {', '.join(where)}: {ranks}: {other}; others: {usual}"
            f"{more}{hint}",
        )


def _message(collective: str | None, size: int | None) -> str:
    if collective is None:
        return "none"
    return collective if size is None else f"{collective} of {numbers.size(size)}"


def _parallelism(all_ranks: Job) -> Iterator[tuple[str, str]]:
    bubbles = all_ranks.pipeline.drop_nulls("bubble_share").sort(
        "bubble_share", "rank", descending=[True, False]
    )
    if bubbles.height:
        whole = int(bubbles["bubble_ns"].sum()) / int(bubbles["wall_ns"].sum())
        first = bubbles.row(0, named=True)
        yield (
            "Pipeline",
            f"bubbles {numbers.share(whole)} of step time, all steps of "
            f"{numbers.counted(bubbles.height, 'rank')} · most on rank {first['rank']}: "
            f"{numbers.share(first['bubble_share'])}",
        )
    shares = all_ranks.experts.drop_nulls("imbalance")
    if shares.height:
        first = shares.row(0, named=True)
        yield (
            "Experts",
            f"rank {first['rank']} gets {first['imbalance']:.2f} times the mean of its group "
            f"({first['members']})",
        )


def _stragglers(all_ranks: Job) -> list[str]:
    """Return a verdict on each straggler, the slowest first.

    Without stragglers, name the rank that arrives last in most collectives, if the others wait
    long enough for it to matter.
    """
    arrived = all_ranks.arrivals.filter(2 * pl.col("last_count") > pl.col("count"))
    wait = "the other waits" if all_ranks.arrivals.height == 2 else "the others wait"
    per = " per step" if all_ranks.steps else ""
    arrives = {
        rank: f"rank {rank} arrives last in {numbers.count(last)} of "
        f"{numbers.counted(count, 'collective')}, {wait} "
        f"{numbers.duration(wait_ns / max(all_ranks.steps, 1))}{per}"
        for rank, count, last, wait_ns in arrived.iter_rows()
    }
    late = all_ranks.stragglers.filter("straggler")
    if late.is_empty():
        walls = all_ranks.own.group_by("rank").agg(pl.col("wall_ns").sum())["wall_ns"]
        least = STRAGGLER_SHARE * _median(walls if all_ranks.steps else all_ranks.rows["span_ns"])
        # Other work overlaps some of these waits: the cause has what the job loses.
        explained = slowdown.has_cause(all_ranks.slowdown)
        noticed = arrived.filter(pl.col("others_wait_ns") > least, not explained)["rank"].head(1)
        return [" · ".join([_no_straggler(all_ranks), *(arrives[rank] for rank in noticed)])]
    texts = []
    for row in late.head(_MOST_NAMED).iter_rows(named=True):
        rank, excess = row["rank"], f"own time {numbers.duration(row['excess_ns'])}"
        above = f"({numbers.share(row['excess_share'])}) above the median rank's"
        steps = numbers.counted(row["steps"], "step")
        text = f"rank {rank}: {excess} per step {above}, longest in {row['longest']} of {steps}"
        if rank in arrives:
            text = f"{arrives[rank]}; {excess} {above}"
        texts.append(f"{text} · {all_ranks.causes.get(rank) or 'cause not found'}")
    more = late.height - _MOST_NAMED
    return [*texts, *([f"{more} more"] if more > 0 else [])]


def _no_straggler(all_ranks: Job) -> str:
    if not all_ranks.steps:
        return "not determined: no common step of all ranks"
    steps, ranks = numbers.counted(all_ranks.steps, "step"), all_ranks.stragglers.height
    if ranks < 2:
        return "one rank: nothing to compare"
    if all_ranks.steps < FEWEST_STEPS:
        return f"not determined: {steps}, at least {FEWEST_STEPS} needed"
    if slowdown.has_cause(all_ranks.slowdown):
        return f"no rank by its own time in {steps}: see Cause"
    return f"none in {steps}"


def _notes(all_ranks: Job) -> Iterator[str]:
    if all_ranks.rows.is_empty():
        yield "no ranks"
    if all_ranks.apart is not None:
        yield all_ranks.apart
    if launched := int(all_ranks.rows.filter(status=OK)["problems"].sum()):
        yield f"launched before capture: {numbers.counted(launched, 'activity', 'activities')}"
    if all_ranks.left_out:
        few = numbers.counted(len(all_ranks.left_out), "rank")
        yield (
            f"own time, waits, last to arrive: without {few} with few steps: "
            f"{spans(all_ranks.left_out)}"
        )
    if all_ranks.collective_count and all_ranks.matched < all_ranks.collective_count:
        yield (
            f"waits, last to arrive, clocks: of {all_ranks.matched:,} of "
            f"{all_ranks.collective_count:,} collectives, those that every rank of their process "
            "group has"
        )


def _median(values: pl.Series) -> int:
    return int(values.median() or 0)  # type: ignore[arg-type]


def problems(result: Result) -> list[str]:
    """Return a line for each rank that is damaged or not read, and one for those missing."""
    return bad_ranks(result.frame)


def bad_ranks(rows: pl.DataFrame) -> list[str]:
    """Return the lines of :func:`problems` for the ``rows`` of a job."""
    bad = rows.filter(~pl.col("status").is_in([OK, MISSING]))
    lines = []
    for rank, file, status, reason in bad.select("rank", "file", "status", "reason").iter_rows():
        number = "" if rank is None else f"rank {rank} "
        # The error of a file begins with its path.
        where = "" if file in reason else f" ({file})"
        lines.append(f"{number}{status}: {reason}{where}")
    if missing := rows.filter(status=MISSING)["rank"].to_list():
        count = numbers.counted(len(missing), "rank")
        lines.append(f"{count} missing, without a file: {spans(missing)}")
    return lines


MOST_RANKS: Final = 24
"""The slowest ranks have a bar."""
MOST_DRAWN: Final = 5
_MEDIAN: Final = "median rank"

_MOST_ROWS, _MOST_COLUMNS = 64, 100
"""Runs of ranks and of steps in a heat map."""
_BANDS: Final = (("·", -inf), ("░", 0.02), ("▒", 0.05), ("▓", 0.1), ("█", 0.2))
"""Shade of a terminal -> least excess share."""
SHADES: Final = {
    "below 2 %": "·",
    **{f"from {round(100 * least)} %": shade for shade, least in _BANDS[1:]},
}
"""Band of excess shares -> its shade."""
_COLOURS: Final = ("#d5d9de", "#fdd49e", "#fc8d59", "#d7301f", "#7f0000")

_PARTS: Final = {
    "compute": pl.col("compute_ns"),
    "exposed collectives": pl.col("exposed_communication_ns"),
    "exposed copies": pl.col("exposed_copy_ns"),
    # Memsets, and work of the CPU.
    "other work": pl.col("busy_ns")
    - pl.col("compute_ns")
    - pl.col("exposed_communication_ns")
    - pl.col("exposed_copy_ns"),
    "idle": pl.col("idle_ns"),
}
"""Parts that add up to the capture of a rank."""


def pictures(all_ranks: Job) -> list[Chart]:
    """Return the pictures of a job: where the time goes, and who is slow when and in what."""
    return [
        *_parts(all_ranks.rows),
        *_exposed_bars(all_ranks.exposed, all_ranks.rows["rank"].drop_nulls().head(MOST_RANKS)),
        *_own_times(all_ranks.own),
        *_steps(all_ranks.rows, all_ranks.own),
        *_types(all_ranks.slowdown),
    ]


def banded(cells: pl.DataFrame) -> pl.DataFrame:
    """Return ``cells`` with the ``band`` of each ``excess_share``, by names of :data:`SHADES`."""
    share = pl.col("excess_share").fill_null(0)
    names = [*SHADES]
    band = pl.lit(names[0])
    for name, (_, least) in zip(names[1:], _BANDS[1:], strict=True):
        band = pl.when(share >= least).then(pl.lit(name)).otherwise(band)
    return cells.with_columns(band.alias("band"))


def spanned(ends: tuple[str, str], form: str) -> pl.Expr:
    """Return the run between the columns ``ends`` as text: its only number, or both by ``form``."""
    first, last = map(pl.col, ends)
    one = pl.format(form.partition("{}")[0] + "{}", first)
    return pl.when(first == last).then(one).otherwise(pl.format(form, first, last))


def by_steps(own_times: pl.DataFrame, most_ranks: int, most_steps: int) -> pl.DataFrame:
    """Return the cells of a heat map (:func:`~traceana.job.stragglers.heat`) with the ``band`` of
    their share; empty with less than two ranks or steps."""
    if own_times["step"].n_unique() < 2 or own_times["rank"].n_unique() < 2:
        return pl.DataFrame()
    return banded(heat(own_times, most_ranks, most_steps))


def _heat_map(title: str, summary: str, cells: pl.DataFrame, x: Axis, excess: Column) -> Chart:
    """Return the heat map of banded ``cells``, with the column ``x`` across and ranks down."""
    each = int(cells.select((pl.col(RANKS[1]) - pl.col(RANKS[0])).max()).item()) + 1
    if each > 1:
        summary = f"{summary[:-1]}: the largest of {each} ranks."
    shown = (Column("rank", Kind.NUMBER, title="slowest rank"),) if each > 1 else ()
    frame = cells.with_columns(
        pl.when(pl.col(RANKS[0]) == pl.col(RANKS[1]))
        .then(pl.format("rank {}", RANKS[0]))
        .otherwise(pl.format("ranks {} to {}", *RANKS))
        .alias("ranks")
    )
    marks = Marks(frame, "cell", "across", "ranks", colour="band", shown=(excess, *shown))
    colours = dict(zip(SHADES, _COLOURS, strict=True))
    return Chart(title, summary, x, Axis("", Kind.TEXT), (marks,), colours=colours)


def _own_times(own_times: pl.DataFrame) -> list[Chart]:
    """Return the heat map of own times, rank by step."""
    cells = by_steps(own_times, _MOST_ROWS, _MOST_COLUMNS)
    if cells.is_empty():
        return []
    return [
        _heat_map(
            "Own time of each rank, step by step",
            "Own time above that of the median rank in the step.",
            cells.with_columns(spanned(RUN, "{} to {}").alias("across")),
            Axis("step", Kind.TEXT),
            replace(EXCESS[1], title="above the median rank"),
        )
    ]


def _types(slow: Slowdown | None) -> list[Chart]:
    """Return the heat map of the ranks by type of work."""
    if slow is None or not slowdown.is_sound(slow) or slow.rank_types.is_empty():
        return []
    return [
        _heat_map(
            "Time of each rank by type of work",
            "Above the typical time of the type over all ranks and steps.",
            banded(heat_of_types(slow.rank_types, _MOST_ROWS)).rename({"type": "across"}),
            Axis("", Kind.TEXT),
            replace(by_name(RANK_TYPES)["excess_share"], title="above the typical time"),
        )
    ]


def _parts(rows: pl.DataFrame) -> list[Chart]:
    """Return a stacked bar a rank: its capture, by what its devices did."""
    read = rows.filter(pl.col("span_ns") > 0).head(MOST_RANKS)
    if read.is_empty():
        return []
    frame = pl.concat(
        read.select(
            pl.format("rank {}", "rank").alias("rank"),
            pl.lit(name).alias("what"),
            part.alias("time_ns"),
        )
        for name, part in _PARTS.items()
    ).filter(pl.col("time_ns") > 0)
    left_out = rows.filter(pl.col("span_ns") > 0).height - read.height
    summary = f"A bar for each of {numbers.counted(read.height, 'rank')}, the slowest first."
    return [
        Chart(
            "Time of each rank",
            f"{summary[:-1]}; {left_out} more in the table." if left_out else summary,
            Axis("time of the capture, summed over its devices", Kind.TIME),
            Axis("", Kind.TEXT),
            (Marks(frame, "bar", "time_ns", "rank", colour="what"),),
        )
    ]


def _exposed_bars(exposed: pl.DataFrame, ranks: pl.Series) -> list[Chart]:
    """Return a stacked bar for each of the ``ranks``: exposed communication per step by class."""
    order = pl.DataFrame({"rank": ranks}).with_row_index("order")
    shown = exposed.join(order, on="rank").sort("order", maintain_order=True)
    if shown.is_empty():
        return []
    frame = shown.with_columns(pl.format("rank {}", "rank").alias("rank"))
    return [
        Chart(
            "Exposed communication of each rank",
            f"Waits for other ranks by class, and transfers, per step: "
            f"{numbers.counted(frame['rank'].n_unique(), 'rank')}, the slowest first.",
            Axis("exposed time per step", Kind.TIME),
            Axis("", Kind.TEXT),
            (Marks(frame, "bar", "step_ns", "rank", colour="class"),),
        )
    ]


def _steps(rows: pl.DataFrame, own_times: pl.DataFrame) -> list[Chart]:
    """Return the own time by step: of the slowest ranks, and the median of all."""
    if own_times["step"].n_unique() < 2 or own_times["rank"].n_unique() < 2:
        return []
    named = rows["rank"].drop_nulls().head(MOST_DRAWN)
    lines = [
        own_times.filter(pl.col("rank") == rank).select(
            "step", "own_ns", pl.lit(f"rank {rank}").alias("of")
        )
        for rank in named
    ]
    middle = own_times.group_by("step").agg(pl.col("own_ns").median().round().cast(pl.Int64))
    lines.append(middle.sort("step").with_columns(pl.lit(_MEDIAN).alias("of")))
    frame = pl.concat(lines)
    return [
        Chart(
            "Own time by step",
            f"Step time less exposed waits for other ranks: {len(named)} of "
            f"{numbers.counted(own_times['rank'].n_unique(), 'rank')}, the slowest, and the "
            "median of all.",
            Axis("step", Kind.NUMBER, from_zero=False),
            Axis("own time", Kind.TIME, from_zero=False),
            (Marks(frame, "line", "step", "own_ns", colour="of"),),
        )
    ]
