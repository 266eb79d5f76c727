"""Process groups: collectives matched in them, their waits, clocks, bandwidths and stragglers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import traceana
from tests.job.jobs import DATA_BYTES, DATA_NS, FIRST_NS, TENSOR_BYTES, TENSOR_NS, Grid, even
from tests.readers.kineto.writing import annotation, call, kernel, op, write
from traceana.analyze.collective_ranks import (
    BY_ORDER,
    BY_PAIR,
    BY_SEQUENCE,
    Matched,
    by_rank,
    match,
)
from traceana.job.clocks import offsets
from traceana.job.parallelism import groups, kind_of
from traceana.job.stragglers import own_times, stragglers
from traceana.report.page import Rows

pytestmark = pytest.mark.usefixtures("in_threads")

RANKS, STEPS = 8, 30
LATE_NS = 1_000_000


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the summaries of :func:`written`: each rank is summarized once."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], list[Path]]:
    """Return a function that writes a job with a slow rank, once; it gives the ranks' files."""

    @cache
    def write(numbered: bool) -> list[Path]:
        return Grid(slow(5), numbered=numbered).write(tmp_path_factory.mktemp("job"))

    return write


def opened(job: Path | list[Path], keep: Path) -> tuple[pl.DataFrame, dict[str, Rows]]:
    """Return the rows and the sections of a job: its folder, or the files of its ranks."""
    found = traceana.ranks(job, keep=keep, workers=1)
    return found.frame, dict(found.page().data.sections)


def slow(rank: int, steps: int = 12) -> Any:
    compute = even(RANKS, steps, 1, spread=0)
    compute[rank] += LATE_NS
    return compute


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("numbered", [True, False])
def test_groups_of_a_job_without_a_collective_of_all_ranks(
    numbered: bool, written: Callable[[bool], list[Path]], kept: Path
) -> None:
    rows, sections = opened(written(numbered), kept)
    # Rank 4 waits in the tensor group, and the data groups of both wait for them.
    waits = {rank: 0 if rank == 5 else 12 * LATE_NS for rank in range(RANKS)}
    assert dict(rows.select("rank", "wait_ns").iter_rows()) == waits
    assert rows.filter("straggler")["rank"].to_list() == [5]
    groups = {row["members"]: row for row in sections["groups"].frame.to_dicts()}
    assert set(groups) == {"0-1", "2-3", "4-5", "6-7", "0, 2, 4, 6", "1, 3, 5, 7"}
    for members, row in groups.items():
        tensor = "-" in members
        size = 2 if tensor else 4
        bytes_, time = (TENSOR_BYTES, TENSOR_NS) if tensor else (DATA_BYTES, DATA_NS)
        assert (row["group"], row["kind"]) == (("1", "TP") if tensor else ("2", "DP"))
        assert (row["group_size"], row["ranks"], row["count"]) == (size, size, size * 12)
        assert (row["matched"], row["confidence"]) == (size * 12, 1.0)
        assert row["matched_by"] == (BY_SEQUENCE if numbered else BY_ORDER)
        assert row["bytes"] == size * 12 * bytes_
        assert row["transfer_ns"] == size * 12 * time
        late = {"4-5": 1, "0, 2, 4, 6": 3, "1, 3, 5, 7": 3}.get(members, 0)
        assert row["wait_ns"] == late * 12 * LATE_NS
        assert row["algbw_bytes_per_s"] == pytest.approx(bytes_ * 1e9 / time)
        factor = 2 * (size - 1) / size
        assert row["busbw_bytes_per_s"] == pytest.approx(factor * bytes_ * 1e9 / time)
    of_all = sections["groups"].frame
    assert of_all["wait_ns"].sum() == rows["wait_ns"].sum()
    assert sections["collectives"].frame["wait_ns"].sum() == rows["wait_ns"].sum()
    assert of_all["time_ns"].sum() == rows["communication_ns"].sum()


def test_one_trace_of_all_ranks_has_the_same_waits(
    written: Callable[[bool], list[Path]], kept: Path
) -> None:
    folder = written(True)[0].parent
    rows, sections = opened(folder, kept)
    whole = by_rank(traceana.open(folder)).frame
    waits = whole.group_by("rank").agg(pl.col("wait_ns", "last_count").sum())
    assert (
        rows.select(pl.col("rank").cast(pl.Int32), "wait_ns", "last_count")
        .sort("rank")
        .equals(waits.sort("rank"))
    )
    of_both = sections["collectives"].frame.sort("message_bytes")
    by_message = whole.group_by("message_bytes").agg(pl.col("time_ns").sum()).sort("message_bytes")
    assert of_both.select("message_bytes", "time_ns").equals(by_message)


