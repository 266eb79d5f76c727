"""``traceana memory``."""

from __future__ import annotations

from typing import Annotated

from traceana.choices import MemoryBy
from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Drawing, Reading, Tabling, TraceFiles, by_option
from traceana.cli.output import Output
from traceana.cli.streams import message
from traceana.errors import ExitCode

By = Annotated[
    MemoryBy,
    by_option(
        MemoryBy,
        "One row per device, per operator or layer at the peak, per step, per time slice, or per "
        "convolution workspace.",
    ),
]


def memory(
    files: TraceFiles, reading: Reading, tabling: Tabling, writing: Drawing, by: By = "device"
) -> ExitCode:
    """Allocated memory: peak per device, contents, growth per step.

    Needs allocator events: profile_memory=True in torch.profiler.
    """
    from traceana.report.pages.memory import memory as page

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    output.write(page(trace, by=by))
    code = exit_code(trace, reading, needs_work=False)
    if code is ExitCode.OK and trace.memory.is_empty():
        message(f"nothing to show for {trace.meta.source}")
        return ExitCode.EMPTY_SELECTION
    return code
