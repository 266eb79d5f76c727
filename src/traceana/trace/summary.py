"""How a Trace shows itself in a prompt and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from traceana.trace.schema import TABLES

if TYPE_CHECKING:
    from traceana.trace.trace import Trace


def one_line(trace: Trace) -> str:
    """Return e.g. ``Trace('run.json.gz', kineto, 79 kernels, 10.692 ms, 1 device)``."""
    kernels = trace.activities.filter(trace.activities["kind"] == "kernel")
    time_ms = int(kernels["duration"].sum()) / 1e6
    devices = trace.activities["device"].n_unique()
    return (
        f"Trace({trace.meta.source!r}, {trace.meta.format}, {kernels.height} kernels, "
        f"{time_ms:.3f} ms, {devices} device{'' if devices == 1 else 's'})"
    )


def html(trace: Trace) -> str:
    """Return an HTML fragment: the line of :func:`one_line` and the tables with their sizes."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{trace.table(name).height:,}</td>"
        f"<td style='text-align:left'>{escape(', '.join(columns))}</td></tr>"
        for name, columns in TABLES.items()
    )
    return (
        f"<p><code>{escape(one_line(trace))}</code></p>"
        f"<table><tr><th>table</th><th>rows</th><th>columns</th></tr>{rows}</table>"
    )
