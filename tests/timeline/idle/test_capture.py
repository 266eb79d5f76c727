"""The capture is one time in all commands: from the first to the last activity, and whole steps."""

from __future__ import annotations

import polars as pl

import traceana
from tests.support.traces import TraceBuilder
from traceana.advise.figures import Figures
from traceana.analyze.devices import busy, devices
from traceana.analyze.facts import facts
from traceana.report.page import Facts
from traceana.report.pages.idle import idle as page
from traceana.timeline.idle import idle
from traceana.trace import Trace


def recording(*, stepped: bool = False) -> Trace:
    """Return a recording from 0 to 1000 with work on two devices from 300 to 600."""
    b = TraceBuilder()
    b.name("kernel", category="elementwise")
    b.row("ranges", text="recording", kind="span", start=0, duration=1000, process=1)
    step = {"step": b.step(1, 250, 400)} if stepped else {}
    b.kernel("kernel", 300, 100, device=0, **step)
    b.kernel("kernel", 450, 150, device=1, **step)
    return b.build()


def test_without_steps_it_is_the_time_from_the_first_to_the_last_activity() -> None:
    trace = recording()
    idle_rows = devices(trace).frame
    assert idle_rows["span_ns"].to_list() == [300, 300]
    assert idle_rows["idle_ns"].to_list() == [200, 150]
    assert busy(trace).frame["span_ns"].to_list() == [300, 300]
    assert Figures(trace).window_ns == 600
    assert facts(trace)["span_ns"] == 300
    assert traceana.diff(trace, trace).summary.baseline.steps.frame["wall_ns"].to_list() == [300]


def test_steps_belong_to_it_as_a_whole() -> None:
    trace = recording(stepped=True)
    assert devices(trace).frame["span_ns"].to_list() == [400, 400]
    assert busy(trace).frame["span_ns"].to_list() == [400, 400]
    assert facts(trace)["span_ns"] == 400


def test_the_recording_before_and_after_it_stands_apart() -> None:
    rows = devices(recording()).frame
    assert rows["before_ns"].to_list() == [300, 300]
    assert rows["after_ns"].to_list() == [400, 400]
    found = idle(recording())
    causes = dict(found.frame.filter(device=0).select("cause", "time_ns").iter_rows())
    # The other device worked longer: that is idle time of this one.
    assert causes == {"after_last": 200}
    assert found.totals["time_ns"] == 350
    facts_of_devices = next(
        b for b in page(recording()).illustrated().blocks if isinstance(b, Facts)
    )
    texts = [text for _, text in facts_of_devices.rows]
    assert (
        "300 ns before the first and 400 ns after the last activity, outside the capture" in texts
    )


def test_a_step_without_work_is_no_part_of_it() -> None:
    b = TraceBuilder()
    b.name("kernel", category="elementwise")
    b.step(1, 0, 100)
    b.kernel("kernel", 120, 50, step=b.step(2, 100, 100))
    assert devices(b.build()).frame["span_ns"].to_list() == [100]
    assert busy(b.build()).frame.select(pl.col("span_ns")).item() == 100


def test_a_step_without_work_counts_in_means_per_step() -> None:
    b = TraceBuilder()
    b.name("kernel", category="elementwise")
    b.step(1, 0, 100)
    step = b.step(2, 100, 100)
    b.kernel("kernel", 120, 50, step=step)
    frame = idle(b.build()).frame
    assert frame["time_ns"].sum() == 50
    assert frame["step_ns"].sum() == 25
    assert frame["step_count"].sum() == 1
