"""Stragglers in a hundred jobs with one, and in a hundred without."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import stats

from tests.job.jobs import TRANSFER_NS, even
from traceana.analyze.collective_ranks import Matched, match
from traceana.job.clocks import offsets
from traceana.job.stragglers import (
    COMPUTE,
    by_step,
    cause,
    comparable,
    heat,
    own_times,
    spent_per_step,
    stragglers,
)

RANKS, STEPS = 8, 30
Times = np.ndarray[Any, Any]


def tables(compute: Times, clocks: Times | None = None) -> tuple[pl.DataFrame, Matched]:
    """Return the steps of all ranks, and the matched collectives, one at the end of each step."""
    ranks, steps = compute.shape
    walls = compute.max(axis=0) + TRANSFER_NS
    begins = np.concatenate(([0], np.cumsum(walls)[:-1]))
    rank, step = (part.ravel() for part in np.indices((ranks, steps)))
    wall, own = np.broadcast_to(walls, compute.shape).ravel(), compute.ravel()
    ahead = 0 if clocks is None else clocks[rank]
    frame = pl.DataFrame(
        {
            "rank": rank,
            "step": step,
            "wall_ns": wall,
            "exposed_communication_ns": wall - own,
            "warm_up": np.zeros(len(rank), dtype=bool),
        }
    )
    collectives = pl.DataFrame(
        {
            "rank": rank,
            "collective": ["all_reduce"] * len(rank),
            "message_bytes": [4000] * len(rank),
            "group_size": [ranks] * len(rank),
            "step": step,
            "start_ns": begins[step] + own + ahead,
            "time_ns": wall - own,
            "epoch_ns": [0] * len(rank),
        }
    )
    return frame, match(in_no_group(collectives), range(ranks), ranks)


def in_no_group(collectives: pl.DataFrame) -> pl.DataFrame:
    """Return ``collectives`` as a trace has them whose process groups are not recorded."""
    return collectives.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in ("group_name", "group_ranks")),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("sequence", "peer")),
        pl.lit(None, pl.Boolean).alias("sends"),
    )


def found(compute: Times) -> list[int]:
    steps, matched = tables(compute)
    late = stragglers(own_times(comparable(steps), matched.each))
    return late.filter("straggler")["rank"].to_list()


@pytest.mark.slow
def test_a_rank_that_is_5_percent_slower_is_found() -> None:
    hits = 0
    for seed in range(100):
        compute = even(RANKS, STEPS, seed, spread=0.02)
        slow = seed % RANKS
        compute[slow] = compute[slow] * 105 // 100
        hits += found(compute) == [slow]
    assert hits >= 99


def test_none_is_found_where_there_is_none() -> None:
    assert [found(even(RANKS, STEPS, 1000 + seed, spread=0.02)) for seed in range(100)] == [
        []
    ] * 100


@pytest.mark.parametrize(("excess_ns", "late"), [(190_000, []), (210_000, [1])])
def test_a_rank_that_is_longest_by_less_than_2_percent_is_no_straggler(
    excess_ns: int, late: list[int]
) -> None:
    compute = even(4, 30, 1, spread=0)
    # All ranks spend 10 ms on their own work in a step.
    compute[1] += excess_ns
    assert found(compute) == late


def test_two_steps_prove_nothing() -> None:
    compute = even(4, 2, 1, spread=0)
    compute[1] *= 2
    steps, matched = tables(compute)
    (row,) = (
        stragglers(own_times(comparable(steps), matched.each))
        .filter(pl.col("rank") == 1)
        .to_dicts()
    )
    assert (row["longest"], row["steps"], row["straggler"], row["p"]) == (2, 2, False, 1)


def test_two_ranks_of_which_one_is_last_in_ten_steps() -> None:
    compute = even(2, 10, 1, spread=0.01)
    compute[1] += compute[1] * 5 // 100
    assert found(compute) == [1]


def test_the_p_of_few_steps_is_that_of_students_t() -> None:
    excess = np.array([100_000, 120_000, 90_000, 130_000])
    compute = even(2, 4, 1, spread=0)
    compute[1] += 2 * excess
    steps, matched = tables(compute)
    rows = stragglers(own_times(comparable(steps), matched.each))
    # Of two ranks the median is the middle between both.
    expected = stats.ttest_1samp(excess, 0, alternative="greater").pvalue
    assert rows.filter(rank=1)["p"].item() == pytest.approx(2 * expected, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_few_steps_of_a_slow_rank_and_of_equal_ranks(ranks: int) -> None:
    hits = alarms = 0
    for seed in range(300):
        random = np.random.default_rng(seed)
        steps = int(random.integers(4, 8))
        alarms += bool(found(even(ranks, steps, seed, spread=0.1)))
        slow = even(ranks, steps, seed, spread=0.01)
        slow[0] = slow[0] * 110 // 100
        hits += found(slow) == [0]
    assert hits >= 280
    # One in a hundred is expected at most, 3 of 300; 9 are improbable.
    assert alarms < 9


@pytest.mark.parametrize(
    ("steps", "ranks", "common"),
    [
        ([range(8)] * 4, [0, 1, 2, 3], range(8)),
        ([range(8), range(2), range(8), range(8)], [0, 2, 3], range(8)),
        # As many rows with all ranks: none is left out.
        ([range(8), range(4)], [0, 1], range(4)),
        ([range(1, 8), range(8), range(7)], [0, 1, 2], range(1, 7)),
        ([range(4), range(4, 8)], [0], range(4)),
        ([], [], []),
    ],
)
def test_ranks_with_few_steps_are_not_compared(
    steps: list[range], ranks: list[int], common: range
) -> None:
    rows = [(rank, step, False) for rank, own in enumerate(steps) for step in own]
    rows += [(rank, 100, True) for rank in range(len(steps))]
    schema = {"rank": pl.Int64, "step": pl.Int64, "warm_up": pl.Boolean}
    found = comparable(pl.DataFrame(rows, schema=schema, orient="row"))
    assert found.select("rank", "step").rows() == [(r, s) for r in ranks for s in common]


def test_waits_that_other_work_overlaps_are_no_loss() -> None:
    """Then the step's wall time is the rank's own, however long its collective waits."""
    compute = even(4, 20, 2, spread=0)
    compute[1] += 1_000_000
    steps, matched = tables(compute)
    hidden = steps.with_columns(exposed_communication_ns=pl.lit(0, pl.Int64))
    own = own_times(hidden, matched.each)
    assert own["own_ns"].equals(own["wall_ns"].alias("own_ns"))


@pytest.mark.parametrize("seed", range(20))
def test_offsets_are_within_their_uncertainty(seed: int) -> None:
    random = np.random.default_rng(seed)
    clocks = random.integers(-(10**6), 10**6, RANKS)
    clocks -= int(np.median(clocks))
    steps, _ = tables(even(RANKS, STEPS, seed))
    compute = even(RANKS, STEPS, seed)
    _, matched = tables(compute, clocks)
    # A rank sees the end of a collective some microseconds late.
    jitter = pl.Series("jitter", random.normal(0, 5_000, matched.each.height).astype(np.int64))
    late = matched.each.with_columns((pl.col("end_ns") + jitter).alias("end_ns"))
    rows = offsets(Matched(late, matched.groups, matched.count, matched.matched))
    median = np.median(clocks)
    for rank, offset, uncertainty in rows.iter_rows():
        assert abs(offset - (clocks[rank] - median)) <= uncertainty
    assert steps.height == RANKS * STEPS


def test_collectives_of_smaller_groups_and_other_numbers_are_not_matched() -> None:
    _, whole = tables(even(4, 5, 1))
    assert (whole.count, whole.matched) == (20, 20)
    rows = whole.each.with_columns(
        pl.lit(0, pl.Int64).alias("epoch_ns"),
        (pl.col("end_ns") - pl.col("time_ns")).alias("start_ns"),
    ).select(
        "rank",
        "collective",
        "message_bytes",
        "group_size",
        "step",
        "start_ns",
        "time_ns",
        "epoch_ns",
    )
    rows = in_no_group(rows)
    # Rank 1 has no collective in step 3.
    fewer = match(rows.filter(~((pl.col("rank") == 1) & (pl.col("step") == 3))), range(4), 4)
    assert (fewer.count, fewer.matched) == (19, 16)
    assert 3 not in fewer.each["step"]
    pairs = match(rows.with_columns(pl.lit(2).alias("group_size")), range(4), 4)
    assert (pairs.count, pairs.matched) == (20, 0)
    # Four ranks of eight were read: the group of all is that of eight.
    assert match(rows, range(4), 8).matched == 0
    assert match(rows.with_columns(pl.lit(8).alias("group_size")), range(4), 8).matched == 20
    assert match(rows.clear(), (), 0).matched == 0


def spent(**more: float) -> pl.DataFrame:
    usual = {COMPUTE: 1000.0, "host": 50.0, "data loader": 5.0}
    rows = [(rank, what, time) for rank in range(4) for what, time in usual.items()]
    rows = [(r, w, t + (more.get(w.replace(" ", "_"), 0) if r == 2 else 0)) for r, w, t in rows]
    return pl.DataFrame(rows, schema=["rank", "what", "step_ns"], orient="row")


def kernels(calls: int, factor: int) -> pl.DataFrame:
    rows = [(rank, "gemm", 10, 1000) for rank in (0, 1, 3)] + [(2, "gemm", calls, 100 * factor)]
    return pl.DataFrame(rows, schema=["rank", "name", "calls", "time_ns"], orient="row")


def test_the_cause_is_what_explains_half_of_the_excess() -> None:
    slower = cause(2, spent(compute=100), kernels(10, 11), 100)
    assert slower == "compute: kernels of equal number take 1.10 times as long"
    more = cause(2, spent(compute=100), kernels(11, 11), 100)
    assert more == "compute: other kernels, or more of them"
    assert cause(2, spent(data_loader=90), kernels(10, 10), 100) == "idle: data loader"
    assert cause(2, spent(host=40), kernels(10, 10), 100) == ""
    assert cause(2, spent(), kernels(10, 10), 0) == ""


def test_times_are_means_per_step() -> None:
    idle = pl.DataFrame({"rank": [0, 1], "cause": ["host", "host"], "time_ns": [60, 30]})
    frame = spent_per_step({0: 100, 1: 300}, idle, {0: 10, 1: 3})
    assert frame.rows() == [
        (0, COMPUTE, 10.0),
        (1, COMPUTE, 100.0),
        (0, "host", 6.0),
        (1, "host", 10.0),
    ]


def test_sizes_of_an_all_to_all_may_differ() -> None:
    _, whole = tables(even(4, 5, 1))
    rows = whole.each.select(
        "rank",
        pl.lit("all_to_all").alias("collective"),
        (1000 + pl.col("rank")).alias("message_bytes"),
        pl.lit(4).alias("group_size"),
        "step",
        (pl.col("end_ns") - pl.col("time_ns")).alias("start_ns"),
        "time_ns",
        pl.lit(0, pl.Int64).alias("epoch_ns"),
    )
    rows = in_no_group(rows)
    exchanged = match(rows, range(4), 4)
    assert exchanged.matched == 20
    assert exchanged.each["wait_ns"].sort().equals(whole.each["wait_ns"].sort())
    reduced = match(rows.with_columns(pl.lit("all_reduce").alias("collective")), range(4), 4)
    assert reduced.matched == 0
    sent = match(rows.with_columns(pl.lit("send_recv").alias("collective")), range(4), 4)
    assert (sent.count, sent.matched) == (20, 0)


def test_what_ends_at_another_time_is_another_collective() -> None:
    """Rank 1 lost the first collective of the capture, and has another at its end."""
    _, whole = tables(even(4, 12, 1))
    rows = whole.each.select(
        "rank",
        "collective",
        "message_bytes",
        "group_size",
        pl.lit(None, pl.Int64).alias("step"),
        (pl.col("end_ns") - pl.col("time_ns")).alias("start_ns"),
        "time_ns",
        pl.lit(0, pl.Int64).alias("epoch_ns"),
    ).sort("rank", "start_ns")
    rows = in_no_group(rows)
    sure = rows.with_columns(
        (pl.col("message_bytes") + pl.int_range(pl.len()).over("rank")).alias("message_bytes")
    )
    assert match(sure, range(4), 4).matched == 48
    exchanged = rows.with_columns(pl.lit("all_to_all").alias("collective"))
    late = pl.col("rank") == 1
    shifted = exchanged.with_columns(
        pl.when(late).then(pl.col("start_ns") + 10_000_000).otherwise("start_ns").alias("start_ns")
    )
    assert match(pl.concat([sure, shifted]), range(4), 4).matched == 48
    assert match(pl.concat([sure, exchanged]), range(4), 4).matched == 96


def test_a_heat_map_keeps_the_worst_step_of_a_run() -> None:
    compute = even(4, 10, 1, spread=0)
    compute[2, 5] += 3_000_000
    steps, matched = tables(compute)
    each = by_step(own_times(comparable(steps), matched.each))
    typical = 10_000_000 + TRANSFER_NS
    late = each.filter((pl.col("rank") == 2) & (pl.col("step") == 5)).row(0, named=True)
    assert (late["excess_ns"], late["excess_share"]) == (3_000_000, 3_000_000 / typical)
    assert each["excess_ns"].sum() == 3_000_000
    assert heat(each, 4, 10).height == 40
    found = heat(each, 4, 4).filter(first_rank=2)
    assert found.select("first_step", "last_step").rows() == [(0, 2), (3, 5), (6, 8), (9, 9)]
    assert found["excess_share"].to_list() == [0, 3_000_000 / typical, 0, 0]
    assert found["rank"].to_list() == [2] * 4
    # Of two ranks each, the cell has the slower.
    found = heat(each, 2, 10).filter(first_rank=2)
    assert found["last_rank"].unique().to_list() == [3]
    assert found["excess_share"].to_list() == [
        3_000_000 / typical * (step == 5) for step in range(10)
    ]
    assert found.row(5, named=True)["rank"] == 2
