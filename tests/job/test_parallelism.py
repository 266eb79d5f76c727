"""Pipeline bubbles and the balance of experts, of jobs with known figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from tests.job.jobs import FIRST_NS
from tests.readers.kineto.writing import annotation, call, kernel, write
from traceana.report.page import Facts, Rows

pytestmark = pytest.mark.usefixtures("in_threads")

STEP_US = 10_000
GAP_US = 10
SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def step(number: int, work: list[tuple[str, float, float, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the events of a step: kernels by name, start in the step and duration (µs)."""
    at = FIRST_NS / 1000 + (STEP_US + GAP_US) * number
    events = [annotation(f"ProfilerStep#{number}", at, STEP_US)]
    for place, (name, start, duration, args) in enumerate(work):
        correlation = 10 * number + place
        events.append(call("cudaLaunchKernel", at + place, 1, correlation))
        events.append(
            kernel(name, at + start, duration, correlation=correlation, stream=place, **args)
        )
    return events


def group(description: str, ranks: list[int], **args: Any) -> dict[str, Any]:
    return {
        **{"Group size": len(ranks), "Process Group Name": "3", "dtype": "Half"},
        **{"Process Group Description": description, "Process Group Ranks": str(ranks), **args},
    }


def opened(folder: Path, keep: Path) -> tuple[dict[str, Rows], dict[str, str]]:
    """Return the sections and the facts of the job in ``folder``."""
    page = traceana.ranks(folder, keep=keep, workers=1).page()
    (facts,) = (block for block in page.blocks if isinstance(block, Facts))
    return dict(page.data.sections), dict(facts.rows)


def written(folder: Path, rank: int, of: int, work: list[tuple[str, float, float, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    events = [event for number in range(6) for event in step(number, work)]
    write(folder / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": of})


def test_bubbles_are_what_no_other_work_than_sends_and_receives_fills(tmp_path: Path) -> None:
    ranks = [4, 2]  # the order in the group is that of the stages
    message = {"In msg nelems": 500}
    sent = group("mesh_pp", ranks, **message, **{"Collective name": "send", "Dst Rank": 2})
    received = group("mesh_pp", ranks, **message, **{"Collective name": "recv", "Src Rank": 4})
    # Stage 0 computes for 6 ms, the send for 1 ms beside it. Stage 1 waits for 5 ms, in which an
    # optimizer covers 1, and computes for 4.
    first = [("gemm", 1_000.0, 6_000.0, {}), (SENDS, 6_500.0, 1_000.0, sent)]
    second = [
        (SENDS, 2_500.0, 5_000.0, received),
        ("adam", 3_000.0, 1_000.0, {}),
        ("gemm", 6_000.0, 4_000.0, {}),
    ]
    written(tmp_path / "job", 4, 5, first)
    written(tmp_path / "job", 2, 5, second)
    sections, facts = opened(tmp_path / "job", tmp_path / "kept")
    rows = sections["pipeline"].frame.to_dicts()
    assert [(row["rank"], row["stage"], row["members"]) for row in rows] == [
        (4, 0, "2, 4"),
        (2, 1, "2, 4"),
    ]
    bubbles = {4: 4_000, 2: 5_000}
    for row in rows:
        assert row["bubble_ns"] == row["steps"] * bubbles[row["rank"]] * 1_000
        assert row["bubble_share"] == bubbles[row["rank"]] / STEP_US
    assert facts["Pipeline"] == (
        "bubbles 45.0 % of step time, all steps of 2 ranks · most on rank 2: 50.0 %"
    )
    assert sections["experts"].frame.is_empty()


def test_without_sends_and_receives_there_are_no_bubbles(tmp_path: Path) -> None:
    reduced = group("mesh_dp", [0], **{"Collective name": "allreduce", "In msg nelems": 500})
    written(tmp_path / "job", 0, 1, [("ncclDevKernel_AllReduce_Sum(x)", 0.0, 10.0, reduced)])
    sections, facts = opened(tmp_path / "job", tmp_path / "kept")
    assert sections["pipeline"].frame.is_empty()
    assert not {"Pipeline", "Experts"} & facts.keys()


def exchanged(tmp_path: Path, description: str, processed: list[int]) -> Path:
    """Write a job whose ranks have 100 tokens each; their experts process ``processed``."""
    ranks = list(range(len(processed)))
    for rank in ranks:
        own, there = {"elements": 100}, {"elements": processed[rank]}
        work = [
            (
                SENDS,
                1_000.0 + 3_000 * place,
                500.0,
                group(
                    description,
                    ranks,
                    **{"Collective name": "all_to_allv", "In msg nelems": given["elements"]},
                    **{"Out msg nelems": taken["elements"]},
                ),
            )
            for place, (given, taken) in enumerate([(own, there), (there, own)])
        ]
        written(tmp_path / "job", rank, len(ranks), work)
    return tmp_path / "job"


def test_experts_that_get_most(tmp_path: Path) -> None:
    folder = exchanged(tmp_path, "EXPERT_MODEL_PARALLEL_GROUP", [60, 180, 100, 60])
    sections, facts = opened(folder, tmp_path / "kept")
    rows = {row["rank"]: row for row in sections["experts"].frame.to_dicts()}
    # To the experts and back, in 6 steps, 2 bytes an element.
    assert {rank: row["expert_bytes"] for rank, row in rows.items()} == {
        0: 2 * 6 * 2 * 60,
        1: 2 * 6 * 2 * 180,
        2: 2 * 6 * 2 * 100,
        3: 2 * 6 * 2 * 60,
    }
    assert rows[1]["imbalance"] == 1.8
    assert rows[1]["count"] == 12
    assert facts["Experts"] == "rank 1 gets 1.80 times the mean of its group (0-3)"


def test_all_to_alls_of_other_groups_are_not_of_experts(tmp_path: Path) -> None:
    sections, _ = opened(exchanged(tmp_path, "default_pg", [60, 140]), tmp_path / "kept")
    assert sections["experts"].frame.is_empty()


def test_a_group_with_a_rank_that_was_not_read_is_not_judged(tmp_path: Path) -> None:
    folder = exchanged(tmp_path, "mesh_ep", [60, 140, 100])
    (folder / "rank2.json").unlink()
    sections, _ = opened(folder, tmp_path / "kept")
    assert sections["experts"].frame.is_empty()
