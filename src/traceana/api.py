"""The API: opens traces, and attaches the commands to :class:`traceana.trace.Trace` as methods.

Nothing below imports this module: a Trace is data, and analyses and pages are functions of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from traceana import trace
from traceana.commands import COMMANDS, declared_columns, function_of
from traceana.errors import in_python
from traceana.opening import open_trace
from traceana.table import documented
from traceana.timeline.steps import select as select_activities
from traceana.trace.work import labelled_work

__all__ = ["Trace", "open"]

P = ParamSpec("P")


def _public_of(function: Callable[P, trace.Trace]) -> Callable[P, Trace]:
    """Return ``function`` for users: its Trace has the methods, its errors name keywords."""
    return cast("Callable[P, Trace]", in_python(function))


select = _public_of(select_activities)

if TYPE_CHECKING:
    import polars as pl

    from traceana.advise.saved import save
    from traceana.report.exports import export
    from traceana.report.pages.advise import advise
    from traceana.report.pages.idle import critical, idle
    from traceana.report.pages.info import info
    from traceana.report.pages.kernels import kernels
    from traceana.report.pages.layers import flops, layers
    from traceana.report.pages.lines import lines
    from traceana.report.pages.memory import memory
    from traceana.report.pages.report import report
    from traceana.report.pages.samples import samples
    from traceana.report.pages.transfers import transfers
    from traceana.report.pages.whatif import whatif

    class Trace(trace.Trace, frozen=True, eq=False, weakref=True):
        """A Trace with the commands as methods, as type checkers see it."""

        report, advise, info, kernels, layers = report, advise, info, kernels, layers
        flops, transfers, idle, critical, whatif = flops, transfers, idle, critical, whatif
        memory, samples, save, export = memory, samples, save, export
        select, lines = select, lines

else:
    # The same class: every Trace has the methods, whatever opened it, and one set of kept results.
    Trace = trace.Trace


@cache
def _public(name: str) -> Callable[..., Any]:
    function = in_python(function_of(name))
    if columns := documented(declared_columns(COMMANDS[name].columns)):
        function.__doc__ = f"{function.__doc__}\n\nColumns:\n\n{columns}"
    return function


class _Method:
    """A command as a method, whose function is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Trace | None, _: object = None) -> Any:
        function = _public(self._name)
        return function if instance is None else MethodType(function, instance)


def _work(trace: trace.Trace) -> pl.DataFrame:
    """The work, a row each, with its labels as columns: name, class, layer, operator, step …

    Starts are of the program without its profiler, as in all results; of a Trace opened
    ``as_recorded`` as recorded. :data:`traceana.trace.work.COLUMNS` lists the columns.
    """
    from traceana.whatif.program import without_profiler

    return labelled_work(without_profiler(trace).tables)


methods = {name: _Method(name) for name, command in COMMANDS.items() if command.of == "trace"}
for name, method in {**methods, "select": select}.items():
    setattr(Trace, name, method)
if not TYPE_CHECKING:
    Trace.work = property(_work)


def __getattr__(name: str) -> Any:
    """Return a command that is not of one trace: ``diff``, ``compare`` …"""
    if name in COMMANDS and COMMANDS[name].of == "traceana":
        return _public(name)
    raise AttributeError(f"module 'traceana.api' has no attribute {name!r}")


open = _public_of(open_trace)  # noqa: A001
# help() shows the public name.
open.__module__, open.__name__, open.__qualname__ = "traceana", "open", "open"
