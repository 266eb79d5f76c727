"""How much slower a job is than with equal ranks, what explains it, and its cause.

The slowdown is the replayed step over the step in which every operation takes the typical time of
its type, after Lin et al., "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025). Both are replayed without launch delays, so that the delays cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.columns.nesting import Flags, Ints
from traceana.job.replay import LATE_START, JobSteps, step_times
from traceana.job.stragglers import RANKS, chance_of_mean, in_runs
from traceana.settings import STRAGGLER_CAUSE, STRAGGLER_CHANCE, STRAGGLER_SHARE
from traceana.table import COUNT, NUMBER, RATIO, SHARE, STEP, TEXT, TIME, Column, conformed
from traceana.timeline.operations import PASSES

Floats = npt.NDArray[np.float64]

WORST, STAGE, DP_RANK, TYPE, STEPS = "worst ranks", "stage", "dp rank", "type", "step"
"""What a slowdown is explained by."""
NONE, RANK, LINK, RANDOM, DATA, HOST, OPEN = (
    *("none", "rank", "link", "random steps", "unequal micro-batches", "host", "not determined"),
)
"""Causes of a slowdown, with ``STAGE``."""
_WORST_SHARE: Final = 0.03
"""Part of the ranks that the field compares with the others: a machine in 30."""
_CORRELATED: Final = 0.5
"""Correlation of the forward and backward times of a micro-batch whose amount of work differs."""
_OUTLIER: Final = 5
"""Median absolute deviations of a step above the median step."""
_MOST_REPLICAS: Final = 64
"""Data-parallel ranks with a replay of their own: those with most excess."""

SLOWDOWN: Final = (
    Column(
        "by",
        TEXT,
        "`worst ranks`, `stage`, `dp rank` (the 64 with most excess), `type` or `step`",
    ),
    Column("item", TEXT, "number of the stage, data-parallel rank or step; type; the worst ranks"),
    Column("count", COUNT, "number of ranks; null of types and steps", title="ranks"),
    Column(
        "slowdown",
        RATIO,
        "of the job if only these operations took their own time and all others the typical time "
        "of their type; of a step: its own",
    ),
    Column(
        "typical_ns",
        TIME,
        "mean step if these operations took the typical time of their type; null of a step",
        title="step if typical",
        scale=STEP,
    ),
    Column(
        "explained",
        SHARE,
        "the part of the excess over the step of typical times that this removes; of a step its "
        "part of the excess of all steps",
    ),
)
"""What the slowdown is of."""
RANK_TYPES: Final = (
    Column("rank", NUMBER, "the rank"),
    Column("type", TEXT, "type of work"),
    Column("time_ns", TIME, "its time per step, without waits for other ranks", scale=STEP),
    Column("excess_share", SHARE, "above the typical time of the type, per operation", signed=True),
)
"""The time of each rank by type of work."""


class Slowdown(msgspec.Struct, frozen=True):
    """The slowdown of a job and its cause.

    ``recorded_ns`` is the mean step as recorded, ``replayed_ns`` without launch delays,
    ``typical_ns`` with typical times. ``rows`` has the columns :data:`SLOWDOWN`, ``rank_types``
    those of :data:`RANK_TYPES`. ``explained`` is the part of the excess that goes with the cause,
    ``ranks`` are the ranks of it, ``subject`` names what is slow.
    """

    recorded_ns: float
    replayed_ns: float
    typical_ns: float
    steps: int
    rows: pl.DataFrame
    rank_types: pl.DataFrame
    cause: str
    subject: str = ""
    explained: float | None = None
    ranks: tuple[int, ...] = ()

    @property
    def slowdown(self) -> float:
        """The replayed step over that of typical times."""
        return self.replayed_ns / self.typical_ns

    @property
    def launch_slowdown(self) -> float:
        """The recorded step over the replayed one: launch delays, which are the replay's error."""
        return self.recorded_ns / self.replayed_ns


