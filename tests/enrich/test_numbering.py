"""Numbers of rows against sets and dictionaries of them."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceana import columns
from traceana.columns.distinct import distinct, first_rows, numbered, rows_of
from traceana.columns.nesting import Ints

Row = tuple[int | None, int | None, str | None]
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "near": pl.Int32,
    "far": pl.Int64,
    "label": pl.Categorical(),
}
rows = st.lists(
    st.tuples(
        st.sampled_from([None, -1, 0, 1]),
        st.sampled_from([None, -(2**62), 5, 2**62]),
        st.sampled_from([None, "a", "b"]),
    ),
    max_size=12,
)


def frame(values: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(values, schema=SCHEMA, orient="row")


@settings(deadline=None)
@given(rows, rows, st.sampled_from([numbered, columns.distinct.by_halves]))
def test_equal_rows_have_equal_numbers_in_whichever_frame(
    one: list[Row], other: list[Row], number: Callable[..., tuple[Ints, ...]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns.distinct, "_BLOCK", 5)
        found = number(frame(one), frame(other))
    numbers = [number for part in found for number in part.tolist()]
    assert [len(part) for part in found] == [len(one), len(other)]
    assert len(set(zip(numbers, one + other, strict=True))) == len(set(one + other))
    assert set(numbers) == set(range(len(set(one + other))))


@settings(deadline=None)
@given(rows)
def test_rows_of_each_number_are_in_order_and_the_first_is_the_first(values: list[Row]) -> None:
    (numbers,) = numbered(frame(values))
    by_number = {number: some.tolist() for number, some in rows_of(numbers)}
    assert by_number == {
        int(number): [at for at, own in enumerate(numbers) if own == number] for number in numbers
    }
    assert first_rows(numbers).tolist() == [by_number[number][0] for number in sorted(by_number)]
    assert sorted(map(str, distinct(frame(values)).rows())) == sorted(map(str, set(values)))


def test_numbers_are_in_the_order_of_the_columns() -> None:
    values = pl.DataFrame({"a": [1, 0, 1, None], "b": [0, 9, -5, 3]})
    assert numbered(values)[0].tolist() == [3, 1, 2, 0]
