"""Sampled counters in closed form, and against sums over single nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.traces import TraceBuilder
from traceana.analyze.samples import (
    BY_CLASS,
    BY_LAYER,
    BY_STEP,
    COLUMNS,
    LOCKED,
    samples,
)
from traceana.result import Result
from traceana.table import names_of
from traceana.timeline.steps import select
from traceana.trace import Trace


class Recording(TraceBuilder):
    """A device with work and counters."""

    def counter(self, name: str, values: Sequence[float], every: int, **columns: Any) -> None:
        """Add a sample each ``every`` ns from 0 on."""
        for at, value in enumerate(values):
            where = {"device": 0, "name": name, "unit": "%", **columns}
            self.row("samples", start=at * every, duration=every, value=float(value), **where)


def two_classes() -> Recording:
    """Return a convolution from 100 to 400 and a product from 500 to 900, in a layer each."""
    builder = Recording()
    builder.name("conv", category="conv")
    builder.name("gemm", category="gemm")
    first, second = builder.layer("features.0"), builder.layer("classifier.0")
    builder.kernel("conv", 100, 300, layer=first)
    builder.kernel("gemm", 500, 400, layer=second)
    return builder


def counted(trace: Trace, by: Any = "counter") -> list[dict[str, Any]]:
    return samples(trace, by).frame.to_dicts()


def test_means_over_busy_and_idle_time() -> None:
    builder = two_classes()
    builder.counter("SM Active", [10 * at for at in range(10)], 100)
    (row,) = counted(builder.build())
    assert row == {
        **{"name": "SM Active", "unit": "%", "rank": None, "device": 0},
        **{"samples": 10, "interval_ns": 100, "mean": 45.0, "min": 0.0, "max": 90.0},
        **{"busy_mean": 320 / 7, "idle_mean": 130 / 3},
        **{"sampled_ns": 1_000, "busy_ns": 700, "idle_ns": 300},
    }


def test_a_sample_counts_by_the_time_that_it_covers() -> None:
    builder = two_classes()
    for start, duration, value in ((0, 150, 2), (150, 50, 4), (200, 800, 6)):
        where = {"device": 0, "name": "c", "value": float(value)}
        builder.row("samples", start=start, duration=duration, **where)
    (row,) = counted(builder.build())
    assert row["mean"] == pytest.approx((300 + 200 + 4_800) / 1_000)
    assert row["busy_mean"] == pytest.approx((50 * 2 + 50 * 4 + 600 * 6) / 700)


def test_a_counter_of_no_device_is_neither_busy_nor_idle() -> None:
    builder = two_classes()
    builder.counter("host", [1, 2], 100, device=None)
    (row,) = counted(builder.build())
    assert (row["mean"], row["busy_mean"], row["idle_mean"]) == (1.5, None, None)
    assert (row["busy_ns"], row["idle_ns"]) == (None, None)


def test_one_reading_has_its_own_mean() -> None:
    builder = two_classes()
    builder.row("samples", start=5, duration=0, device=0, name="Power", unit="W", value=312.0)
    trace = builder.build()
    (row,) = counted(trace)
    assert (row["mean"], row["sampled_ns"], row["busy_mean"]) == (312.0, 0, None)
    assert {row["coverage"] for row in counted(trace, "class")} == {0.0}


def test_devices_and_ranks_have_rows_of_their_own() -> None:
    builder = two_classes()
    for rank, device, value in ((0, 0, 1), (0, 1, 2), (1, 0, 3)):
        builder.kernel("conv", 0, 50, rank=rank, device=device)
        builder.counter("c", [value], 100, rank=rank, device=device)
    trace = builder.build()
    found = [(row["rank"], row["device"], row["mean"]) for row in counted(trace)]
    assert found == [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0)]
    chosen = counted(select(trace, ranks=[0], devices=[1]))
    assert [(row["rank"], row["device"]) for row in chosen] == [(0, 1)]


def by_key(result: Result, key: str) -> dict[str, tuple[Any, ...]]:
    columns = ("time_ns", "coverage", "mean", "samples")
    return {row[key]: tuple(row[name] for name in columns) for row in result.frame.to_dicts()}


def test_classes_and_layers_have_the_samples_within_their_runs() -> None:
    builder = two_classes()
    builder.counter("SM Active", [10 * at for at in range(10)], 100)
    trace = builder.build()
    assert by_key(samples(trace, "class"), "category") == {
        "gemm": (400, 1.0, 65.0, 4),
        "conv": (300, 1.0, 20.0, 3),
    }
    assert by_key(samples(trace, "layer"), "layer") == {
        "classifier.0": (400, 1.0, 65.0, 4),
        "features.0": (300, 1.0, 20.0, 3),
    }


def test_a_run_shorter_than_two_intervals_has_no_mean() -> None:
    builder = two_classes()
    builder.counter("SM Active", [1, 2, 3, 4, 5], 160)
    result = samples(builder.build(), "class")
    # From 500 to 900 lie the samples from 640 on; the convolution lasts 300 ns of 320.
    assert by_key(result, "category") == {"gemm": (400, 1.0, 5.0, 1), "conv": (300, 0.0, None, 0)}
    assert result.notes == (
        "means of runs of one class that last at least 2 sampling intervals; coverage: their "
        "share of its time",
    )


def test_short_pieces_of_one_class_are_one_run() -> None:
    builder = two_classes()
    for start in range(1_000, 1_400, 100):
        builder.kernel("conv", start, 92)
    builder.counter("SM Active", range(20), 100)
    found = by_key(samples(builder.build(), "class"), "category")
    # Gaps of 8 ns are below a tenth of the interval; the last sample reaches beyond the run.
    assert found["conv"] == (300 + 368, 1.0, (1 + 2 + 3 + 10 + 11 + 12) / 6, 6)


def test_one_reading_beside_does_not_cut_the_runs_of_other_counters() -> None:
    builder = two_classes()
    for start in range(1_000, 1_400, 100):
        builder.kernel("conv", start, 92)
    builder.counter("SM Active", range(20), 100)
    builder.row("samples", start=0, duration=0, device=0, name="Power", value=300.0)
    rows = counted(builder.build(), "class")
    assert [(row["category"], row["name"]) for row in rows] == [
        *(("conv", "Power"), ("conv", "SM Active"), ("gemm", "Power"), ("gemm", "SM Active")),
    ]
    assert [row["coverage"] for row in rows] == [0.0, 1.0, 0.0, 1.0]


def test_other_work_beside_a_run_ends_it() -> None:
    builder = two_classes()
    builder.kernel("conv", 1_000, 1_000, stream=7)
    builder.kernel("gemm", 1_200, 100, stream=8)
    builder.counter("SM Active", range(20), 100)
    found = by_key(samples(builder.build(), "class"), "category")
    # Alone is the convolution from 1000 to 1200; behind the product its run is not looked for.
    assert found["conv"] == (1_300, 1.0, (1 + 2 + 3 + 10 + 11) / 5, 5)
    assert found["gemm"] == (500, 0.8, 6.5, 4)


def in_steps() -> Recording:
    builder = two_classes()
    for step, start in ((3, 0), (4, 450)):
        builder.step(step, start, 450, process=1)
    return builder


def test_steps_have_the_samples_of_their_windows() -> None:
    builder = Recording()
    steps = [builder.step(number, 100 * number, 100, process=1) for number in (1, 2)]
    for number, step in enumerate(steps, 1):
        builder.kernel("k", 100 * number + 10, 60, step=step, process=1)
    builder.counter("c", [1, 3, 5, 7, 9, 11], 60)
    trace = builder.build()
    rows = counted(trace, "step")
    # 100 to 200: 20 ns of 3, 60 of 5, 20 of 7. 200 to 300: 40 ns of 7, 60 of 9.
    assert [(row["step"], row["mean"], row["samples"]) for row in rows] == [
        (1, pytest.approx((60 + 300 + 140) / 100), 3),
        (2, pytest.approx((280 + 540) / 100), 2),
    ]
    (row,) = counted(select(trace, steps=[2]))
    assert (row["mean"], row["sampled_ns"]) == (pytest.approx(8.2), 100)
    assert (row["busy_ns"], row["busy_mean"]) == (60, pytest.approx((30 * 7 + 30 * 9) / 60))


def test_selected_steps_have_the_runs_of_their_work() -> None:
    builder = Recording()
    steps = [builder.step(number, 1_000 * number, 1_000, process=1) for number in range(2)]
    for number, step in enumerate(steps):
        builder.kernel("k", 1_000 * number, 900, step=step, process=1)
    builder.counter("c", range(20), 100)
    chosen = samples(select(builder.build(), steps=[1]), "class")
    assert by_key(chosen, "category") == {"other": (900, 1.0, 14.0, 9)}


def test_without_samples_a_note_says_how_to_record_some() -> None:
    for by, columns in (
        ("counter", COLUMNS), ("step", BY_STEP), ("class", BY_CLASS), ("layer", BY_LAYER)
    ):  # fmt: skip
        result = samples(two_classes().build(), by)  # type: ignore[arg-type]
        assert result.frame.columns == names_of(columns)
        assert result.notes[0].startswith("no sampled counters")


def test_a_sampler_that_locks_the_clocks_is_a_note() -> None:
    builder = two_classes()
    builder.counter("SM Active", [1], 100)
    trace = builder.build().with_meta(properties={"sampler_locks_clocks": True})
    for by in ("counter", "step", "class", "layer"):
        assert LOCKED in samples(trace, by).notes


PIECES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 120), st.sampled_from(["conv", "gemm"])),
    min_size=1,
    max_size=8,
)
VALUES = st.lists(
    st.tuples(st.integers(1, 60), st.floats(-1e6, 1e6)), min_size=1, max_size=12
)  # fmt: skip


def built(pieces: list[tuple[int, int, str]], values: list[tuple[int, float]]) -> Trace:
    builder = Recording()
    for category in ("conv", "gemm"):
        builder.name(category, category=category)
    for stream, (start, duration, category) in enumerate(pieces):
        builder.kernel(category, start, duration, stream=stream)
    time = 0
    for duration, value in values:
        builder.row("samples", start=time, duration=duration, device=0, name="c", value=value)
        time += duration
    return builder.build()


@given(PIECES, VALUES)
@settings(max_examples=150, deadline=None)
def test_busy_and_idle_time_add_up_to_the_samples(
    pieces: list[tuple[int, int, str]], values: list[tuple[int, float]]
) -> None:
    (row,) = counted(built(pieces, values))
    sampled = np.repeat([value for _, value in values], [duration for duration, _ in values])
    busy = np.zeros(len(sampled), np.bool_)
    for start, duration, _ in pieces:
        busy[start : start + duration] = True
    assert row["sampled_ns"] == len(sampled) == row["busy_ns"] + row["idle_ns"]
    assert row["busy_ns"] == busy.sum()
    assert row["mean"] == pytest.approx(sampled.mean(), rel=1e-9, abs=1e-6)
    for name, part in (("busy_mean", sampled[busy]), ("idle_mean", sampled[~busy])):
        if len(part):
            assert row[name] == pytest.approx(part.mean(), rel=1e-9, abs=1e-6)
        else:
            assert row[name] is None
    both = sum((row[f"{kind}_mean"] or 0) * row[f"{kind}_ns"] for kind in ("busy", "idle"))
    assert both == pytest.approx(sampled.sum(), rel=1e-9, abs=1e-3)


@given(PIECES, VALUES)
@settings(max_examples=150, deadline=None)
def test_a_mean_of_a_class_is_of_time_in_which_it_runs_alone(
    pieces: list[tuple[int, int, str]], values: list[tuple[int, float]]
) -> None:
    trace = built(pieces, values)
    interval = int(np.median([duration for duration, _ in values]))
    running = {category: np.zeros(1_000, np.bool_) for category in ("conv", "gemm")}
    for start, duration, category in pieces:
        running[category][start : start + duration] = True
    for row in counted(trace, "class"):
        durations = [duration for _, duration, category in pieces if category == row["category"]]
        assert row["time_ns"] == sum(durations)
        assert 0 <= row["coverage"] <= 1
        assert (row["mean"] is None) == (row["samples"] == 0)
        other = running["gemm" if row["category"] == "conv" else "conv"]
        alone = running[row["category"]] & ~other
        # Gaps of a tenth of an interval do not end a run.
        at, inside = 0, []
        for duration, value in values:
            part = slice(at, at + duration)
            if not other[part].any() and (~alone[part]).sum() <= 0.1 * interval * 8:
                inside.append(value)
            at += duration
        if row["samples"]:
            assert min(inside) - 1e-6 <= row["mean"] <= max(inside) + 1e-6
            assert row["samples"] <= len(inside)


def test_the_frame_of_no_counter_is_typed() -> None:
    frame = samples(two_classes().build()).frame
    assert frame.schema["mean"] == pl.Float64
    assert frame.schema["sampled_ns"] == pl.Int64
