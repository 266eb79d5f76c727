"""A job made from one rank: what is known of it is what its rows say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traceana
from benchmarks.generate_job import make
from benchmarks.ranks import row
from tests.job.jobs import TRANSFER_NS, Job

STEPS, COMPUTE_NS = 12, 10_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (file,) = Job(np.full((1, STEPS), COMPUTE_NS)).write(tmp_path / "source")
    return file


@pytest.mark.slow
def test_ranks_compute_for_their_factors_and_wait_for_the_last(
    source: Path, tmp_path: Path
) -> None:
    made = make(source, tmp_path / "job", 4, straggler=2, effect=0.1, spread=0)
    found = traceana.ranks(tmp_path / "job", keep=tmp_path / "kept", workers=1).frame
    rows = {one["rank"]: one for one in found.iter_rows(named=True)}
    # A microsecond lies between two steps.
    late_ns = (STEPS * COMPUTE_NS + (STEPS - 1) * 1000) // 10
    for rank, one in rows.items():
        waits = 0 if rank == 2 else late_ns
        # Clocks that drift by a millionth, and whole nanoseconds.
        assert one["wait_ns"] == pytest.approx(waits, abs=STEPS * 30)
        assert one["communication_ns"] == pytest.approx(STEPS * TRANSFER_NS + waits, abs=STEPS * 30)
        assert one["kernel_ns"] == round(1000 * made.kernel_us[rank])
        assert one["straggler"] is (rank == 2)


@pytest.mark.exhaustive
def test_a_row_of_the_benchmark_says_what_was_found(source: Path, tmp_path: Path) -> None:
    made = make(
        source, tmp_path / "job", 6, straggler=1, effect=0.05, spread=0.001, missing=(3,), cut=(4,)
    )
    found = row(tmp_path / "job", made, 2)
    assert found["exact sums"] == "4 of 4"
    assert found["offsets within"] == "4 of 4"
    assert found["not ok"] is True
    assert {one.name for one in (tmp_path / "job").iterdir()} == {
        f"rank{rank}.json" for rank in range(6) if rank != 3
    }
