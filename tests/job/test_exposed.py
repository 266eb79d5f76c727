"""Exposed communication by class: closed forms of built jobs, sums that agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.job.jobs import TRANSFER_NS, Turns
from tests.job.operations import BACKWARD, FORWARD, Job
from tests.readers.kineto.writing import annotation
from tests.support.command_line import Run
from traceana.job.exposed import (
    DRAIN,
    EXPERTS,
    PREFETCH,
    STEADY,
    TRANSFER,
    UNCLASSIFIED,
    WAITS,
    WARM_UP,
)

pytestmark = pytest.mark.usefixtures("in_threads")

LATE_NS = 2_000_000
EXCHANGE = {
    **{"Collective name": "all_to_allv", "Process Group Name": "7"},
    "Process Group Description": "mesh_ep",
}
GATHER = {"Collective name": "_allgather_base", "Process Group Description": "mesh_fsdp"}


def of(path: Path, folder: Path, run: Run) -> dict[tuple[int, str], int]:
    """Return the time per step by rank and class; its sums are those of other sections."""
    words = ("ranks", path, "--keep", folder / "kept", "--workers", 1, "-f", "json")
    sections = json.loads(run(*words).stdout)["sections"]
    exposed = pl.DataFrame(sections["exposed"])
    steps = pl.DataFrame(sections["steps"]).group_by("rank").agg(
        (pl.col("wall_ns") - pl.col("own_ns")).sum().alias("time_ns")
    )  # fmt: skip
    waits = exposed.filter(pl.col("class").is_in(WAITS)).group_by("rank")
    sums = waits.agg(pl.col("time_ns").sum()).sort("rank")
    assert sums.rows() == steps.filter(pl.col("time_ns") > 0).sort("rank").rows()
    return {
        (rank, name): time for rank, name, time in exposed.select("rank", "class", "step_ns").rows()
    }


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8)])
def test_bubbles_of_equal_micro_batches(
    stages: int, micro_batches: int, tmp_path: Path, run: Run
) -> None:
    job = Job(dp=1, pp=stages, steps=3, micro_batches=micro_batches, noise=0)
    for name in job.transfers:
        job.transfers[name] = job.transfers[name] * 0 + 1e-6
    found = of(job.write(tmp_path / "job.parquet"), tmp_path, run)
    work = micro_batches * (FORWARD + BACKWARD) * 1e9
    for rank in range(stages):
        bubble = sum(found.get((rank, name), 0) for name in (WARM_UP, STEADY, DRAIN))
        assert bubble / work == pytest.approx((stages - 1) / micro_batches, rel=2e-3)
        # A stage waits for the first forward pass and the first backward pass of those around it.
        before, after = rank, stages - 1 - rank
        first = (before * FORWARD + after * BACKWARD) * 1e9
        assert found[rank, WARM_UP] == pytest.approx(first, rel=1e-2)
        assert found.get((rank, UNCLASSIFIED), 0) < 1e-3 * work


def turns(ranks: int, steps: int, number: int) -> Any:
    return np.full((ranks, steps, number), 10_000_000, dtype=np.int64)


def test_waits_for_a_rank_with_more_tokens_are_of_the_experts(tmp_path: Path, run: Run) -> None:
    compute = turns(3, 3, 2)
    compute[1, :, 0] += LATE_NS
    compute[2, :, 1] += LATE_NS
    # Rank 1 has more tokens in the first exchange; those of the second one are equal.
    sizes = {(1, step, 0): {"In msg nelems": 5000} for step in range(3)}
    Turns(compute, messages={0: EXCHANGE, 1: EXCHANGE}, of_rank=sizes).write(tmp_path / "job")
    found = of(tmp_path / "job", tmp_path, run)
    assert found == {
        (0, EXPERTS): LATE_NS,
        (0, UNCLASSIFIED): LATE_NS,
        (0, TRANSFER): 2 * TRANSFER_NS,
        (1, UNCLASSIFIED): LATE_NS,
        (1, TRANSFER): 2 * TRANSFER_NS,
        (2, EXPERTS): LATE_NS,
        (2, TRANSFER): 2 * TRANSFER_NS,
    }


def test_an_all_gather_that_could_have_begun_earlier(tmp_path: Path, run: Run) -> None:
    compute = turns(2, 3, 2)
    compute[0, :, 0] += LATE_NS
    # The second one follows the first: the links were not idle before.
    compute[:, :, 1] = 1_000
    Turns(compute, messages={0: GATHER, 1: GATHER}).write(tmp_path / "job")
    found = of(tmp_path / "job", tmp_path, run)
    assert found == {
        (0, PREFETCH): TRANSFER_NS + 1_000,
        (0, TRANSFER): TRANSFER_NS - 1_000,
        (1, UNCLASSIFIED): LATE_NS,
        (1, PREFETCH): TRANSFER_NS + 1_000,
        (1, TRANSFER): TRANSFER_NS - 1_000,
    }


def test_all_gathers_without_evidence_of_fsdp_are_transfers(tmp_path: Path, run: Run) -> None:
    plain = {"Collective name": "_allgather_base"}
    first, _ = Turns(turns(2, 3, 1), messages={0: plain}).write(tmp_path / "job")
    assert of(tmp_path / "job", tmp_path, run) == {
        (rank, TRANSFER): TRANSFER_NS for rank in range(2)
    }
    # Annotations of FSDP on a rank are evidence for its all-gathers.
    document = json.loads(first.read_text())
    document["traceEvents"].append(annotation("FSDP::all_gather (layers.0)", 1_002.5, 0.5))
    first.write_text(json.dumps(document))
    assert of(tmp_path / "job", tmp_path, run) == {
        (0, PREFETCH): TRANSFER_NS,
        (1, TRANSFER): TRANSFER_NS,
    }
