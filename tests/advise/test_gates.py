"""Gates: refused, failing and passing ones."""

from __future__ import annotations

import pytest

from tests.advise.building import Run, run_of
from traceana.advise import advise
from traceana.advise.figures import Figures
from traceana.advise.gates import METRICS, broken, limit_of, rules_of
from traceana.errors import UsageError
from traceana.report.pages.advise import broken_gate as message
from traceana.trace import Trace


def pageable(run: Run) -> None:
    run.put_copy("HtoD", 1_000_000, bytes=4_000_000, source_memory="pageable")


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Return steps of 10 ms: 8 ms of a kernel, then 1 ms of one copy."""
    built: Trace = run_of(pageable)
    return built


@pytest.mark.parametrize(
    "text",
    [
        "", "idle", "idle=", "idle=-5%", "idle=5 kg", "idle=5ms", "idle=1e3", "step_time=5",
        "step_time=5%", "no_such=5%", "h2d_count_per_step=5MB", "idle=5%%", "=5%", "idle==5%",
        "idle=\x1b[2J", "x" * 500,
    ],
)  # fmt: skip
def test_a_gate_that_cannot_be_read_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        limit_of(text)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["", "no_such", "pageable_copies,,", "any,nothing"])
def test_rules_that_there_are_not_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--list"):
        rules_of(text)


def test_rules_are_listed_once_and_any_is_all_that_save() -> None:
    assert rules_of(" pageable_copies, small_copies,pageable_copies") == (
        "pageable_copies",
        "small_copies",
    )
    assert "first_step_counted" not in rules_of("any")
    assert "small_copies" in rules_of("any")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("idle=5%", 0.05),
        ("idle = 5 %", 0.05),
        ("idle=0.25", 0.25),
        ("step_time=1.5ms", 1_500_000),
        ("step_time=20us", 20_000),
        ("step_time=20µs", 20_000),
        ("h2d_count_per_step=3", 3),
        ("htod_bytes_per_step=1.5MB", 1_500_000),
    ],
)
def test_limits(text: str, most: float) -> None:
    assert limit_of(text).most == pytest.approx(most)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idle", 0.1),
        ("exposed_copy", 0.1),
        ("exposed_pageable", 0.1),
        ("unclassified", 0.0),
        ("collective", 0.0),
        ("plain_fp32", 0.0),
        ("step_time", 10_000_000),
        ("kernels_per_step", 1.0),
        ("htod_count_per_step", 1.0),
        ("dtoh_count_per_step", 0.0),
        ("htod_bytes_per_step", 4_000_000),
        ("data_loading", 0.0),
        ("exposed_communication", 0.0),
    ],
)
def test_figures(trace: Trace, name: str, value: float) -> None:
    (metric,) = [one for one in METRICS if one.name == name]
    assert metric.of(Figures(trace)) == pytest.approx(value)


def test_a_limit_that_is_reached_holds_and_one_that_is_passed_fails(trace: Trace) -> None:
    advice = advise(trace)
    limits = [limit_of("idle=10%"), limit_of("idle=9.9%"), limit_of("step_time=9ms")]
    failed = broken(Figures(trace), advice, rules_of("pageable_copies,small_copies"), limits)
    assert [message(one) for one in failed] == [
        "pageable_copies: finding",
        "idle is 10.0 %, limit 9.9 %",
        "step_time is 10.00 ms, limit 9.00 ms",
    ]


def test_a_figure_that_the_trace_does_not_hold_is_unknown() -> None:
    run = Run()
    run.kernel("plain", 0, 100)
    trace = run.build()
    (failed,) = broken(Figures(trace), advise(trace), (), [limit_of("step_time=1s")])
    assert failed.unknown
    assert message(failed) == "step_time unknown: not in this trace"
