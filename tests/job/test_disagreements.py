"""Collectives on which ranks disagree are named; captures that begin and end elsewhere are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.job.jobs import Turns
from tests.support.command_line import Run

pytestmark = pytest.mark.usefixtures("in_threads")

GATHER = {"Collective name": "_allgather_base", "In msg nelems": 500}


def job(**changes: Any) -> Turns:
    """Return a job of four ranks, three steps, two collectives a step: 2 * step + turn."""
    compute = np.full((4, 3, 2), 5_000_000, dtype=np.int64)
    return Turns(compute, messages={1: GATHER}, **changes)


def of(found: Turns, folder: Path, run: Run) -> tuple[list[dict[str, Any]], str]:
    """Return the disagreements in the JSON, and the first line of the screen."""
    found.write(folder / "job")
    words = ("ranks", folder / "job", "--keep", folder / "kept", "--workers", 1)
    rows = json.loads(run(*words, "-f", "json").stdout)["sections"]["disagreements"]
    return rows, " ".join(run(*words).stdout.partition("Ranks ")[0].split())


ALL_REDUCE = ("all_reduce", 4000)
ALL_GATHER = ("all_gather", 8000)


@pytest.mark.parametrize(
    ("of_rank", "kind", "sequence", "ranks", "usual", "other", "count"),
    [
        ({(2, 1, 0): None}, "missing", 2, "2", ALL_REDUCE, (None, None), 1),
        (
            {(2, 1, 0): {"In msg nelems": 900}, (2, 2, 0): {"In msg nelems": 900}},
            *("size", 2, "2", ALL_REDUCE, ("all_reduce", 3600), 2),
        ),
        ({(0, 1, 0): GATHER}, "operation", 2, "0", ALL_REDUCE, ALL_GATHER, 1),
        (
            {
                **{(rank, 1, 1): {"Collective name": "allreduce", "In msg nelems": 1000}
                   for rank in (1, 3)},
                **{(rank, 1, 0): GATHER for rank in (1, 3)},
            },
            *("order", 2, "1, 3", ALL_GATHER, ALL_REDUCE, 2),
        ),
    ],
)  # fmt: skip
def test_collectives_with_sequence_numbers(
    of_rank: dict[Any, Any],
    kind: str,
    sequence: int,
    ranks: str,
    usual: tuple[str, int],
    other: tuple[str | None, int | None],
    count: int,
    tmp_path: Path,
    run: Run,
) -> None:
    rows, line = of(job(of_rank=of_rank), tmp_path, run)
    (row,) = rows
    assert (row["kind"], row["sequence"], row["step"], row["count"]) == (kind, sequence, 1, count)
    if kind == "order":
        # Two ranks against two.
        first = (row["collective"], row["message_bytes"])
        assert {first, (row["other_collective"], row["other_bytes"])} == {usual, other}
        assert row["ranks"] in ("0, 2", "1, 3")
    else:
        assert (row["collective"], row["message_bytes"]) == usual
        assert (row["other_collective"], row["other_bytes"]) == other
        assert row["ranks"] == ranks
    assert line.startswith("Problem ")
    assert "process group 0 (default_pg), step 1, collective 2: rank" in line
    assert "others: all_" in line


def test_without_sequence_numbers_by_the_position_in_a_step(tmp_path: Path, run: Run) -> None:
    without = {turn: {"Seq": None, **more} for turn, more in ((0, {}), (1, GATHER))}
    compute = np.full((4, 3, 2), 5_000_000, dtype=np.int64)
    wrong = {(3, 2, 1): {"In msg nelems": 100}, (0, 1, 0): None}
    (count, size), _ = of(Turns(compute, messages=without, of_rank=wrong), tmp_path, run)
    assert (count["kind"], count["step"], count["ranks"]) == ("count", 1, "0")
    assert (count["calls"], count["other_calls"]) == (2, 1)
    assert (size["kind"], size["step"], size["sequence"], size["ranks"]) == ("size", 2, 1, "3")
    assert (size["message_bytes"], size["other_bytes"]) == (8000, 1600)


def test_captures_that_begin_and_end_elsewhere_agree(tmp_path: Path, run: Run) -> None:
    rows, line = of(job(of_rank={(0, 0, 0): None, (1, 2, 1): None}), tmp_path, run)
    assert rows == []
    assert "Problem" not in line


def test_unequal_all_to_alls_agree(tmp_path: Path, run: Run) -> None:
    exchange = {"Collective name": "all_to_allv"}
    sizes = {(rank, 1, 0): {"In msg nelems": 1000 + rank} for rank in range(4)}
    compute = np.full((4, 3, 2), 5_000_000, dtype=np.int64)
    rows, _ = of(Turns(compute, messages={0: exchange}, of_rank=sizes), tmp_path, run)
    assert rows == []
