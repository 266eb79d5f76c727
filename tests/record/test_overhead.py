"""The profiler's overhead: its interval in closed form, and its line on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.support.runs import write_run
from traceana.record.recording import overhead
from traceana.record.run_summary import run_summary, sweep_summary
from traceana.runs import StepTimes, Timing, read_run
from traceana.runs.run_files import TIMING_FILE

PLAIN = (110, 100, 120)
SLOWER = (160, 170, 150)


def times(steps_ns: Sequence[int], *, synchronized: bool = True) -> StepTimes:
    return StepTimes(steps_ns=tuple(steps_ns), synchronized=synchronized)


def test_the_interval_of_three_steps_is_the_range_of_all_ratios() -> None:
    # Of three, the least is the resample's median in 7 of 27 cases: at both bounds 6.7 %.
    share, interval = overhead(times(PLAIN), times(SLOWER))
    assert share == pytest.approx(160 / 110 - 1)
    assert interval == pytest.approx((150 / 120 - 1, 170 / 100 - 1))


def test_the_overhead_is_null_unless_the_interval_lies_above_0() -> None:
    share, interval = overhead(times(SLOWER), times(PLAIN))
    # The load of the machine has changed: no profiler makes a step shorter.
    assert share is None
    assert interval == pytest.approx((100 / 170 - 1, 120 / 150 - 1))
    share, interval = overhead(times(PLAIN), times((105, 115, 125)))
    assert share is None
    assert interval is not None
    assert interval[0] < 0 < interval[1]


def test_of_too_few_steps_there_is_no_interval() -> None:
    for few in ((100,), (100, 101)):
        assert overhead(times(few), times([one * 2 for one in few])) == (None, None)
    assert overhead(None, times(SLOWER)) == (None, None)
    assert overhead(times(()), times(SLOWER)) == (None, None)


def test_where_only_the_sum_is_right_the_means_are_compared() -> None:
    # Two of the three steps return before the device is done; the last waits for all of them.
    plain = times((1, 1, 298, 1, 1, 298), synchronized=False)
    share, interval = overhead(plain, plain)
    assert share is None
    assert interval is not None
    assert interval[0] < 0 < interval[1]
    steady = times((100, 101, 99, 100), synchronized=False)
    share, _ = overhead(steady, times((200, 202, 198, 200), synchronized=False))
    assert share == pytest.approx(1)


@pytest.mark.parametrize(
    ("profiled", "line", "cell"),
    [
        (SLOWER, "+45 % (90 % interval +25 to +70 %)", "+25 to +70 %"),
        ((20, 20, 20), "inconclusive (90 % interval -83 to -80 %)", "inconclusive"),
        ((20, 110, 400), "inconclusive: the steps vary too much", "inconclusive"),
        ((160, 170), "inconclusive: at least 3 steps per run needed", "inconclusive"),
    ],
)
def test_the_screen_shows_the_interval(
    profiled: Sequence[int], line: str, cell: str, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run")
    share, interval = overhead(times(PLAIN), times(profiled))
    timing = Timing(
        images_per_step=10,
        without_profiler=times(PLAIN),
        with_profiler=times(profiled),
        overhead=share,
        overhead_interval=interval,
    )
    (folder / TIMING_FILE).write_bytes(msgspec.json.encode(timing))
    run = read_run(folder)
    assert f"  overhead  {line}\n" in run_summary(run)
    assert "median of 3 without a profiler, 11 ns per example" in run_summary(run)
    assert sweep_summary(folder, [run], 1).splitlines()[2].endswith(f"  {cell}")


def test_a_timing_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", steps_ns=PLAIN, profiled_ns=SLOWER)
    file = folder / TIMING_FILE
    before = msgspec.json.decode(file.read_bytes())
    del before["overhead_interval"]
    file.write_bytes(msgspec.json.encode({**before, "overhead": -0.5}))
    timing = read_run(folder).timing()
    assert timing is not None
    assert timing.overhead_interval is None
    assert "inconclusive" in run_summary(read_run(folder))
