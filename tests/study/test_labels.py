"""Labels of runs: the shortest distinct ones."""

from __future__ import annotations

from tests.study.conftest import Make
from traceana.study.recorded_runs import Recorded, labels


def cell(run: Recorded) -> object:
    return run.network, run.batch


def test_the_framework_is_enough_where_it_is_one_a_cell(make: Make) -> None:
    assert labels([make(batch=1), make(batch=2)], cell) == ["PyTorch", "PyTorch"]


def test_labels_have_versions_where_a_framework_has_several(make: Make) -> None:
    runs = [make(), make(version="1.0"), make(framework="JAX", version="3")]
    assert labels(runs, cell) == ["PyTorch 2.13.0", "PyTorch 1.0", "JAX"]


def test_labels_have_the_options_in_which_runs_differ(make: Make) -> None:
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


def test_labels_leave_out_values_with_a_column(make: Make) -> None:
    runs = [make(batch=1), make(batch=2)]
    assert labels(runs, cell, frozenset({"network"})) == ["PyTorch, batch 1", "PyTorch, batch 2"]


def test_equal_runs_are_labelled_by_their_folders(make: Make) -> None:
    runs = [make(folder=f"/{day}/batch=8") for day in ("monday", "tuesday")]
    assert labels(runs, cell) == ["PyTorch (monday)", "PyTorch (tuesday)"]
    runs = [make(folder=f"/monday/{run}") for run in ("a", "b")]
    assert labels(runs, cell) == ["PyTorch (a)", "PyTorch (b)"]
    runs = [make(folder=f"/{day}/{run}") for day in ("monday", "friday") for run in ("a", "b")]
    assert labels(runs, cell) == [
        *("PyTorch (monday/a)", "PyTorch (monday/b)", "PyTorch (friday/a)", "PyTorch (friday/b)"),
    ]
