"""The commands on every available trace, and the conservation law in every analysis."""

from __future__ import annotations

import json
from functools import partial

import polars as pl
import pytest

from tests.support.manifest import traces_at_hand
from tests.support.opened import opened
from traceana.analyze.classes import breakdown, condensed
from traceana.analyze.devices import busy
from traceana.analyze.facts import facts
from traceana.analyze.kernels import kernels
from traceana.analyze.layers import layers
from traceana.analyze.transfers import transfers
from traceana.report.pages.report import report
from traceana.timeline.steps import steps
from traceana.trace import Trace

pytestmark = pytest.mark.slow

FILES = traces_at_hand()
LINES_OF_A_SCREEN = 58


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name)
def trace(request: pytest.FixtureRequest) -> Trace:
    return opened(request.param)


def test_every_breakdown_adds_up_to_the_work(trace: Trace) -> None:
    done = trace.tables.activities.filter(pl.col("kind") != "sync")
    work_ns, calls = done["duration"].sum(), done.height
    for analysis in (breakdown, layers, partial(layers, direction=True)):
        frame = analysis(trace).frame
        assert (frame["time_ns"].sum(), frame["calls"].sum()) == (work_ns, calls)
    lines = condensed(breakdown(trace).frame)
    assert sum(line.time_ns for line in lines if line.depth == 0) == work_ns
    assert (
        kernels(trace).totals["calls"] == done.filter(pl.col("kind").is_in(["kernel", "op"])).height
    )
    copies = done.filter(pl.col("kind") == "memcpy")
    assert transfers(trace).frame["time_ns"].sum() == copies["duration"].sum()
    assert sum(facts(trace)["memcpy"].values()) == copies.height


def test_busy_and_idle_are_the_span(trace: Trace) -> None:
    frame = busy(trace).frame
    assert (frame["busy_ns"] + frame["idle_ns"]).to_list() == frame["span_ns"].to_list()
    assert (frame["busy_ns"] <= frame["sum_ns"]).all()
    assert (frame["idle_ns"] >= 0).all()
    by_step = steps(trace).frame
    assert (by_step["busy_ns"] <= by_step["wall_ns"] * by_step["devices"]).all()


def test_the_report_fits_a_screen(trace: Trace) -> None:
    from traceana.report.terminal import Terminal, render

    text = render(report(trace).page(), Terminal(100))
    assert len(text.splitlines()) <= LINES_OF_A_SCREEN
    assert max(map(len, text.splitlines())) <= 100
    assert not any(character < " " for character in text if character != "\n")


def test_the_json_of_the_facts_is_json(trace: Trace) -> None:
    assert json.loads(json.dumps(facts(trace), allow_nan=False))["file"] == trace.meta.source
