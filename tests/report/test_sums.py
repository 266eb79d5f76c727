"""Above each table of sums over the capture, or of means, a line names what they are over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.traces import TraceBuilder, cnn_steps
from traceana.report.page import Facts, Table
from traceana.report.pages.kernels import kernels
from traceana.report.pages.layers import flops, layers
from traceana.report.pages.transfers import all_collectives, transfers
from traceana.report.result import CommandResult
from traceana.report.terminal import render
from traceana.timeline.steps import select
from traceana.trace import Trace

MS = 1_000_000


def line(result: CommandResult) -> str:
    """Return the text of the line, which stands directly above the table."""
    first, second, *_ = result.page().blocks
    assert isinstance(first, Facts)
    assert isinstance(second, Table)
    ((label, text),) = first.rows
    assert label == "Table"
    return text


def training(processes: int, *, of_containers: bool = False) -> Trace:
    """Return two steps of each process, with a kernel of 3 ms, a collective and a copy of 1 ms.

    The processes of containers have the same id.
    """
    b = TraceBuilder(framework="PyTorch")
    b.name("reduce", category="collective", function="all_reduce")
    for rank in range(processes):
        for number in range(2):
            start = 10 * MS * number
            process = 1 if of_containers else rank
            row = b.step(number, start, 10 * MS, rank=rank, process=process)
            b.kernel("k", start, 3 * MS, rank=rank, step=row)
            b.kernel("reduce", start + 3 * MS, MS, rank=rank, step=row)
            b.copy("HtoD", start + 5 * MS, MS, rank=rank, step=row, bytes=8)
    return b.build()


@pytest.mark.parametrize("make", [kernels, layers])
def test_the_shares_are_of_all_gpu_time(make: Callable[..., CommandResult]) -> None:
    summed = partial(make, sum=True)
    assert line(summed(training(1))) == (
        "sums over the capture (2 steps) · share: of 10.00 ms summed GPU time"
    )
    assert line(summed(training(3))) == (
        "sums over the capture (2 steps of 3 processes) · share: of 30.00 ms summed GPU time"
    )
    assert line(summed(training(3, of_containers=True))) == line(summed(training(3)))
    assert line(summed(select(training(1), steps=[1]))) == (
        "sums over the selected steps (1 step) · share: of 5.00 ms summed GPU time"
    )


@pytest.mark.parametrize("make", [kernels, layers])
def test_the_means_name_their_steps(make: Callable[..., CommandResult]) -> None:
    averages = "averages over 2 steps, too few to detect warm-up"
    assert line(make(training(1))) == f"{averages} · share: of 5.00 ms GPU time"
    of_three = f"{averages}, per step and process · share: of 5.00 ms GPU time"
    assert line(make(training(3))) == line(make(training(3, of_containers=True))) == of_three
    assert line(make(select(training(1), steps=[1]))) == (
        "1 step, possibly warm-up · share: of 5.00 ms GPU time"
    )
    assert line(make(cnn_steps())) == (
        "averages over 2 of 3 steps, warm-up step 1 excluded (over 1.25 times the median) · share: "
        "of 4.40 µs GPU time · 33.3 % of GPU time is outside these steps"
    )


def test_every_table_of_sums_has_it() -> None:
    trace = training(2)
    over = "sums over the capture (2 steps of 2 processes)"
    assert line(transfers(trace, sum=True)) == over
    assert line(transfers(trace, by="size", sum=True)) == over
    assert line(all_collectives(trace, sum=True)) == over
    assert line(flops(trace, sum=True)) == over
    assert line(flops(cnn_steps(), by="class", sum=True)).startswith("sums over the capture (")
    # By step, each row is of its own step.
    by_step = render(transfers(trace, by="step").page())
    assert "sums over" not in by_step
    assert "averages over" not in by_step
