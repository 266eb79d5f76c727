"""When a CPU is busy: what its input pipeline does during a wait for a batch does not count."""

from __future__ import annotations

import polars as pl

from tests.support.traces import TraceBuilder
from traceana.analyze.devices import busy
from traceana.report.pages.overview import Summary
from traceana.report.pages.report import report
from traceana.timeline.idle import idle
from traceana.timeline.steps import steps
from traceana.trace import Trace


def with_data_loader() -> Trace:
    """Return steps of 1000 ns: 600 load a batch, which takes an operator 500; 300 compute."""
    b = TraceBuilder()
    layer = b.row("layers", path="fc", role="layer", position=0)
    for number in range(4):
        at = 1000 * number
        b.row("steps", number=number, process=1, start=at, duration=1000, source="ProfilerStep",
              complete=True)  # fmt: skip
        b.row("ranges", text="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
              kind="annotation", process=1, thread=1, start=at, duration=600)  # fmt: skip
        for name, start, duration, of in (
            ("aten::mm", 50, 500, None),
            ("aten::addmm", 650, 300, layer),
        ):
            op = b.row("ops", name=name, process=1, thread=1, start=at + start, depth=0,
                       duration=duration, layer=of)  # fmt: skip
            b.row("activities", kind="op", device=-1, op=op, process=1, stream=1, layer=of,
                  start=at + start, duration=duration, step=number)  # fmt: skip
    return b.build()


def test_loading_a_batch_in_the_process_is_no_work_of_the_step() -> None:
    trace = with_data_loader()
    assert steps(trace).frame["busy_ns"].to_list() == [300] * 4
    assert busy(trace).frame["busy_ns"].to_list() == [1200]
    causes = idle(trace).frame
    by_cause = dict(causes.group_by("cause").agg(pl.col("time_ns").sum()).iter_rows())
    assert by_cause["data_loader"] == 2400
    assert sum(by_cause.values()) == 4000 - 1200


def test_utilization_is_equal_in_report_and_idle() -> None:
    whole = report(with_data_loader()).summary
    assert isinstance(whole, Summary)
    assert whole.utilization == 0.3
