"""The call of each activity is the first one with its correlation id and process."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from traceana.enrich import attribute
from traceana.trace import Tables, Trace, TraceMeta

_FAR = 1 << 60
_IDS = st.one_of(st.none(), st.integers(0, 4), st.sampled_from([_FAR, _FAR + 1]))
_PROCESSES = st.one_of(st.none(), st.integers(7, 8))
_ROWS = st.lists(st.tuples(_IDS, _PROCESSES), max_size=12)


def by_looking(
    calls: list[tuple[int | None, int | None]], activities: list[tuple[int | None, int | None]]
) -> list[int | None]:
    """Return the call of each activity, by comparing each with all calls."""
    alone = any(process is None for _, process in activities)
    return [
        next(
            (
                row
                for row, (known, owner) in enumerate(calls)
                if asked is not None
                and known == asked
                and (alone or (owner is not None and owner == process))
            ),
            None,
        )
        for asked, process in activities
    ]


@given(_ROWS, _ROWS)
def test_the_calls_are_those_found_by_looking(
    calls: list[tuple[int | None, int | None]], activities: list[tuple[int | None, int | None]]
) -> None:
    schema = {"correlation": pl.Int64, "process": pl.Int64}
    times = (pl.int_range(pl.len()).alias("start"), pl.lit(1).alias("duration"))
    frames = {
        "calls": pl.DataFrame(calls, schema=schema, orient="row").with_columns(
            pl.lit("cudaLaunchKernel").alias("name"), *times
        ),
        "activities": pl.DataFrame(activities, schema=schema, orient="row").with_columns(
            pl.lit("kernel").alias("kind"), pl.lit(0).alias("name_id"), *times
        ),
        "names": pl.DataFrame({"name": ["k"]}),
    }
    found = attribute(Trace(TraceMeta(source="made", format="nsys"), Tables(frames)))
    expected = by_looking(calls, activities)
    assert found.tables.activities["call"].to_list() == expected
    lost = found.tables.ledger.filter(pl.col("reason").is_in(["no_launch", "launched_before"]))[
        "count"
    ].sum()
    assert lost == (expected.count(None) if calls else 0)
