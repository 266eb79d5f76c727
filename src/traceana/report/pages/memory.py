"""``memory``: peak per device, its contents, growth per step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.summaries import needs_timeline
from traceana.report.cells import value_text
from traceana.report.columns import Kind
from traceana.report.page import Chart, Page, Table
from traceana.report.pages.analysis_pictures import memory_over_time
from traceana.report.pages.single_table import table_page
from traceana.report.result import CommandResult
from traceana.result import Arranged

if TYPE_CHECKING:
    from traceana.commands import MemoryBy
    from traceana.trace import Trace

_DEVICE: Final = ("rank", "device")
_NOT_RECORDED: Final = "(not recorded)"
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


def memory(trace: Trace, *, by: MemoryBy = "device") -> CommandResult:
    """Return allocated memory by device, layer, operator, step, time slice or convolution."""
    needs_timeline(trace, "memory")
    from traceana.analyze import memory as analysis

    found = analysis.memory(trace, by)

    def pictures() -> list[Chart]:
        slices = found if by == "time" else analysis.memory(trace, "time")
        return memory_over_time(slices.frame)

    return CommandResult.of(
        found,
        partial(_page, trace, by),
        screenful=40 if by == "time" else 30,
        pictures=pictures,
    )


def _page(trace: Trace, by: MemoryBy, shown: Arranged) -> Page:
    page = table_page(
        "memory",
        shown,
        trace,
        columns=COLUMNS[by] if shown.frame.height else (),
        dropped=DROPPED.get(by, ()),
        bars="allocated_bytes" if by == "time" else None,
        titles={"share": "of peak memory", "direction": "pass", "count": "allocations"},
    )
    blocks = (_with_devices(one) if isinstance(one, Table) else one for one in page.blocks)
    return replace(page, blocks=tuple(blocks))


def _with_devices(table: Table) -> Table:
    """Return ``table`` with a name for the device of allocators whose device is not recorded."""
    if "device" not in table.frame.columns or not table.frame["device"].null_count():
        return table
    texts = [
        _NOT_RECORDED if one is None else value_text(Kind.DEVICE, one)
        for one in table.frame["device"]
    ]
    columns = tuple(
        replace(one, kind=Kind.TEXT) if one.name == "device" else one for one in table.columns
    )
    frame = table.frame.with_columns(pl.Series("device", texts, pl.String))
    return replace(table, frame=frame, columns=columns)
