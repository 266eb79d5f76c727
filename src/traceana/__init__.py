"""traceana: where the GPU time of a neural network went, and what to change.

>>> import traceana
>>> trace = traceana.open("trace.json.gz")          # doctest: +SKIP
>>> trace.activities                                # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceana.comparison.compare import compare
    from traceana.comparison.diff import diff
    from traceana.model import describe
    from traceana.opening import open_trace as open  # noqa: A004
    from traceana.record.recorder import recorder
    from traceana.trace import Trace

__version__ = "0.1.0"
__all__ = ["Trace", "__version__", "compare", "describe", "diff", "open", "recorder"]


def __getattr__(name: str) -> Any:
    # polars takes ten times as long to import as Python to start: `traceana --help` must not.
    if name == "open":
        from traceana.opening import open_trace

        return open_trace
    if name == "Trace":
        from traceana.trace import Trace

        return Trace
    if name == "diff":
        from traceana.comparison.diff import diff

        return diff
    if name == "compare":
        from traceana.comparison.compare import compare

        return compare
    if name == "describe":
        from traceana.model import describe

        return describe
    if name == "recorder":
        from traceana.record.recorder import recorder

        return recorder
    raise AttributeError(f"module 'traceana' has no attribute {name!r}")
