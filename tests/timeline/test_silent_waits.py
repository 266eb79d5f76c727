"""Waits for the device that no call records: a thread that is silent while its work ends."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from tests.support.opened import opened
from tests.support.synthetic import Scenario, write_kineto

MS = 1_000_000
FIXTURES = Path(__file__).parents[2] / "fixtures"


def waiting(
    folder: Path, *, returns: int = 200_000, sync: bool = False, work: int = 5 * MS
) -> Path:
    """A step that launches ``work`` and records nothing until it ends, ``returns`` ns later."""
    run, length = Scenario(), MS + work + returns
    for number in range(3):
        at = number * length
        run.step(number, at, at + length)
        run.operator("aten::conv2d", at + 100_000, at + MS - 100_000)
        run.launch(at=at + 500_000, call=10_000, begins=at + MS, duration=work)
        if sync:
            run.sync(at + MS + work, at + MS + work + 1_000, "stream", stream=7)
    return write_kineto(run, folder / "run.json")


def path(file: Path) -> dict[str, int]:
    frame = traceana.open(file, as_recorded=True).critical().frame
    times = frame.group_by(pl.col("class").cast(pl.String)).agg(pl.col("step_ns").sum())
    return dict(times.iter_rows())


def test_the_work_that_a_silent_thread_waits_for_is_on_the_path(tmp_path: Path) -> None:
    times = path(waiting(tmp_path))
    assert times["kernel"] == 5 * MS
    # Up to the launch, and what follows the wait.
    assert times["host"] == pytest.approx(510_000 + 200_000, abs=1_000)


def test_a_thread_that_goes_on_long_after_its_work_did_something_else(tmp_path: Path) -> None:
    assert path(waiting(tmp_path, returns=2 * MS)).get("kernel", 0) == 0


def test_a_short_silence_is_that_between_two_launches(tmp_path: Path) -> None:
    assert path(waiting(tmp_path, work=300_000, returns=20_000)).get("kernel", 0) == 0


def test_where_calls_record_the_waits_silence_is_none(tmp_path: Path) -> None:
    assert path(waiting(tmp_path, sync=True)).get("kernel", 0) == 0


def test_shorter_work_shortens_the_step(tmp_path: Path) -> None:
    trace = traceana.open(waiting(tmp_path), as_recorded=True)
    (row,) = trace.whatif("kernel:.* x 0.5").frame.to_dicts()
    assert row["step_ns"] - row["predicted_ns"] == pytest.approx(2.5 * MS, abs=1_000)


def test_the_host_of_jax_waits_for_its_kernels() -> None:
    file = FIXTURES / "gpu" / "alexnet_jax.xplane.pb.gz"
    assert (opened(file).critical().frame["class"] == "kernel").any()
