"""A replay without a change is the trace itself, to the nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.timeline.critical.test_exact import tables
from traceana.timeline.graph import graphs
from traceana.trace import Trace
from traceana.whatif.replay import Meetings, replayed_together, step_windows


def check(trace: Trace) -> None:
    processes = list(graphs(trace))
    meetings = Meetings.of(trace.whole, processes)
    lags, durations = [one.edges.lag for one in processes], [one.duration for one in processes]
    together = replayed_together(processes, meetings, lags, durations)
    for graph, (over, lengths) in zip(processes, together, strict=True):
        assert (graph.edges.source < graph.edges.target).all()
        assert (lengths == graph.duration).all()
        assert (over == graph.at + graph.duration).all()
        begin, end = step_windows(graph, over, graph.duration)
        assert begin.tolist() == graph.steps["begin"].to_list()
        assert end.tolist() == graph.steps["end"].to_list()


@pytest.mark.slow
@settings(max_examples=50)
@given(tables())
def test_a_trace_that_no_machine_has_recorded(trace: Trace) -> None:
    check(trace)
