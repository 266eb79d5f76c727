"""The lines under a study's title."""

from __future__ import annotations

from traceana.study.recorded_runs import Recorded, conditions


def test_an_unnamed_machine_differs_from_that_of_other_runs() -> None:
    named, unnamed = Recorded("a", device_name="Tesla V100"), Recorded("b")
    assert conditions([named], timed=False)[0] == "Tesla V100"
    assert conditions([named, unnamed], timed=False)[0] == ("Tesla V100, unnamed machine")
    assert conditions([unnamed], timed=False) == ("times as recorded by the profiler",)
