"""Speed-up, communication and models of series that were made of known times."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from tests.study.conftest import Make
from traceana.study.recorded_runs import Recorded
from traceana.study.step_times import STRONG, WEAK, Communication, communicated, scaling_study

MS = 1_000_000


def shared(make: Make, counts: Sequence[int], batch: int = 256) -> list[Recorded]:
    """Return runs of 200 ms on one device, and 25 ms of gathering for each further one."""
    return [
        make(
            folder=f"{batch}/{n}",
            batch=batch,
            devices=n,
            steps_ns=(200 * MS // n + 25 * MS * (n - 1),),
            parameters=1000,
        )
        for n in counts
    ]


def test_speed_up_over_one_device(make: Make) -> None:
    frame = scaling_study(shared(make, (1, 2, 4)), [None] * 3).result.frame
    assert frame["scaling"].to_list() == [STRONG] * 3
    assert frame["speedup"].to_list() == pytest.approx([1, 200 / 125, 200 / 125])
    assert frame["efficiency"].to_list() == pytest.approx([1, 0.8, 0.4])
    assert frame["linear_ns"].to_list() == frame["step_ns"].to_list()


def test_both_models_are_in_a_section_and_the_better_is_named(make: Make) -> None:
    models = scaling_study(shared(make, (1, 2, 4, 8)), [None] * 4).sections["models"].frame
    better, other = models.sort("fits_better", descending=True).to_dicts()
    assert (better["model"], better["fits_better"]) == ("O(N-1)", True)
    assert (better["compute_ns"], better["gather_ns"]) == (200 * MS, 25 * MS)
    assert (other["model"], other["fits_better"]) == ("O(log N)", False)
    assert other["residual_ns"] > 0


def test_devices_with_a_batch_of_their_own_are_a_series(make: Make) -> None:
    runs = [make(folder=str(n), batch=32 * n, devices=n, steps_ns=(100 * MS,)) for n in (1, 2, 4)]
    frame = scaling_study(runs, [None] * 3).result.frame
    assert frame.select("scaling", "batch").unique().rows() == [(WEAK, 32)]
    assert frame["speedup"].to_list() == [1.0, 2.0, 4.0]


def test_a_run_is_in_the_longer_series_alone(make: Make) -> None:
    runs = [*shared(make, (1, 2, 4), 128), *shared(make, (1, 2, 4), 256)]
    frame = scaling_study(runs, [None] * 6).result.frame
    assert frame.height == 6
    assert set(frame["scaling"]) == {STRONG}


def test_fewer_than_three_numbers_of_devices_get_no_model(make: Make) -> None:
    study = scaling_study(shared(make, (1, 2)), [None] * 2)
    assert not study.sections
    assert study.result.frame["linear_ns"].to_list() == [None, None]
    (sentence,) = study.missing
    assert "2 device counts and at least 3 needed" in sentence
    assert "--sweep processes=1,2,4 --batch 256" in sentence


def test_physically_impossible_models_have_a_note(make: Make) -> None:
    def notes(*times: int) -> str:
        runs = [
            make(folder=str(n), batch=8, devices=n, steps_ns=(time * MS,))
            for n, time in zip((1, 2, 4), times, strict=True)
        ]
        return " ".join(scaling_study(runs, [None] * 3).result.notes)

    assert "negative" not in notes(200, 125, 125)
    assert "negative gather time" in notes(200, 80, 20)
    assert "negative compute time: additional devices only add time" in notes(9, 12, 252)


def test_a_run_that_died_takes_no_part_in_the_fit(make: Make) -> None:
    dead = make(
        folder="dead", batch=256, devices=8, complete=False, reason="out of memory", steps_ns=()
    )
    study = scaling_study([*shared(make, (1, 2, 4)), dead], [None] * 4)
    row = study.result.frame.filter(pl.col("devices") == 8).to_dicts()[0]
    assert (row["status"], row["step_ns"], row["speedup"]) == ("out of memory", None, None)
    models = study.sections["models"].frame.filter("fits_better")
    assert models["gather_ns"].to_list() == [25 * MS]


def test_without_one_device_there_is_no_speed_up(make: Make) -> None:
    frame = scaling_study(shared(make, (2, 4)), [None] * 2).result.frame
    assert frame["speedup"].to_list() == [None, None]


def test_communication_stands_beside_the_parameters(make: Make) -> None:
    reported = Communication(30 * MS, 10 * MS, 0.24, 0.08, reduced_bytes=4000)
    frame = scaling_study(shared(make, (1, 2)), [reported, reported]).result.frame
    assert frame["communication_share"].to_list() == [None, 0.24]
    assert frame["reduced_bytes"].to_list() == [None, 4000]
    assert frame["parameter_bytes"].to_list() == [4000, 4000]
    assert frame["of_parameters"].to_list() == [None, 1.0]


def test_means_over_ranks_and_measured_steps() -> None:
    steps = pl.DataFrame(
        {
            "available_ns": [900, 100, 100],
            "communication_ns": [900, 20, 40],
            "exposed_ns": [900, 10, 0],
            "reduced_bytes": [7, 8, 10],
            "warm_up": [True, False, False],
        }
    )
    assert communicated(steps) == Communication(30, 5, 0.3, 0.05, 9)
    untold = steps.with_columns(pl.lit(None, pl.Int64).alias("reduced_bytes"))
    found = communicated(untold)
    assert found is not None
    assert found.reduced_bytes is None
    assert communicated(steps.head(1)) is None


def test_without_runs_there_is_a_note() -> None:
    study = scaling_study([], [])
    assert study.result.frame.is_empty()
    assert study.result.notes == ("no run with a known batch size",)