class _Replays:
    """The mean step time of scenarios: some operations take their own time, others the typical."""

    def __init__(self, job: JobSteps) -> None:
        self.job = job
        self.typical = job.typical_times()
        self.own_steps, self.typical_steps = step_times(job, [job.time, self.typical]).astype(float)
        self.own, self.ideal = float(self.own_steps.mean()), float(self.typical_steps.mean())

    def mean(self, scenarios: Iterable[Ints]) -> list[float]:
        """Return the mean step of each scenario."""
        return [float(steps.mean()) for steps in step_times(self.job, scenarios)]

    def only_own(self, masks: Iterable[Flags]) -> list[float]:
        """Return the slowdown if only the operations of each mask take their own time."""
        scenarios = (np.where(mask, self.job.time, self.typical) for mask in masks)
        return [mean / self.ideal for mean in self.mean(scenarios)]

    def only_typical(self, masks: Iterable[Flags]) -> list[float]:
        """Return the mean step if only the operations of each mask take the typical time."""
        return self.mean(np.where(mask, self.typical, self.job.time) for mask in masks)

    def share(self, mean: float) -> float | None:
        """Return the part of the excess by which ``mean`` is below the step."""
        excess = self.own - self.ideal
        return (self.own - mean) / excess if excess > 0 else None


def slowdown(job: JobSteps) -> Slowdown | None:
    """Return the slowdown of ``job``; None where its steps take no time."""
    replays = _Replays(job)
    if not replays.ideal > 0 or not replays.own > 0:
        return None
    worst, rows = _explained(replays)
    cause, subject, explained, ranks = _cause(replays, worst)
    return Slowdown(
        float(job.recorded.mean()),
        replays.own,
        replays.ideal,
        len(job.numbers),
        rows,
        _rank_types(replays),
        cause,
        subject,
        explained,
        ranks,
    )


def worst_ranks(job: JobSteps) -> list[int]:
    """Return the ranks of ``job`` that slow it, the one that explains most first."""
    return _explained(_Replays(job))[0]


