"""The steps of a trace."""

from __future__ import annotations

from traceana.timeline.steps import span_of


def test_step_numbers_far_apart_are_listed_without_counting_from_one_to_the_other() -> None:
    assert span_of([10**15, 1]) == f"1, {10**15}"
    assert span_of([4, 3, 5]) == "3-5"
    assert span_of([7]) == "7"
    assert span_of([1, 2, 3, 5, 8, 9]) == "1-3, 5, 8-9"
    assert span_of(list(range(0, 40, 2))) == "0-38 with gaps"
    assert span_of([]) == ""
