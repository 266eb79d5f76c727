"""Running numbers and sums within groups equal polars' window functions."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from traceana.columns.distinct import groups, nth, running_sum


@pytest.mark.parametrize("rows", [0, 1, 500])
def test_windows_are_those_of_polars(rows: int) -> None:
    noise = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "key": pl.Series(noise.integers(0, 9, rows)).replace(4, None),
            "name": [f"name{number}" for number in noise.integers(0, 3, rows)],
            "value": noise.integers(-5, 5, rows),
        },
        schema_overrides={"name": pl.String},
    )
    group = groups(frame, "key", "name")
    want = frame.select(
        number=pl.int_range(pl.len()).over("key", "name"),
        total=pl.col("value").cum_sum().over("key", "name"),
    )
    assert nth(group).tolist() == want["number"].to_list()
    assert running_sum(group, frame["value"].to_numpy()).tolist() == want["total"].to_list()
