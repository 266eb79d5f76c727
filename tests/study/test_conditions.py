"""The lines under a study's title."""

from __future__ import annotations

from traceana.study.recorded_runs import Recorded, conditions


def test_a_machine_that_nobody_named_is_not_taken_for_another_run_s() -> None:
    named, unnamed = Recorded("a", device_name="Tesla V100"), Recorded("b")
    assert conditions([named], timed=False)[0] == "Tesla V100"
    assert conditions([named, unnamed], timed=False)[0] == ("Tesla V100, unnamed machine")
    assert conditions([unnamed], timed=False) == ("times as recorded by the profiler",)
