"""``memory``: peak per device, its contents, growth per step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from traceana.analyze.summaries import needs_timeline
from traceana.report.page import Chart, Page
from traceana.report.pages.analysis_pictures import above, memory_over_time
from traceana.report.pages.single_table import table_page
from traceana.result import Arranged, Result

if TYPE_CHECKING:
    from traceana.choices import MemoryBy
    from traceana.trace import Trace

_DEVICE: Final = ("rank", "device")
_ALLOCATED: Final = ("count", "bytes", "share", "largest_bytes")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "device": (
        *(*_DEVICE, "allocations", "peak_bytes", "at_ns", "step", "layer", "operator"),
        *("reserved_bytes", "largest_bytes", "end_bytes", "growth_bytes"),
    ),
    "layer": (*_DEVICE, "layer", *_ALLOCATED),
    "operator": (*_DEVICE, "operator", *_ALLOCATED),
    "step": (*_DEVICE, "step", "allocations", "peak_bytes", "end_bytes", "growth_bytes"),
    "time": (*_DEVICE, "start_ns", "allocated_bytes", "reserved_bytes"),
    "convolution": (
        *(*_DEVICE, "layer", "operator", "direction", "algorithm", "calls", "workspace_bytes"),
    ),
}
DROPPED: Final[dict[str, tuple[str, ...]]] = {
    "device": ("allocations", "end_bytes", "largest_bytes", "operator", "reserved_bytes"),
    "convolution": ("operator", "calls", "direction"),
}


def memory(trace: Trace, *, by: MemoryBy = "device") -> Result:
    """Return allocated memory by device, layer, operator, step, time slice or convolution."""
    needs_timeline(trace, "memory")
    from traceana.analyze import memory as analysis

    found = analysis.memory(trace, by)

    def pictures() -> list[Chart]:
        slices = found if by == "time" else analysis.memory(trace, "time")
        return memory_over_time(slices.frame)

    return found.with_page(
        partial(_page, trace, by),
        screenful=None if by == "time" else 30,
        pictures=above(pictures),
    )


def _page(trace: Trace, by: MemoryBy, shown: Arranged) -> Page:
    return table_page(
        "memory",
        shown,
        trace,
        columns=COLUMNS[by] if shown.frame.height else (),
        dropped=DROPPED.get(by, ()),
        bars="allocated_bytes" if by == "time" else None,
        titles={"share": "of peak memory", "direction": "pass", "count": "allocations"},
    )