def without_first(file: Path, target: Path) -> None:
    """Write ``file`` to ``target`` without its first tensor all-reduce."""
    document = json.loads(file.read_text())
    events = document["traceEvents"]
    names = [event.get("args", {}).get("Process Group Name") for event in events]
    del events[names.index("1")]
    target.write_text(json.dumps(document))


@pytest.mark.parametrize("numbered", [True, False])
def test_a_collective_that_one_rank_lost(
    numbered: bool, written: Callable[[bool], list[Path]], kept: Path, tmp_path: Path
) -> None:
    first, *others = written(numbered)
    without_first(first, tmp_path / first.name)
    _, sections = opened([tmp_path / first.name, *others], kept)
    groups = {row["members"]: row for row in sections["groups"].frame.to_dicts()}
    assert (groups["0-1"]["count"], groups["0-1"]["matched"]) == (23, 22)
    assert (groups["2-3"]["count"], groups["2-3"]["matched"]) == (24, 24)


@pytest.mark.slow
def test_groups_of_one_name_whose_ranks_are_not_recorded_are_not_matched(tmp_path: Path) -> None:
    Grid(even(4, 12, 1), listed=False).write(tmp_path / "job")
    rows, sections = opened(tmp_path / "job", tmp_path / "kept")
    groups = sections["groups"].frame
    assert groups["matched"].to_list() == [0, 0]
    assert groups["members"].to_list() == [None, None]
    assert groups["algbw_bytes_per_s"].to_list() == [None, None]
    assert rows["wait_ns"].to_list() == [None] * 4


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("smaller", [True, False])
def test_unnamed_collectives_of_a_job_with_smaller_groups(smaller: bool, tmp_path: Path) -> None:
    """Gloo records no groups, but the file lists those that the job made."""
    names = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]
    for rank in range(4):
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        listed = [*names, {"pg_name": "1", "ranks": pair}] if smaller else names
        events = [
            {**annotation("gloo:all_reduce", 100 * at, 50, tid=2), "args": {}} for at in range(1, 9)
        ]
        events += [op("c10d::allreduce_", 100 * at, 60) for at in range(1, 9)]
        info = {"rank": rank, "world_size": 4, "pg_config": listed}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info)
    _, sections = opened(tmp_path, tmp_path / "kept")
    (group,) = sections["groups"].frame.to_dicts()
    assert (group["group_size"], group["matched"]) == ((None, 0) if smaller else (4, 32))
    waits = by_rank(traceana.open(tmp_path)).frame["wait_ns"].null_count()
    assert bool(waits) is smaller


