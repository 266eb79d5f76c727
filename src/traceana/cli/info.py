"""``traceana info``."""

from __future__ import annotations

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import Reading, Tabling, TraceFiles, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode


def info(files: TraceFiles, reading: Reading, tabling: Tabling, writing: Writing) -> ExitCode:
    """What is in the file: format, devices, counts, integrity ledger.

    The JSON is one object of facts, without rows.
    """
    from traceana.analyze.facts import as_table, facts

    output = Output(tabling, writing, reads=files)
    trace = open_trace(files, reading)
    known = facts(trace)
    output.show("info", as_table(known), trace, facts=known)
    return exit_code(trace, reading, needs_work=False)
