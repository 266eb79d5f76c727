"""Steps, devices and ranks are given as on the command line, in Python too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import traceana
from traceana.errors import UsageError
from traceana.vocabulary.number_lists import CPU, number_list

FILES = Path(__file__).parents[2] / "fixtures" / "gpu"


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (3, [3]), ("3", [3]), ("3,5", [3, 5]), ("3-5", [3, 4, 5]), ("cpu, 1", [CPU, 1]),
        ((4, 2), [4, 2]),
    ],
)  # fmt: skip
def test_numbers(wanted: Any, numbers: list[int]) -> None:
    assert number_list(wanted) == numbers


@pytest.mark.parametrize("text", ["", "x", "5-3", "3-", "1.5", "0-9999999"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="numbers"):
        number_list(text)


def test_a_trace_takes_them() -> None:
    trace = traceana.open(FILES / "alexnet_b128.json.gz")
    for steps in (4, "4", [4]):
        assert trace.select(steps=steps).meta.properties["selected_steps"] == (4,)
    with pytest.raises(UsageError, match="'four' is not a list of numbers"):
        trace.select(steps="four")
    assert traceana.open(FILES / "alexnet_b128.json.gz", steps=3).tables.steps.height == 1


def test_runs_are_compared_one_by_one_or_as_a_list() -> None:
    paths = [FILES / f"alexnet_b{batch}.json.gz" for batch in (64, 128)]
    one_by_one = traceana.compare(*paths).frame
    assert one_by_one.equals(traceana.compare(paths).frame)
    assert one_by_one.equals(traceana.compare(traceana.open(paths[0]), paths[1]).frame)
