"""What runs are called: as little as tells them apart."""

from __future__ import annotations

from tests.study.conftest import Make
from traceana.study.recorded_runs import Recorded, labels


def cell(run: Recorded) -> object:
    return run.network, run.batch


def test_the_framework_is_enough_where_it_is_one_a_cell(make: Make) -> None:
    assert labels([make(batch=1), make(batch=2)], cell) == ["PyTorch", "PyTorch"]


def test_versions_are_told_where_there_are_several_of_one_framework(make: Make) -> None:
    runs = [make(), make(version="1.0"), make(framework="JAX", version="3")]
    assert labels(runs, cell) == ["PyTorch 2.13.0", "PyTorch 1.0", "JAX"]


def test_options_are_told_that_runs_of_one_framework_differ_in(make: Make) -> None:
    runs = [
        make(options={"layout": "nchw", "compile": True, "seed": 0}),
        make(options={"layout": None, "compile": False, "seed": 0}),
        make(framework="JAX", options={"layout": "nhwc", "seed": 0}),
    ]
    assert labels(runs, cell) == [
        "PyTorch, compile on, layout nchw",
        "PyTorch, compile off, layout default",
        "JAX",
    ]


def test_what_a_table_has_a_column_for_is_not_told_again(make: Make) -> None:
    runs = [make(batch=1), make(batch=2)]
    assert labels(runs, cell, frozenset({"network"})) == ["PyTorch, batch 1", "PyTorch, batch 2"]


def test_runs_that_are_alike_are_told_apart_by_their_folders(make: Make) -> None:
    runs = [make(folder=f"/{day}/batch=8") for day in ("monday", "tuesday")]
    assert labels(runs, cell) == ["PyTorch (monday)", "PyTorch (tuesday)"]
    runs = [make(folder=f"/monday/{run}") for run in ("a", "b")]
    assert labels(runs, cell) == ["PyTorch (a)", "PyTorch (b)"]
    runs = [make(folder=f"/{day}/{run}") for day in ("monday", "friday") for run in ("a", "b")]
    assert labels(runs, cell) == [
        *("PyTorch (monday/a)", "PyTorch (monday/b)", "PyTorch (friday/a)", "PyTorch (friday/b)"),
    ]
