"""traceana analyzes GPU profiler traces of neural networks.

>>> import traceana
>>> trace = traceana.open("trace.json.gz")          # doctest: +SKIP
>>> trace.report()                                  # doctest: +SKIP
>>> trace.kernels().frame                           # doctest: +SKIP
>>> traceana.diff("before.json.gz", "after.json.gz")  # doctest: +SKIP
"""

from __future__ import annotations

# Nothing is imported here: an interrupt before the command line has its handler is Python's own.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from traceana.api import Trace
    from traceana.api import open as open  # noqa: A004
    from traceana.model.live_model import describe
    from traceana.record.recorder import recorder
    from traceana.report.pages.compare import compare
    from traceana.report.pages.diff import diff
    from traceana.report.pages.history import history
    from traceana.report.pages.kernels import classify
    from traceana.report.pages.ranks import ranks
    from traceana.report.result import CommandResult
    from traceana.version import __version__

__all__ = [
    "CommandResult",
    "Trace",
    "__version__",
    "classify",
    "compare",
    "describe",
    "diff",
    "history",
    "open",
    "ranks",
    "recorder",
]

# polars takes ten times as long to import as Python to start: `traceana --help` must not.
_HOMES: Final = {
    "__version__": "traceana.version",
    "CommandResult": "traceana.report.result",
    "describe": "traceana.model.live_model",
    "recorder": "traceana.record.recorder",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        from traceana.errors import suggested

        like = suggested(name, __all__)
        known = ", ".join(one for one in __all__ if not one.startswith("_"))
        raise AttributeError(f"module 'traceana' has no attribute {name!r}{like}: it has {known}")
    return getattr(import_module(_HOMES.get(name, "traceana.api")), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__doc__", "__name__"})
