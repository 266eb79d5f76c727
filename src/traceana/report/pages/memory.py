"""``memory``: peak per device, its contents, growth per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.analyze.summaries import needs_timeline
from traceana.report.pages.analysis_pictures import memory_over_time
from traceana.report.pages.single_table import table_result
from traceana.result import Arranged
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.report.page import Chart
    from traceana.report.result import CommandResult
    from traceana.trace import Trace
    from traceana.vocabulary.option_words import MemoryBy

_NOT_RECORDED: Final = "(not recorded)"


def memory(trace: Trace, *, by: MemoryBy = "device") -> CommandResult:
    """Return allocated memory by device, layer, operator, line, stack, step, time slice,
    convolution or memory pool."""
    if not trace.is_snapshot:
        needs_timeline(trace, "memory")
    from traceana.analyze import memory as analysis

    result = analysis.memory(trace, by)

    def pictures() -> list[Chart]:
        slices = result if by == "time" else analysis.memory(trace, "time")
        return memory_over_time(slices.frame)

    return table_result(
        *("memory", result, trace),
        displayed=_with_devices,
        screenful=40 if by == "time" else 30,
        pictures=pictures,
    )


def _with_devices(shown: Arranged) -> Arranged:
    """Return the rows with a name where the device of an allocator is not recorded."""
    frame = shown.frame
    if "device" not in frame.columns or not frame["device"].null_count():
        return shown
    device = pl.col("device").cast(pl.String).replace(str(CPU_DEVICE), "cpu")
    return replace(shown, frame=frame.with_columns(device.fill_null(_NOT_RECORDED)))