def _explained(replays: _Replays) -> tuple[list[int], pl.DataFrame]:
    """Return the ranks, the worst first, and the rows of :data:`SLOWDOWN`."""
    job = replays.job
    place_stage = job.places["stage"].to_numpy()[:, None, None]
    # A send and its receive are one transfer.
    types = job.places["name"].str.replace("-(send|recv)$", "-send-recv")
    place_type = types.to_numpy()[:, None, None]
    stages = sorted({*job.places["stage"]})
    masks: dict[tuple[str, str], Flags] = {}
    if len(stages) > 1:
        masks |= {(STAGE, str(stage)): place_stage == stage for stage in stages}
    excess_work = (job.time - replays.typical).sum(axis=(0, 2))
    likely = np.sort(np.argsort(-excess_work, kind="stable")[:_MOST_REPLICAS])
    for replica in likely if len(likely) > 1 else ():
        chosen = np.arange(len(job.dp_ranks)) == replica
        masks[DP_RANK, str(job.dp_ranks[replica])] = chosen[None, :, None]
    masks |= {(TYPE, name): place_type == name for name in sorted({*types})}
    alone = dict(zip(masks, replays.only_own(masks.values()), strict=True))
    # The slowdown by a rank is at most that by its stage and by its data-parallel rank.
    score = {
        int(rank): min(
            alone.get((STAGE, str(stage)), np.inf),
            alone.get((DP_RANK, str(dp_rank)), np.inf if len(likely) < 2 else 1.0),
        )
        for stage, place_ranks in zip(job.places["stage"], job.ranks, strict=True)
        for dp_rank, rank in zip(job.dp_ranks, place_ranks, strict=True)
    }
    worst = sorted(score, key=lambda rank: (-score[rank], rank))
    counts = {1 << power for power in range(len(worst).bit_length()) if 1 << power < len(worst)}
    counts |= {int(np.ceil(_WORST_SHARE * len(worst)))}
    groups = {count: worst[:count] for count in sorted(counts)} if len(worst) > 1 else {}
    of_worst = {count: np.isin(job.ranks, group)[:, :, None] for count, group in groups.items()}
    alone_of_worst = replays.only_own(of_worst.values())
    fixed = replays.only_typical([*of_worst.values(), *masks.values()])
    sizes = {STAGE: len(job.dp_ranks), DP_RANK: len(stages)}
    described = [
        *((WORST, ", ".join(map(str, group)), count) for count, group in groups.items()),
        *((by, item, sizes.get(by)) for by, item in masks),
    ]
    rows: list[tuple[str, str, int | None, float, float | None, float | None]] = [
        (*description, alone_value, mean, replays.share(mean))
        for description, alone_value, mean in zip(
            described, [*alone_of_worst, *alone.values()], fixed, strict=True
        )
    ]
    excess = replays.own_steps - replays.typical_steps
    whole = float(excess.sum())
    rows += [
        (STEPS, str(number), None, ratio, None, more / whole if whole > 0 else None)
        for number, ratio, more in zip(
            job.numbers, replays.own_steps / replays.typical_steps, excess, strict=True
        )
    ]
    columns = {column.name: column.kind.dtype for column in SLOWDOWN}
    schema = {**columns, "typical_ns": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return worst, conformed(frame.with_columns(pl.col("typical_ns").round()), SLOWDOWN)


def _rank_types(replays: _Replays) -> pl.DataFrame:
    job = replays.job
    typical = pl.Series("typical", replays.typical.ravel())
    rows = (
        job.rows()
        .with_columns(typical)
        .group_by("rank", pl.col("name").alias("type"))
        .agg(
            (pl.col("time").sum() / len(job.numbers)).round().alias("time_ns"),
            pl.when(pl.col("typical").sum() > 0)
            .then(pl.col("time").sum() / pl.col("typical").sum() - 1)
            .alias("excess_share"),
        )
    )
    return conformed(rows, RANK_TYPES).sort("rank", "type")


def heat_of_types(rank_types: pl.DataFrame, most_ranks: int) -> pl.DataFrame:
    """Return ``rank_types`` by runs of consecutive ranks and by type.

    The columns are ``RANKS``, ``type``, the largest ``excess_share``, and the ``rank`` that has it.
    """
    return (
        rank_types.join(in_runs(rank_types["rank"], most_ranks, "rank"), on="rank")
        .sort("excess_share", "rank", descending=[True, False], nulls_last=True)
        .group_by(*RANKS, "type")
        .agg(pl.col("excess_share", "rank").first())
        .sort(*RANKS, "type")
    )


def _cause(
    replays: _Replays, worst: Sequence[int]
) -> tuple[str, str, float | None, tuple[int, ...]]:
    """Return the cause, what is slow, the part of the excess that goes with it, and its ranks."""
    job = replays.job
    excess = replays.own / replays.ideal - 1
    launches = float(job.recorded.mean()) / replays.own - 1
    if job.patterns is None and launches > STRAGGLER_SHARE and launches > excess:
        return HOST, "", None, ()
    if excess <= STRAGGLER_SHARE or len(worst) < 2:
        return NONE, "", None, ()
    transfers = job.places["is_transfer"].to_numpy()[:, None, None] & np.ones(
        job.time.shape, dtype=np.bool_
    )
    by_stage, by_rank = (
        np.where(transfers, replays.typical, job.typical_times(key)) for key in ("stage", "rank")
    )
    without_transfers, only_stages, only_ranks = replays.mean(
        [np.where(transfers, replays.typical, job.time), by_stage, by_rank]
    )
    whole = replays.own - replays.ideal
    of_transfers = (replays.own - without_transfers) / whole
    of_stages = (only_stages - replays.ideal) / whole
    of_ranks = (only_ranks - only_stages) / whole
    if of_transfers >= STRAGGLER_CAUSE:
        subject, ranks = _slow_link(replays)
        return LINK, subject, of_transfers, ranks
    rows = job.rows().with_columns(pl.Series("typical", replays.typical.ravel()))
    work = rows.filter(~pl.col("is_transfer"), pl.col("name") != LATE_START)
    if of_stages >= STRAGGLER_CAUSE and (slow := _slowest(work, "stage", None)) is not None:
        ranks = tuple(sorted({*work.filter(stage=slow)["rank"].to_list()}))
        return STAGE, f"stage {slow}{_mostly(work.filter(stage=slow))}", of_stages, ranks
    if of_ranks >= STRAGGLER_CAUSE and (slow := _slowest(work, "rank", "stage")) is not None:
        return RANK, f"rank {slow}{_mostly(work.filter(rank=slow))}", of_ranks, (slow,)
    ratio = replays.own_steps / replays.typical_steps
    middle = float(np.median(ratio))
    deviation = float(np.median(np.abs(ratio - middle)))
    outliers = ratio - middle > _OUTLIER * deviation
    concentrated = float((ratio - middle)[outliers].sum() / (ratio - 1).sum())
    if concentrated >= STRAGGLER_CAUSE and 2 * int(outliers.sum()) < len(ratio):
        numbers = ", ".join(map(str, job.numbers[outliers]))
        return RANDOM, f"steps {numbers}", concentrated, ()
    correlation = _micro_batch_correlation(rows)
    if correlation is not None and correlation >= _CORRELATED:
        passes = job.places["name"].is_in(PASSES).to_numpy()[:, None, None]
        (equal,) = replays.mean([np.where(passes, by_stage, job.time)])
        return DATA, f"{correlation:.2f}", replays.share(equal), ()
    return OPEN, "", None, ()


def _slowest(work: pl.DataFrame, key: str, within: str | None) -> int | None:
    """Return the ``key`` whose work takes longest per step, compared with all or those of one
    ``within``; None where chance explains it.

    The test is that of the mean over the steps of its relative excess over the median of the
    others (Student's t), times the number of keys.
    """
    others = [within] if within else []
    per_step = work.group_by(*dict.fromkeys((key, *others)), "step").agg(
        (pl.col("time").sum() / pl.col("typical").sum()).alias("ratio")
    )
    excess = per_step.with_columns(
        (pl.col("ratio") - pl.col("ratio").median().over("step", *others)).alias("excess")
    )
    rows = (
        excess.group_by(key)
        .agg(
            pl.col("excess").mean().alias("mean"),
            pl.col("excess").std().alias("deviation"),
            pl.len().alias("steps"),
        )
        .sort("mean", key, descending=[True, False])
    )
    slow, mean, deviation, steps = rows.row(0)
    chance = rows.height * chance_of_mean(mean, deviation, steps)
    return int(slow) if chance < STRAGGLER_CHANCE else None


def _mostly(work: pl.DataFrame) -> str:
    """Return the type of work with most excess over the typical time, in words."""
    by_type = work.group_by("name").agg(pl.col("time").sum(), pl.col("typical").sum())
    more = by_type.with_columns((pl.col("time") - pl.col("typical")).alias("more"))
    first = more.sort("more", "name", descending=[True, False]).row(0, named=True)
    if not first["more"] > 0 or not first["typical"] > 0:
        return ""
    return f": {first['name']} takes {first['time'] / first['typical']:.2f} times the typical time"


def _slow_link(replays: _Replays) -> tuple[str, tuple[int, ...]]:
    """Return the link whose transfers have half of the excess over the typical time, in words, and
    its ranks; without such a link the type with most of it."""
    job = replays.job
    excess = (job.time - replays.typical).clip(min=0)
    parts = []
    for places, across in zip(job.meetings, job.across, strict=True):
        ranks, more = job.ranks[places], excess[places]
        # A send and its receive are one transfer.
        linked = [
            (ranks[:, np.ravel(replicas) if isinstance(replicas, np.ndarray) else replicas].ravel(),
             more[:, replicas, steps].sum(axis=2).max())
            for replicas, steps in across
        ] or list(zip(ranks.T, more.sum(axis=2).max(axis=0), strict=True))  # fmt: skip
        name = str(job.places["name"][int(places[0])])
        frame = pl.DataFrame(
            {
                "first": [int(members.min()) for members, _ in linked],
                "last": [int(members.max()) for members, _ in linked],
                "count": [len({*members.tolist()}) for members, _ in linked],
                "excess": [int(time) for _, time in linked],
            }
        )
        parts.append(frame.with_columns(pl.lit(name).str.replace("recv$", "send").alias("name")))
    transfers = pl.concat(parts)
    link = ["first", "last", "count"]
    links = transfers.group_by(link).agg(pl.col("excess").sum())
    first, last, count, most = links.sort("excess", *link, descending=[True, *[False] * 3]).row(0)
    names = transfers.filter(first=first, last=last) if count == 2 else transfers
    of_names = names.group_by("name").agg(pl.col("excess").sum())
    name = of_names.sort("excess", "name", descending=[True, False])["name"][0]
    if count == 2 and most >= STRAGGLER_CAUSE * float(transfers["excess"].sum()):
        return f"between ranks {first} and {last}: {name}", (first, last)
    return str(name), ()


def _micro_batch_correlation(rows: pl.DataFrame) -> float | None:
    """Return how the forward and backward times of a micro-batch correlate on their rank.

    Both grow with the tokens of the micro-batch. Each is compared with the mean of its rank.
    """
    key = ["rank", "step", "micro_batch"]
    relative = pl.col("time") / pl.col("time").mean().over("rank", "name")
    passes = rows.filter(pl.col("micro_batch").is_not_null()).with_columns(relative.alias("part"))
    forward, backward = (
        passes.filter(name=name).group_by(key).agg(pl.col("part").mean()) for name in PASSES
    )
    both = forward.join(backward, on=key, suffix="_b")
    value = both.select(pl.corr("part", "part_b")).item()
    return None if value is None or not np.isfinite(value) else float(value)
