"""The values of a sweep's axes, and the points that they span."""

from __future__ import annotations

import pytest

from traceana.errors import UsageError
from traceana.record.sweep import SubjectOptions, parse_axis, points


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("batch=8", "8"),
        ("batch=1,2,4..512", "1 2 4 8 16 32 64 128 256 512"),
        ("batch=1,2..16", "1 2 4 8 16"),
        ("batch=3,9..243", "3 9 27 81 243"),
        ("batch=1,2,3..6", "1 2 3 4 5 6"),
        ("batch=2,4,6..10", "2 4 6 8 10"),
        ("batch=16,24..48", "16 24 32 40 48"),
        ("processes=1..4", "1 2 3 4"),
        ("batch=1,2..8,100", "1 2 4 8 100"),
        ("algorithms=heuristic,benchmark", "heuristic benchmark"),
        ("lr=0.1,1e-3", "0.1 1e-3"),
    ],
)
def test_values(text: str, values: str) -> None:
    assert parse_axis(text).values == tuple(values.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch", "use NAME=VALUE"),
        ("=1", "use NAME=VALUE"),
        ("batch=", "bad value"),
        ("batch=1,,2", "bad value"),
        ("batch=../x", "bad value"),
        ("batch=a/b", "bad value"),
        ("batch=1,1", "1 is given twice"),
        ("batch=1,2,4..500", "does not reach 500; the nearest value below it is 256"),
        ("batch=4,2..1", "does not reach 1"),
        ("batch=0,0..4", "does not reach 4"),
        ("lr=0.1..0.5", "needs integers"),
        ("batch=1..x", "needs integers"),
    ],
)
def test_an_invalid_axis_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_axis(text)


def test_points_are_the_product_the_last_axis_fastest() -> None:
    axes = [parse_axis("framework=pytorch,jax"), parse_axis("batch=1,2")]
    assert [point.folder for point in points(axes)] == [
        "framework=pytorch,batch=1",
        "framework=pytorch,batch=2",
        "framework=jax,batch=1",
        "framework=jax,batch=2",
    ]
    with pytest.raises(UsageError, match="duplicate axis"):
        points([axes[0], axes[0]])
    with pytest.raises(UsageError, match="more than 10000"):
        points([parse_axis("batch=1..101"), parse_axis("threads=1..100")])


def test_values_are_inserted_in_a_command() -> None:
    asked = SubjectOptions(command=("python", "train.py", "--lr={lr}", "{batch}", "{lr}{other}"))
    subject = asked.at({"lr": "0.1", "batch": "8"})
    assert subject.argv == ("python", "train.py", "--lr=0.1", "8", "0.1{other}")
    with pytest.raises(UsageError, match=r"no placeholder \{seed\}"):
        asked.at({"seed": "1"})
