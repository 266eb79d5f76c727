"""Conservation laws in every available trace, each opened once."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.critical.checks import check
from tests.support.opened import opened
from traceana.analyze.devices import devices
from traceana.timeline.critical import segments
from traceana.timeline.idle import idle, idle_time
from traceana.timeline.idle_gaps import CAUSES
from traceana.trace import Trace
from traceana.trace.schema import DEVICE_WORK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "traces"
RECORDED = [
    # What profilers printed, beside them, is no trace yet.
    *sorted(
        path for kind in ("kineto", "nsys", "nvprof", "xplane") for path in SHARED.glob(f"{kind}/*")
    ),
    *sorted((ROOT / "fixtures").glob("*.gz")),
    *sorted((ROOT / "fixtures").glob("*/*.pb")),
]


@pytest.fixture(scope="module", params=RECORDED, ids=lambda path: path.name)
def trace(request: pytest.FixtureRequest) -> Trace:
    return opened(request.param)


def test_busy_and_idle_add_up(trace: Trace) -> None:
    found = idle_time(trace)
    places = devices(trace, found=found).frame
    assert places.height
    assert (places["busy_ns"] + places["idle_ns"] == places["span_ns"]).all()
    assert (places["kernel_ns"] + places["memops_only_ns"] == places["busy_ns"]).all()
    by_device = {
        (rank, device): idle_ns
        for rank, device, idle_ns in places.select("rank", "device", "idle_ns").iter_rows()
    }
    for by in ("cause", "operator", "range", "gap"):
        frame = idle(trace, by, found=found).frame
        assert set(frame["cause"]) <= set(CAUSES)
        sums = frame.group_by("rank", "device").agg(pl.col("time_ns").sum())
        for rank, device, time_ns in sums.iter_rows():
            assert time_ns == by_device[rank, device]
    gaps = found.gaps
    assert (gaps["explained"] <= gaps["end"] - gaps["start"]).all()
    assert (gaps["explained"] >= 0).all()


def test_the_critical_path_adds_up(trace: Trace) -> None:
    if trace.tables.steps.height:
        check(trace)
        return
    # From the first activity of a rank's devices to its last; operators where it has none.
    worked = trace.tables.activities.filter(pl.col("kind").is_in(DEVICE_WORK))
    worked = worked if worked.height else trace.tables.ops
    end = (pl.col("start") + pl.col("duration")).max()
    spans = worked.group_by("rank").agg(span=end - pl.col("start").min())
    assert segments(trace)["time_ns"].sum() == spans["span"].sum()
