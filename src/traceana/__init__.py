"""traceana analyzes GPU profiler traces of neural networks.

>>> import traceana
>>> trace = traceana.open("trace.json.gz")          # doctest: +SKIP
>>> trace.report()                                  # doctest: +SKIP
>>> trace.kernels().frame                           # doctest: +SKIP
>>> traceana.diff("before.json.gz", "after.json.gz")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from traceana.comparison.compare import compare
    from traceana.comparison.diff import diff
    from traceana.model.live_model import describe
    from traceana.opening import open_trace as open  # noqa: A004
    from traceana.record.recorder import recorder
    from traceana.report.pages.ranks import ranks
    from traceana.result import Result
    from traceana.trace import Trace

__version__ = "0.1.0"
__all__ = [
    "Result",
    "Trace",
    "__version__",
    "compare",
    "describe",
    "diff",
    "open",
    "ranks",
    "recorder",
]

# polars takes ten times as long to import as Python to start: `traceana --help` must not.
_HOMES: Final = {
    "open": ("traceana.opening", "open_trace"),
    "Trace": ("traceana.trace", "Trace"),
    "Result": ("traceana.result", "Result"),
    "diff": ("traceana.comparison.diff", "diff"),
    "compare": ("traceana.comparison.compare", "compare"),
    "describe": ("traceana.model.live_model", "describe"),
    "ranks": ("traceana.report.pages.ranks", "ranks"),
    "recorder": ("traceana.record.recorder", "recorder"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'traceana' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__name__"})
