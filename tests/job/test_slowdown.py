"""The slowdown of a job: figures in closed form, the causes of built jobs, published jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.job import jobs
from tests.job.operations import BACKWARD, FORWARD, TRANSFERS, Job
from tests.support.command_line import Run
from tests.support.manifest import TRACES
from traceana.job.ranks import job_steps_of
from traceana.job.replay import job_steps, step_times
from traceana.job.slowdown import (
    DATA,
    DP_RANK,
    LINK,
    NONE,
    OPEN,
    RANDOM,
    RANK,
    STAGE,
    STEPS,
    TYPE,
    WORST,
    Slowdown,
    slowdown,
)
from traceana.readers import read
from traceana.timeline.operations import OPERATIONS

pytestmark = pytest.mark.usefixtures("in_threads")

Cause = tuple[str, int | tuple[int, ...] | None]


def of(job: Job) -> Slowdown:
    steps = job_steps(job.frame())
    assert steps is not None
    result = slowdown(steps)
    assert result is not None
    return result


@settings(max_examples=30, deadline=None)
@given(
    dp=st.integers(1, 4),
    pp=st.integers(1, 5),
    micro_batches=st.integers(1, 9),
    seed=st.integers(0, 1000),
    noise=st.floats(0, 0.5),
)
def test_the_replay_of_own_times_is_the_recording(
    dp: int, pp: int, micro_batches: int, seed: int, noise: float
) -> None:
    job = Job(dp=dp, pp=pp, steps=3, micro_batches=micro_batches, seed=seed, noise=noise)
    steps = job_steps(job.frame())
    assert steps is not None
    (replayed,) = step_times(steps, [steps.time])
    # Each of some hundred times is rounded to a nanosecond.
    assert np.abs(replayed - steps.recorded).max() < 1000


def test_a_slow_rank_in_closed_form() -> None:
    job = Job(dp=4, pp=1, steps=6, micro_batches=3, noise=0)
    job.passes[:, 2] *= 1.5
    passes = 3 * (FORWARD + BACKWARD)
    rest = 0.005 + sum(TRANSFERS[name] for name in TRANSFERS if "send" not in name)
    rest -= TRANSFERS["embedding-grads-all-reduce"]
    found = of(job)
    assert found.recorded_ns == pytest.approx((1.5 * passes + rest) * 1e9, rel=1e-6)
    assert found.typical_ns == pytest.approx((1.125 * passes + rest) * 1e9, rel=1e-6)
    assert (found.cause, found.ranks) == (RANK, (2,))
    rows = found.rows.filter(by=DP_RANK).sort("item")
    # Alone, rank 2 makes the job as slow as it is; another rank, which is faster, changes nothing.
    assert rows["slowdown"].to_list() == pytest.approx([1, 1, found.slowdown, 1])
    assert rows["explained"][2] == pytest.approx(1 + 0.125 / 0.375, abs=0.4)
    worst = found.rows.filter(by=WORST, count=1).row(0, named=True)
    assert worst["item"] == "2"
    share = (found.replayed_ns - worst["typical_ns"]) / (found.replayed_ns - found.typical_ns)
    assert worst["explained"] == pytest.approx(share, rel=1e-6)
    steps = found.rows.filter(by=STEPS)
    assert steps["slowdown"].to_list() == pytest.approx([found.slowdown] * 6)
    assert steps["explained"].sum() == pytest.approx(1)
    types = dict(found.rows.filter(by=TYPE).select("item", "slowdown").rows())
    alone = (1.125 * passes + 3 * BACKWARD * 0.375 + rest) / (1.125 * passes + rest)
    assert types["backward-compute"] == pytest.approx(alone, rel=1e-6)
    slowest = found.rank_types.filter(rank=2, type="forward-compute").row(0, named=True)
    assert slowest["time_ns"] == pytest.approx(3 * 1.5 * FORWARD * 1e9, rel=1e-6)
    assert slowest["excess_share"] == pytest.approx(1.5 / 1.125 - 1, rel=1e-6)


def slow_rank(job: Job, random: np.random.Generator) -> Cause:
    replica, stage = int(random.integers(job.dp)), int(random.integers(job.pp))
    job.passes[:, replica, stage] *= random.uniform(1.2, 1.6)
    return RANK, (stage * job.dp + replica,)


def slow_stage(job: Job, random: np.random.Generator) -> Cause:
    stage = int(random.integers(job.pp))
    job.passes[:, :, stage] *= random.uniform(1.2, 1.6)
    return STAGE, tuple(range(stage * job.dp, (stage + 1) * job.dp))


def slow_steps(job: Job, random: np.random.Generator) -> Cause:
    for step in random.choice(job.steps, max(1, job.steps // 5), replace=False):
        shape = job.passes.shape
        place = [int(random.integers(size)) for size in (*shape[:3], 1, shape[4])]
        job.passes[*place[:3], step, place[4]] += random.uniform(0.06, 0.3)
    return RANDOM, ()


def unequal_data(job: Job, random: np.random.Generator) -> Cause:
    spread = random.uniform(0.15, 0.5)
    tokens = spread * random.standard_normal((job.dp, job.steps, job.micro_batches))
    job.passes *= np.exp(tokens)[None, :, None]
    return DATA, ()


def slow_link(job: Job, random: np.random.Generator) -> Cause:
    replica, stage = int(random.integers(job.dp)), int(random.integers(job.pp - 1))
    times = random.uniform(20, 60)
    job.transfers["forward-send"][replica, stage] *= times
    job.transfers["backward-send"][replica, stage + 1] *= times
    rank = stage * job.dp + replica
    return LINK, (rank, rank + job.dp)


def nothing(_job: Job, _random: np.random.Generator) -> Cause:
    return NONE, ()


KINDS: tuple[Callable[[Job, np.random.Generator], Cause], ...] = (
    *(slow_rank, slow_stage, slow_steps, unequal_data, slow_link, nothing),
)


def right(kind: Callable[[Job, np.random.Generator], Cause], number: int) -> bool:
    """Return whether the cause of a built job is found: 2 to 8 replicas of 1 to 4 stages, 5 to 20
    steps, times that differ by 0.2 to 3 %."""
    random = np.random.default_rng(1000 + number)
    stages = random.choice([2, 3, 4] if kind in (slow_stage, slow_link) else [1, 2, 4])
    job = Job(
        dp=int(random.integers(2, 9)),
        pp=int(stages),
        steps=int(random.integers(5, 21)),
        # As many as fill a pipeline: else a slow stage can be idle as long as it is slower.
        micro_batches=int(stages * random.integers(2, 5)) if stages > 1 else 6,
        seed=number,
        noise=float(random.uniform(0.002, 0.03)),
    )
    cause, ranks = kind(job, random)
    found = of(job)
    if cause == NONE:
        return found.cause in (NONE, OPEN)
    return found.cause == cause and found.ranks == ranks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_cause_of_some_built_jobs(kind: Callable[[Job, np.random.Generator], Cause]) -> None:
    assert all(right(kind, number) for number in range(4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_cause_of_a_hundred_built_jobs(
    kind: Callable[[Job, np.random.Generator], Cause],
) -> None:
    count = sum(right(kind, number) for number in range(100))
    assert count >= (99 if kind is nothing else 98)


def interleaved(overlapped: bool) -> tuple[pl.DataFrame, int]:
    """Return a step of two data-parallel ranks by two stages of two chunks each, and its time.

    Each pass has a send and a receive; those at the ends of the model carry no message. With
    ``overlapped`` the last gradients are reduced after the others.
    """
    pp, chunks, transfer = 2, 2, 70
    parts = pp * chunks
    # Two micro-batches of a chunk in turn, as Megatron's interleaved schedule.
    forward = [(chunk, batch) for half in (0, 2) for chunk in (0, 1) for batch in (half, half + 1)]
    backward = [(1 - chunk, batch) for chunk, batch in forward]
    rows: list[dict[str, Any]] = []
    random = np.random.default_rng(3)
    longest = 0
    clip: dict[tuple[int, int], int] = {}
    for dp_rank in range(2):
        orders = []
        for stage in range(pp):
            warm_up = (pp - stage - 1) * 2 + (chunks - 1) * pp
            order = [(0, place) for place in forward[:warm_up]]
            for number, place in enumerate(forward[warm_up:]):
                order += [(0, place), (1, backward[number])]
            orders.append(order + [(1, place) for place in backward[len(forward) - warm_up :]])
        over: dict[tuple[int, int, int], int] = {}  # direction, part, micro-batch
        free, done = [0] * pp, [0] * pp
        count = {(stage, direction): 0 for stage in range(pp) for direction in (0, 1)}
        posted = dict.fromkeys(count, 0)
        ends_of: list[list[tuple[int, int]]] = [[], []]
        records: dict[tuple[int, int, int], dict[str, Any]] = {}
        while any(done[stage] < len(orders[stage]) for stage in range(pp)):
            moved = False
            for stage in range(pp):
                if done[stage] == len(orders[stage]):
                    continue
                direction, (chunk, batch) = orders[stage][done[stage]]
                part = chunk * pp + stage
                source = part - 1 if direction == 0 else part + 1
                has_source = 0 <= source < parts
                if has_source and (direction, source, batch) not in over:
                    continue
                key = (stage, direction)
                name = ("forward", "backward")[direction]
                post = posted[key]
                if direction == 1 and count[key] == 0:
                    at = orders[stage].index((1, (chunk, batch)))
                    post = ends_of[stage][at - 2][1] if at >= 2 else 0
                arrived = post
                if has_source:
                    arrived = max(post, over[direction, source, batch]) + transfer
                begin = max(free[stage], arrived)
                end = begin + int(random.integers(900, 1100)) * (1 + direction)
                common = {"rank": stage * 2 + dp_rank, "stage": stage, "dp_rank": dp_rank}
                common |= {"step": 1, "sequence": count[key]}
                rows += [
                    {
                        **common,
                        **{"name": f"{name}-compute", "collective": None, "model_chunk": chunk},
                        **{"start_ns": begin, "time_ns": end - begin},
                    },
                    {
                        **common,
                        **{"name": f"{name}-recv", "collective": "x", "model_chunk": None},
                        **{"start_ns": post, "time_ns": arrived - post},
                    },
                ]
                send = {
                    **common,
                    **{"name": f"{name}-send", "collective": "x", "model_chunk": None},
                    **{"start_ns": end, "time_ns": 0},
                }
                rows.append(send)
                records[direction, part, batch] = send
                if has_source:
                    records[direction, source, batch]["time_ns"] = (
                        arrived - records[direction, source, batch]["start_ns"]
                    )
                over[direction, part, batch] = free[stage] = posted[key] = end
                ends_of[stage].append((direction, end))
                count[key] += 1
                done[stage] += 1
                moved = True
            assert moved
        for stage in range(pp):
            clip[dp_rank, stage] = free[stage]
    for (dp_rank, stage), end in clip.items():
        common = {"rank": stage * 2 + dp_rank, "stage": stage, "dp_rank": dp_rank, "step": 1}
        common["sequence"] = 0
        together = max(clip.values())
        if overlapped:
            separate = max(time for (_, of), time in clip.items() if of == stage) + 40
            rows.append(
                {
                    **common,
                    **{"name": "separate-grads-all-reduce", "collective": "x"},
                    **{"start_ns": end, "time_ns": separate - end},
                }
            )
            together, end = max(clip.values()) + 40, separate
        rows += [
            {
                **common,
                **{"name": "optimizer-clip-main-grad", "collective": "x"},
                **{"start_ns": end, "time_ns": together + 30 - end},
            },
            {
                **common,
                **{"name": "optimizer", "collective": None},
                **{"start_ns": together + 30, "time_ns": 500},
            },
        ]
        longest = together + 530
    return pl.DataFrame(rows, schema={"rank": pl.Int64, **OPERATIONS}), longest


@pytest.mark.parametrize("overlapped", [False, True])
def test_interleaved_chunks_of_a_stage(overlapped: bool) -> None:
    frame, length = interleaved(overlapped)
    steps = job_steps(frame)
    assert steps is not None
    assert steps.recorded.tolist() == [length]
    assert step_times(steps, [steps.time]).tolist() == [[length]]
    # 3 forward and 3 backward messages of 4 micro-batches, and the meetings of all ranks.
    pairs = [
        meeting for meeting, across in zip(steps.meetings, steps.across, strict=True) if not across
    ]
    assert len(pairs) == 2 * 3 * 4
    for pair in pairs:
        names = sorted(steps.places["name"].gather(pair.tolist()))
        assert [name.rpartition("-")[2] for name in names] == ["recv", "send"]


def test_steps_without_some_operations_are_left_out() -> None:
    frame = Job(dp=2, pp=2, steps=5).frame()
    steps = frame["step"].unique().sort()
    first = (pl.col("step") == steps[0]) & (pl.col("name") == "backward-compute")
    less = frame.filter(~(first & (pl.col("rank") == 1) & (pl.col("sequence") == 2)))
    found = job_steps(less)
    assert found is not None
    assert found.numbers.tolist() == steps[1:].to_list()


def test_no_steps_no_slowdown() -> None:
    frame = Job(dp=2, pp=1, steps=1).frame()
    assert job_steps(frame.clear()) is None
    # No rank has the operations of the other.
    odd = (pl.col("rank") == 1) & (pl.col("name") == "forward-compute")
    assert job_steps(frame.filter(~odd)) is None


def test_a_recorded_job_by_type_of_work(tmp_path: Path, run: Run) -> None:
    compute = jobs.even(4, 12, 1, spread=0)
    compute[2] += 1_000_000
    jobs.Job(compute).write(tmp_path / "job")
    words = ("ranks", tmp_path / "job", "--keep", tmp_path / "kept", "--workers", 1)
    document = json.loads(run(*words, "-f", "json").stdout)
    summary = document["summary"]
    own = compute.astype(float)
    expected = (own.max(axis=0) + jobs.TRANSFER_NS) / (own.mean() + jobs.TRANSFER_NS)
    assert summary["slowdown"] == pytest.approx(expected.mean(), rel=1e-3)
    assert (summary["cause"], summary["cause_ranks"]) == ("rank", [2])
    types = {row["item"] for row in document["sections"]["slowdown"] if row["by"] == "type"}
    assert types >= {"host", "input", "forward", "backward", "all_reduce"}
    parts = pl.DataFrame(document["sections"]["rank_types"]).group_by("rank")
    sums = parts.agg(pl.col("time_ns").sum()).sort("rank")["time_ns"].to_list()
    assert sums == pytest.approx((own.mean(axis=1) + jobs.TRANSFER_NS).tolist(), rel=1e-3)
    first, *others = run(*words).stdout.splitlines()
    assert first.startswith("Job ")
    assert "slower than with equal ranks" in first
    assert any(line.startswith("Cause ") and "rank 2" in line for line in others)


def test_no_rank_that_arrives_last_beside_a_cause(tmp_path: Path, run: Run) -> None:
    job = Job(dp=4, pp=2, steps=12, seed=4)
    unequal_data(job, np.random.default_rng(4))
    path = job.write(tmp_path / "job.parquet")
    text = run("ranks", path, "--keep", tmp_path / "kept", "--workers", 1).stdout
    # Rank 2 does in 74 of 144 collectives, whose waits other work overlaps.
    assert "no rank by its own time in 12 steps: see Cause" in " ".join(text.split())
    assert "arrives last" not in text


JOBS = TRACES.parent / "jobs"


@pytest.mark.skipif(not JOBS.is_dir(), reason="no published jobs")
@pytest.mark.parametrize("name", ["ST", "SE"])
@pytest.mark.parametrize("form", ["trace-{}.parquet", "timeline-{}.json.gz"])
def test_published_jobs(name: str, form: str) -> None:
    folder = JOBS / name
    published = json.loads((folder / f"result-{name}.json").read_text())
    trace = read(folder / form.format(name))
    steps = job_steps_of(trace)
    assert steps is not None
    found = slowdown(steps)
    assert found is not None
    assert found.slowdown == pytest.approx(published["blocking_slowdown"], rel=0.01)
    assert found.launch_slowdown == pytest.approx(published["launch_slowdown"], rel=0.001)
    rows: dict[str, dict[str, Any]] = {}
    for row in found.rows.iter_rows(named=True):
        rows.setdefault(row["by"], {})[row["item"]] = row
    for by, key in ((STAGE, "stage"), (DP_RANK, "dp_rank"), (TYPE, "optype")):
        for item, value in published[f"blocking_decompose_by_{key}"].items():
            if item.endswith("pp-comm"):
                item = f"{item.partition('-')[0]}-send-recv"
            assert rows[by][item]["slowdown"] == pytest.approx(value, abs=0.02)
    each = published["blocking_step_slowdown"]
    near = [abs(rows[STEPS][step]["slowdown"] / value - 1) < 0.02 for step, value in each.items()]
    assert np.mean(near) >= 0.9
    worst = json.loads((folder / f"mw-{name}.json").read_text())["Mw"]
    last = json.loads((folder / f"ms-{name}.json").read_text())["Ms"]
    three_percent = int(np.ceil(0.03 * len(np.unique(steps.ranks))))
    by_count = {row["count"]: row["explained"] for row in rows[WORST].values()}
    assert by_count[three_percent] == pytest.approx(worst, abs=0.05)
    assert rows[STAGE][max(rows[STAGE])]["explained"] == pytest.approx(last, abs=0.05)
    assert found.cause == {"ST": STAGE, "SE": DATA}[name]
