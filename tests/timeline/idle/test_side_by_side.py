"""The screen of several ranks: a column a rank, and the exact rows in the machine formats."""

from __future__ import annotations

import polars as pl
import pytest

from tests.support.traces import TraceBuilder
from traceana.report.page import Chart, Table
from traceana.report.pages.idle import idle
from traceana.report.terminal import Terminal, render
from traceana.trace import Trace


def ranks(number: int) -> Trace:
    """Return two kernels on each of ``number`` devices, the gap a ms longer on each next one."""
    builder = TraceBuilder()
    for device in range(number):
        builder.row("devices", device=device, name="NVIDIA H100")
        builder.kernel("k", 1_000 * device, 1_000_000 - 1_000 * device, device=device)
        builder.kernel("k", 1_000_000 * (device + 2), 1_000_000 * (20 - device), device=device)
    return builder.build()


def table(trace: Trace) -> Table:
    (found,) = (one for one in idle(trace).page(limit=30).blocks if isinstance(one, Table))
    return found


def header(trace: Trace, width: int) -> list[str]:
    lines = render(idle(trace).page(limit=30), Terminal(width)).splitlines()
    return next(line.split() for line in lines if line.startswith("cause"))


def test_each_device_is_a_column_whose_total_is_its_idle_time() -> None:
    shown = table(ranks(3))
    assert [column.title for column in shown.columns] == [
        "cause",
        "gaps",
        "sum over 3 GPUs",
        "0",
        "1",
        "2",
    ]
    result = idle(ranks(3))
    for device in range(3):
        own = result.frame.filter(device=device)["time_ns"].sum()
        assert shown.totals[f"idle {device}"] == shown.frame[f"idle {device}"].sum() == own
    assert shown.totals["time_ns"] == shown.frame["time_ns"].sum()


def test_the_machine_formats_keep_a_row_a_device_and_cause() -> None:
    result = idle(ranks(3))
    assert result.page().data.rows.frame.equals(result.frame)
    assert result.frame.columns[:3] == ["rank", "device", "cause"]


def test_of_many_devices_there_are_the_spread_and_those_farthest_from_the_median() -> None:
    trace = ranks(12)
    titles = [column.title for column in table(trace).columns]
    assert titles[:6] == ["cause", "gaps", "sum over 12 GPUs", "min", "median", "max"]
    assert titles[6:] == ["0", "1", "2", "3", "8", "9", "10", "11"]
    shown = table(trace)
    per_device = idle(trace).frame.group_by("device").agg(pl.col("time_ns").sum())
    idle_ns = sorted(per_device["time_ns"])
    assert shown.totals["idle min"] == idle_ns[0]
    assert shown.totals["idle max"] == idle_ns[-1]


@pytest.mark.parametrize("width", [72, 80])
def test_the_devices_nearest_to_the_median_go_first_for_lack_of_width(width: int) -> None:
    trace = ranks(12)
    kept = header(trace, width)
    # The title of the sum is in two lines.
    assert kept[:6] == ["cause", "12", "GPUs", "min", "median", "max"]
    assert 0 < len(kept[6:]) < 8
    assert kept[-1] == "11"
    assert "3" not in kept or "8" in kept


def test_the_limit_is_of_the_rows_shown() -> None:
    trace = ranks(3)
    (found,) = (one for one in idle(trace).page(limit=1).blocks if isinstance(one, Table))
    assert found.frame.height == 1
    assert found.hidden is not None
    assert found.hidden.rows + 1 == table(trace).frame.height


def stepped() -> Trace:
    """Return two devices with gaps of 1 and 2 ms in a step of 10 ms, and of 5 ms after it."""
    builder = TraceBuilder()
    row = builder.step(1, 0, 10_000_000)
    for device in range(2):
        builder.row("devices", device=device, name="NVIDIA H100")
        first = (5 - device) * 1_000_000
        builder.kernel("k", 0, first, device=device, step=row)
        builder.kernel("k", 6_000_000, 4_000_000, device=device, step=row)
        builder.kernel("k", 15_000_000, 1_000_000, device=device)
    return builder.build()


def test_the_table_and_the_chart_have_the_same_gaps_of_the_measured_steps() -> None:
    shown = table(stepped())
    titles = [(column.title, column.group) for column in shown.columns]
    assert titles[1:] == [
        ("gaps per step", ""), ("mean", ""), ("0", "GPU, per step"), ("1", "GPU, per step"),
    ]  # fmt: skip
    # A device idles for 1 ms and the other for 2 ms of the step.
    assert shown.frame["time_ns"].to_list() == [1_500_000]
    assert shown.frame["count"].to_list() == [1.0]
    assert shown.totals["time_ns"] == 1_500_000
    assert shown.totals["idle 0"] == 1_000_000
    (chart,) = (one for one in idle(stepped()).illustrated().blocks if isinstance(one, Chart))
    assert chart.title == "Idle time by cause, mean per step and device"
    assert chart.marks[0].frame["time_ns"].to_list() == [1_500_000]
    # In the machine formats the gaps after the step are there.
    assert idle(stepped()).totals["time_ns"] == 13_000_000


def test_the_chart_without_steps_is_a_sum_over_the_devices_and_its_title_says_so() -> None:
    (chart,) = (one for one in idle(ranks(3)).illustrated().blocks if isinstance(one, Chart))
    assert chart.title == "Idle time by cause, sum over 3 GPUs"
    (chart,) = (one for one in idle(ranks(1)).illustrated().blocks if isinstance(one, Chart))
    assert chart.title == "Idle time by cause"
