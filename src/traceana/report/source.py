"""The facts of the input that the ``meta`` of every JSON document begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceana.trace import Trace


def source_of(trace: Trace) -> dict[str, Any]:
    """Return file, format, what was selected, how much was read, and the ledger's problems."""
    meta = trace.meta
    problems = trace.ledger.filter(trace.ledger["severity"] == "problem")
    return {
        "file": meta.source,
        "format": meta.format,
        "format_version": meta.format_version,
        "framework": meta.framework,
        "on_cpu": trace.on_cpu,
        "selected_steps": meta.properties.get("selected_steps"),
        "selected_devices": meta.properties.get("selected_devices"),
        "selected_ranks": meta.properties.get("selected_ranks"),
        "counters": meta.properties.get("counters_file"),
        "truncated": meta.truncated,
        "bytes_read": meta.bytes_read,
        "bytes_total": meta.bytes_total,
        "problems": problems.select("reason", "count", "time_ns").to_dicts(),
    }
