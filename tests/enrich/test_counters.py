"""Measured launches find their kernels; where the two disagree it is counted."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from traceana.analyze.measured import flops
from traceana.enrich.counters import ABSENT, OTHER_ORDER, UNMEASURED, with_counters
from traceana.errors import InvalidInputError
from traceana.trace import Tables, Trace, TraceMeta
from traceana.trace.schema import conform


def timeline(kernels: list[tuple[str, int, int]]) -> Trace:
    """Return a trace of kernels: name, start and grid size."""
    names = list(dict.fromkeys(name for name, _, _ in kernels))
    work = pl.DataFrame(
        {
            "name_id": [names.index(name) for name, _, _ in kernels],
            "kind": ["kernel"] * len(kernels),
            "start": [start for _, start, _ in kernels],
            "duration": [1] * len(kernels),
            **sizes([grid for _, _, grid in kernels]),
        }
    )
    copy = pl.DataFrame({"name_id": [0], "kind": ["memcpy"], "start": [0], "duration": [1]})
    table = pl.concat([conform("activities", copy), conform("activities", work)])
    meta = TraceMeta(source="a", format="nsys")
    return Trace(meta, Tables({"activities": table, "names": pl.DataFrame({"name": names})}))


def sizes(grids: Sequence[int | None]) -> dict[str, list[int | None]]:
    """Return the columns of grid and block sizes, all 1 but the first."""
    rest = [None if grid is None else 1 for grid in grids]
    others = ("grid_y", "grid_z", "block_x", "block_y", "block_z")
    return {"grid_x": list(grids), **dict.fromkeys(others, rest)}


def measured(launches: list[tuple[str, int, int | None]]) -> pl.DataFrame:
    """Return counters: name, number of the launch and grid size."""
    return conform(
        "counters",
        pl.DataFrame(
            {
                "launch": [number for _, number, _ in launches],
                "name": [name for name, _, _ in launches],
                **sizes([grid for _, _, grid in launches]),
            },
        ),
    )


def found(trace: Trace, counters: pl.DataFrame) -> tuple[list[int | None], dict[str, int]]:
    joined = with_counters(trace, counters)
    assert joined.tables.counters.drop("activity").equals(counters.drop("activity"))
    return (
        joined.tables.counters["activity"].to_list(),
        {row["detail"]: row["count"] for row in joined.tables.ledger.to_dicts()},
    )


def test_the_nth_launch_is_the_nth_kernel_of_its_name() -> None:
    trace = timeline([("a", 30, 1), ("b", 20, 1), ("a", 10, 1)])
    assert found(trace, measured([("a", 0, 1), ("b", 1, 1), ("a", 2, 1)])) == ([3, 2, 1], {})


def test_the_number_of_the_launch_counts_and_not_the_row() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 1)])
    assert found(trace, measured([("a", 9, 1), ("a", 4, 1)])) == ([2, 1], {})


def test_spellings_are_one_name() -> None:
    trace = timeline([("void k<(int)4, (bool)1>(int)", 10, 1)])
    assert found(trace, measured([("void k<4, 1>(int)", 0, 1)])) == ([1], {})


def test_sizes_distinguish_launches_of_a_name() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 8)])
    assert found(trace, measured([("a", 0, 1), ("a", 1, 8)])) == ([1, 2], {})


def test_another_order_is_counted_where_it_goes_back() -> None:
    trace = timeline([("a", 10, 1), ("b", 20, 1), ("c", 30, 1)])
    launches = measured([("c", 0, 1), ("a", 1, 1), ("b", 2, 1)])
    assert found(trace, launches) == ([3, 1, 2], {OTHER_ORDER: 1})


def test_kernels_are_in_the_order_of_their_launches() -> None:
    # The second launched ran first, on a stream of its own.
    trace = timeline([("a", 30, 1), ("a", 10, 1)])
    calls = conform("calls", pl.DataFrame({"start": [1, 2], "duration": [1, 1]}))
    launched = trace.tables.activities.with_columns(pl.Series("call", [None, 0, 1], pl.UInt32))
    trace = trace.with_tables(calls=calls, activities=launched)
    assert found(trace, measured([("a", 0, 1), ("a", 1, 1)])) == ([1, 2], {})


def test_names_may_be_printed_without_namespaces_and_arguments() -> None:
    trace = timeline([("void ns::k<4, true, ns::f<float> >(float*, ns::f<float>)", 10, 1)])
    assert found(trace, measured([("void k<4, 1, f<float>>(T2 *, T3)", 0, 1)])) == ([1], {})
    assert found(trace, measured([("k", 0, 1)])) == ([1], {})
    assert found(trace, measured([("void k<4, 0, f<float>>(T2 *, T3)", 0, 1)])) == (
        [None],
        {ABSENT: 1},
    )


def test_counters_of_one_process_go_to_no_run_of_several() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 1)])
    ranked = trace.tables.activities.with_columns(pl.Series("rank", [0, 0, 1], pl.Int32))
    with pytest.raises(InvalidInputError, match="2 ranks"):
        with_counters(trace.with_tables(activities=ranked), measured([("a", 0, 1)]))


def test_without_sizes_the_name_alone_decides() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 8)])
    assert found(trace, measured([("a", 0, None), ("a", 1, None)])) == ([1, 2], {})


def test_sizes_missing_in_the_timeline_are_not_compared() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 8)])
    bare = trace.with_tables(activities=trace.tables.activities.with_columns(grid_x=None))
    assert found(bare, measured([("a", 0, 5), ("a", 1, 6)])) == ([1, 2], {})


def test_disagreement_is_counted() -> None:
    trace = timeline([("a", 10, 1), ("a", 20, 1), ("never measured", 30, 1)])
    counters = measured([("a", 0, 1), ("a", 1, 64), ("never run", 2, 1)])
    assert found(trace, counters) == (
        [1, None, None],
        {ABSENT: 2, UNMEASURED: 1},
    )


def test_nothing_measured() -> None:
    assert found(timeline([("a", 10, 1)]), measured([])) == ([], {})


def test_a_multiply_add_is_two_operations_and_halves_come_in_pairs() -> None:
    counts = {
        f"{kind}_{operation}": [number]
        for kind, number in (("fp64", 1), ("fp32", 10), ("fp16", 100))
        for operation in ("add", "mul", "fma")
    }
    table = conform("counters", pl.DataFrame(counts))
    assert flops(table).rows() == [(4, 40, 800)]
    assert flops(table.with_columns(pl.lit(None, pl.Int64).alias("fp32_add"))).rows() == [
        (4, None, 800)
    ]


@pytest.mark.parametrize("spelling", ["a", "b"])
def test_joining_twice_is_joining_once(spelling: str) -> None:
    trace = timeline([("a", 10, 1)])
    once = with_counters(trace, measured([(spelling, 0, 1)]))
    again = with_counters(once, once.tables.counters)
    assert again.tables.counters.equals(once.tables.counters)
    assert again.tables.ledger.equals(once.tables.ledger)