def collectives(grid: Grid) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the steps and the collectives of ``grid``, as the summaries of its ranks have them."""
    steps, found = [], []
    for rank, times in enumerate(grid.times()):
        ahead = grid.clock_ns.get(rank, 0)
        for step, (begin, first, second, end) in enumerate(times):
            steps.append((rank, step, end - begin, end - first, False))
            both = ((TENSOR_BYTES, first, second), (DATA_BYTES, second, end))
            for number, (size, start, until) in enumerate(both):
                group = grid.groups(rank)[number]
                row = ("all_reduce", size, len(group), str(number + 1), str(group))
                found.append((rank, *row, step, step, start + ahead, until - start, 0))
    return (
        pl.DataFrame(
            steps,
            schema=["rank", "step", "wall_ns", "exposed_communication_ns", "warm_up"],
            orient="row",
        ),
        pl.DataFrame(
            found,
            schema=[
                *("rank", "collective", "message_bytes", "group_size", "group_name", "group_ranks"),
                *("step", "sequence", "start_ns", "time_ns", "epoch_ns"),
            ],
            orient="row",
        ).with_columns(
            pl.lit(None, pl.Int64).alias("peer"), pl.lit(None, pl.Boolean).alias("sends")
        ),
    )


def test_bytes_move_within_a_host_or_between_hosts() -> None:
    _, rows = collectives(Grid(slow(5)))
    rows = rows.with_columns(pl.lit(None, pl.String).alias("description"), bytes="message_bytes")
    matched = match(rows, range(RANKS), RANKS)
    two = {rank: "a" if rank < RANKS // 2 else "b" for rank in range(RANKS)}
    links = dict(groups(rows, matched, two).select("members", "link").iter_rows())
    assert links == {
        **dict.fromkeys(["0-1", "2-3", "4-5", "6-7"], "within a host"),
        **dict.fromkeys(["0, 2, 4, 6", "1, 3, 5, 7"], "between hosts"),
    }
    unknown = groups(rows, matched, {**two, 5: None}).filter(pl.col("link").is_null())
    assert sorted(unknown["members"]) == ["1, 3, 5, 7", "4-5"]


@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_waiting_has_an_interval_that_holds_the_truth(seed: int) -> None:
    random = np.random.default_rng(seed)
    clocks = {rank: int(random.integers(-(10**7), 10**7)) for rank in range(RANKS)}
    _, rows = collectives(Grid(slow(5), clock_ns=clocks))
    rows = rows.with_columns(pl.lit(None, pl.String).alias("description"), bytes="message_bytes")
    # The profiler records a collective earlier or later than it runs.
    jitter = pl.Series("jitter", random.normal(0, 3_000, rows.height).astype(np.int64))
    rows = rows.with_columns(pl.col("start_ns") + jitter)
    found = groups(rows, match(rows, range(RANKS), RANKS), {})
    for row in found.iter_rows(named=True):
        # One rank of each of these groups waits a millisecond for the other, or three for one.
        late = {"4-5": 1, "0, 2, 4, 6": 3, "1, 3, 5, 7": 3}.get(row["members"], 0)
        transfer = 2 * TENSOR_NS if "-" in row["members"] else 4 * DATA_NS
        share = late * LATE_NS / (late * LATE_NS + transfer)
        assert row["wait_share"] == pytest.approx(share)
        assert row["wait_share_low"] <= share <= row["wait_share_high"]
        if late:
            assert row["wait_share_high"] - row["wait_share_low"] < 0.1
            assert row["wait_verdict"] is None


def test_clocks_that_tell_no_waiting_from_transfer() -> None:
    compute = even(RANKS, STEPS, 1, spread=0)
    compute[5] += 20_000
    random = np.random.default_rng(1)
    _, rows = collectives(Grid(compute))
    rows = rows.with_columns(pl.lit(None, pl.String).alias("description"), bytes="message_bytes")
    jitter = pl.Series("jitter", random.normal(0, 100_000, rows.height).astype(np.int64))
    rows = rows.with_columns(pl.col("start_ns") + jitter)
    found = groups(rows, match(rows, range(RANKS), RANKS), {})
    assert (found["wait_share"] < 0.1).all()
    assert found["wait_verdict"].to_list() == ["inconclusive"] * 6
    # Two collectives have no spread by which clocks are compared.
    few = rows.filter(pl.col("step") < 2)
    found = groups(few, match(few, range(RANKS), RANKS), {})
    assert found["wait_share_low"].to_list() == [0] * 6
    assert found["wait_share_high"].to_list() == [1] * 6
    assert found["wait_verdict"].to_list() == ["inconclusive"] * 6


def late_ranks(compute: Any) -> list[int]:
    steps, rows = collectives(Grid(compute))
    found = match(rows, range(RANKS), RANKS)
    assert found.matched == found.count
    return stragglers(own_times(steps, found.each)).filter("straggler")["rank"].to_list()


@pytest.mark.slow
def test_a_rank_that_is_5_percent_slower_is_found_where_only_groups_are_shared() -> None:
    hits = 0
    for seed in range(100):
        compute = even(RANKS, STEPS, seed, spread=0.02)
        rank = seed % RANKS
        compute[rank] = compute[rank] * 105 // 100
        hits += late_ranks(compute) == [rank]
    assert hits >= 99


@pytest.mark.slow
def test_none_is_found_where_there_is_none() -> None:
    found = [late_ranks(even(RANKS, STEPS, 1000 + seed, spread=0.02)) for seed in range(100)]
    assert found == [[]] * 100


@pytest.mark.parametrize("seed", range(20))
def test_clocks_are_compared_from_group_to_group(seed: int) -> None:
    random = np.random.default_rng(seed)
    clocks = {rank: int(random.integers(-(10**7), 10**7)) for rank in range(RANKS)}
    _, rows = collectives(Grid(even(RANKS, STEPS, seed), clock_ns=clocks))
    jitter = pl.Series("jitter", random.normal(0, 5_000, rows.height).astype(np.int64))
    found = offsets(match(rows.with_columns(pl.col("start_ns") + jitter), range(RANKS), RANKS))
    middle = float(np.median([*clocks.values()]))
    assert found["rank"].to_list() == list(range(RANKS))
    for rank, offset, uncertainty in found.iter_rows():
        assert abs(offset - (clocks[rank] - middle)) <= uncertainty
        assert uncertainty < 50_000


def test_ranks_that_no_group_connects_are_not_compared() -> None:
    clocks = {rank: 10**9 * (rank // 2) + 1_000 * rank for rank in range(RANKS)}
    _, rows = collectives(Grid(even(RANKS, STEPS, 1), clock_ns=clocks))
    pairs = match(rows.filter(message_bytes=TENSOR_BYTES), range(RANKS), RANKS)
    assert offsets(pairs)["clock_offset_ns"].to_list() == [-500, 500] * 4


def test_some_ranks_of_a_group_were_read() -> None:
    _, rows = collectives(Grid(slow(5)))
    found = match(rows.filter(pl.col("rank") != 5), [0, 1, 2, 3, 4, 6, 7], RANKS)
    ranks = found.each.group_by("group").agg(pl.col("rank").unique().sort())["rank"].to_list()
    # Rank 4 has nobody left in its tensor group.
    assert sorted(ranks) == [[0, 1], [0, 2, 4, 6], [1, 3, 7], [2, 3], [6, 7]]


def test_ranks_whose_numbers_are_not_their_own_are_not_matched() -> None:
    _, rows = collectives(Grid(slow(5)))
    # Files without a recorded rank are numbered by their names.
    turned = rows.with_columns((pl.col("rank") + 1) % RANKS)
    assert match(turned, range(RANKS), RANKS).matched == 0


def paired(rows: list[tuple[int, bool, int, int, int]]) -> Matched:
    """Return the matches of sends and receives: rank, sends, peer, start and duration."""
    frame = pl.DataFrame(
        rows, schema=["rank", "sends", "peer", "start_ns", "time_ns"], orient="row"
    ).with_columns(
        pl.lit("send_recv").alias("collective"),
        pl.lit(64, pl.Int64).alias("message_bytes"),
        pl.lit(4).alias("group_size"),
        pl.lit("9").alias("group_name"),
        pl.lit("[0,1,2,3]").alias("group_ranks"),
        pl.lit(0, pl.Int64).alias("step"),
        # As PyTorch numbers them: with any rank.
        pl.int_range(pl.len()).over("rank").alias("sequence"),
        pl.lit(0, pl.Int64).alias("epoch_ns"),
    )
    return match(frame, range(4), 4)


def test_sends_and_receives_are_matched_by_their_ranks() -> None:
    found = paired(
        [
            (0, True, 2, 0, 100),
            (0, True, 1, 200, 500),
            (0, True, 1, 900, 100),
            (1, False, 0, 600, 100),
            (1, False, 0, 700, 300),
            (2, True, 3, 0, 10),
        ]
    )
    assert found.each["by"].unique().to_list() == [BY_PAIR]
    rows = found.each.sort("rank", "end_ns").select("rank", "time_ns", "wait_ns", "last").rows()
    assert rows == [
        (0, 500, 400, False),
        (0, 100, 0, True),
        (1, 100, 0, True),
        (1, 300, 200, False),
    ]
    assert (found.count, found.matched) == (6, 4)
    assert paired([(0, True, 1, 0, 1), (0, True, 1, 5, 1), (1, False, 0, 0, 1)]).matched == 0
    assert paired([(0, True, 0, 0, 1), (0, False, 0, 0, 1)]).matched == 0


def test_a_pipeline_of_two_ranks(tmp_path: Path) -> None:
    """Rank 1 receives what rank 0 computes for 9 of 10 ms, and computes for 1 ms itself."""
    for rank in (0, 1):
        events = []
        for step in range(8):
            at, first = FIRST_NS / 1000 + 10_010 * step, 2 * step
            args: dict[str, Any] = {
                **{"Collective name": "recv" if rank else "send", "dtype": "Half"},
                **{"In msg nelems": 500, "Group size": 2, "Process Group Name": "3"},
                **{"Process Group Description": "mesh_pp", "Process Group Ranks": "[0, 1]"},
                "Src Rank" if rank else "Dst Rank": 1 - rank,
            }
            name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            events += [
                annotation(f"ProfilerStep#{step}", at, 10_000),
                call("cudaLaunchKernel", at, 1, first),
                call("cudaLaunchKernel", at + 2, 1, first + 1),
                kernel(name, at + (5 if rank else 9_000), 9_095 if rank else 100,
                       correlation=first, **args),
                kernel("gemm", at + (9_100 if rank else 5), 900 if rank else 8_995,
                       correlation=first + 1),
            ]  # fmt: skip
        info = {"rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info)
    rows, sections = opened(tmp_path, tmp_path / "kept")
    assert rows.sort("rank")["wait_ns"].to_list() == [0, 8 * 8_995_000]
    (group,) = sections["groups"].frame.to_dicts()
    assert (group["kind"], group["matched"], group["matched_by"]) == ("PP", 16, BY_PAIR)
    assert group["algbw_bytes_per_s"] == group["busbw_bytes_per_s"] == pytest.approx(1000 / 1e-4)


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "TP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "DP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("CONTEXT_PARALLEL_GROUP", "CP"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("mesh_tp", "TP"),
        ("mesh_dp_shard_cp", "DP"),
        ("mesh_ep", "EP"),
        ("tp:0", "TP"),
        ("mesh_pp", "PP"),
        ("default_pg", None),
        ("undefined", None),
        ("EXPERT_DATA_PARALLEL_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", None),
        ("step", None),
        ("", None),
        (None, None),
    ],
)
def test_the_parallelism_that_a_description_names(
    description: str | None, kind: str | None
) -> None:
    assert kind_of(description) == kind
