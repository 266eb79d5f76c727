"""The roofline in closed form."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceana.analyze.rates import attainable_percent, bound, intensity, rates_of_peak

# 100 operations and 10 bytes a nanosecond: the ridge is at 10 operations a byte.
PEAK, BANDWIDTH = 100e9, 10e9
SCHEMA = {
    "flops": pl.Int64,
    "bytes": pl.Int64,
    "time_ns": pl.Int64,
    "peak": pl.Float64,
    "bandwidth": pl.Float64,
}


def one(
    flops: int | None,
    bytes_: int | None,
    time_ns: int | None,
    peak: float | None = PEAK,
    bandwidth: float | None = BANDWIDTH,
) -> dict[str, Any]:
    row = (flops, bytes_, time_ns, peak, bandwidth)
    flops_, size, time, roof, width = (pl.col(name) for name in SCHEMA)
    frame = pl.DataFrame([row], schema=SCHEMA, orient="row").select(
        intensity(flops_, size).alias("intensity"),
        bound(flops_, size, roof, width).alias("bound"),
        attainable_percent(flops_, size, time, roof, width).alias("attainable_percent"),
    )
    return frame.row(0, named=True)


def test_compute_bound() -> None:
    # 20 operations a byte; at the peak 20 ns.
    found = one(2000, 100, 40)
    assert (found["intensity"], found["bound"]) == (20, "compute")
    assert found["attainable_percent"] == pytest.approx(50)


def test_memory_bound() -> None:
    # 2 operations a byte: memory allows a fifth of the peak, 10 ns.
    found = one(200, 100, 40)
    assert (found["intensity"], found["bound"]) == (2, "memory")
    assert found["attainable_percent"] == pytest.approx(25)


def test_at_the_ridge_arithmetic_is_the_bound() -> None:
    assert one(1000, 100, 10)["bound"] == "compute"


def test_a_copy_has_a_bound_and_a_percentage() -> None:
    found = one(0, 100, 20)
    assert (found["intensity"], found["bound"]) == (0, "memory")
    assert found["attainable_percent"] == pytest.approx(50)


def test_work_in_registers_alone() -> None:
    found = one(100, 0, 2)
    assert found["intensity"] is None
    assert (found["bound"], found["attainable_percent"]) == ("compute", pytest.approx(50))


@pytest.mark.parametrize("position", [0, 1, 3, 4])
def test_null_operands_give_null_rates(position: int) -> None:
    values: list[Any] = [2000, 100, 40, PEAK, BANDWIDTH]
    values[position] = None
    found = one(*values)
    assert found["bound"] is None
    assert found["attainable_percent"] is None


def test_no_work_no_time_and_no_peak() -> None:
    nothing = one(0, 0, 10)
    assert nothing["bound"] is None
    assert one(100, 100, 0)["attainable_percent"] is None
    assert one(100, 100, 10, peak=0.0)["bound"] is None
    assert one(100, 100, 10, bandwidth=0.0)["bound"] is None


COUNTS = st.integers(1, 10**15)


@given(COUNTS, COUNTS, st.integers(1, 10**9), st.floats(1e9, 1e16), st.floats(1e9, 1e14))
def test_the_definition(
    flops: int, bytes_: int, time_ns: int, peak: float, bandwidth: float
) -> None:
    found = one(flops, bytes_, time_ns, peak, bandwidth)
    attainable = min(peak, flops / bytes_ * bandwidth)
    rate = flops / (time_ns / 1e9)
    assert found["attainable_percent"] == pytest.approx(100 * rate / attainable)
    below = found["intensity"] < peak / bandwidth
    at_the_ridge = found["intensity"] == pytest.approx(peak / bandwidth)
    assert at_the_ridge or found["bound"] == ("memory" if below else "compute")


@pytest.mark.parametrize(
    ("flops", "executed", "time_ns", "over"),
    [
        # The peak allows 1,000 operations in 10 ns.
        (1001, 1000, 10, "executed fewer"),
        (1001, 1001, 10, "unexplained"),
        (1001, None, 10, "unexplained"),
        (1000, 1000, 10, None),
        (1001, 1000, 11, None),
        (1001, 1000, 0, None),
        (1001, 1000, None, None),
        (0, 0, 10, None),
        (None, None, 10, None),
    ],
)
def test_a_rate_above_the_peak_is_explained_by_executed_flops_at_most_at_the_peak(
    flops: int | None, executed: int | None, time_ns: int | None, over: str | None
) -> None:
    row = {"flops": flops, "executed_flops": executed, "_over": time_ns}
    frame = pl.DataFrame([row], schema=dict.fromkeys(row, pl.Int64))
    found = frame.select(rates_of_peak(pl.lit(PEAK))).row(0, named=True)
    assert found["over_peak"] == over
    assert (found["of_peak"] is not None and found["of_peak"] > 1) is (over is not None)


def test_nothing_is_above_an_unknown_peak() -> None:
    frame = pl.DataFrame({"flops": [1001], "executed_flops": [1000], "_over": [10]})
    found = frame.select(rates_of_peak(pl.lit(None, pl.Float64))).row(0, named=True)
    assert found == {"flops_per_s": pytest.approx(100.1e9), "of_peak": None, "over_peak": None}
