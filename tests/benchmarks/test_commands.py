"""The benchmark of whole commands: its traces, its exponent, and one run at a tiny size."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceana
from benchmarks.commands import Cost, Trace, exponent, measure
from benchmarks.generate_database import SHAPES, WRITERS, Shape, generate
from benchmarks.measure import Run

_KERNELS = 5000


@pytest.mark.exhaustive(after=4)
@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_trace_has_what_its_shape_says(form: str, shape: str, tmp_path: Path) -> None:
    of: Shape = SHAPES[shape]
    path, made = generate(form, shape, _KERNELS, tmp_path)
    trace = traceana.open(path)
    work, steps = trace.tables.activities, of.steps or _KERNELS // of.kernels
    assert made.steps == steps
    # nvprof counts the end of a range as an event of its own.
    ends = made.ranges if form == "nvprof" else 0
    assert trace.meta.events == made.events + ends
    assert work.filter(pl.col("kind") == "kernel").height == made.kernels
    assert abs(made.kernels - _KERNELS) < 2
    assert work.filter(pl.col("kind") == "memcpy").height == steps
    assert trace.tables.calls.height == work.height - int(of.lost * work.height)
    assert trace.tables.ranges.height == made.ranges
    assert trace.tables.ranges["depth"].max() == of.depth - 1
    assert trace.tables.ranges["thread"].n_unique() == min(of.threads, steps)
    # Steps that overlap on many threads are those of one thread.
    assert trace.tables.steps.height == (steps if of.threads == 1 else 1)
    names = work.filter(pl.col("kind") == "kernel")["name_id"].n_unique()
    assert names == made.kernels if of.names is None else names <= of.names


def test_kernels_are_launched_in_the_layers_of_their_step(tmp_path: Path) -> None:
    path, made = generate("nsys", "training", _KERNELS, tmp_path)
    trace = traceana.open(path)
    layers = trace.tables.layers.filter(pl.col("role") == "layer")
    launched = trace.tables.activities.filter(pl.col("layer").is_in(layers["position"].implode()))
    # A twentieth of the kernels, and the copy, are launched outside.
    assert launched.height == made.steps * 950
    # 190 ranges, each with one inside it, and five kernels.
    assert layers.filter(pl.col("parent").is_null()).height == 190
    assert launched["layer"].value_counts()["count"].max() == 3 * made.steps


def test_the_exponent_is_the_slope_without_the_fixed_time() -> None:
    def cost(events: int, seconds: float) -> Cost:
        return Cost(Trace(Path(), events), [Run(0.0, seconds, 0.0, 0)])

    line = [cost(events, 0.5 + 1e-6 * events) for events in (10**6, 10**7, 10**8)]
    square = [cost(events, 0.5 + 1e-12 * events**2) for events in (10**6, 10**7, 10**8)]
    assert exponent(line, 0.5) == pytest.approx(1)
    assert exponent(square, 0.5) == pytest.approx(2)
    # 0.6 s of which 0.5 s are starting say nothing.
    assert exponent([cost(10**5, 0.6), *line], 0.5) == pytest.approx(1)
    assert exponent(line[:1], 0.5) is None


@pytest.mark.exhaustive
def test_a_run_has_a_row_for_each_command_and_size(tmp_path: Path) -> None:
    # One step of a thousand kernels and two.
    found = measure([("nsys", "training")], ["report", "idle"], (2e-4, 4e-4), 1, 60, tmp_path)
    assert [(row["events"], row["command"]) for row in found.rows] == [
        (events, command) for events in (2383, 4766) for command in ("report", "idle")
    ]
    for row in found.rows:
        assert row["CPU s"] > 0
        shares = [int(row[phase].rstrip("%")) for phase in ("read", "attribute", "analyze")]
        assert all(share > 0 for share in shares)
        assert sum(shares) < 100
