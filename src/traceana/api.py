"""The API: opens traces, and attaches the commands to :class:`traceana.trace.Trace` as methods.

Nothing below imports this module: a Trace is data, and analyses and pages are functions of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

from traceana.commands import COMMANDS, function_of
from traceana.errors import in_python
from traceana.opening import open_trace
from traceana.timeline.steps import select
from traceana.trace import Trace

__all__ = ["Trace", "open"]


@cache
def _public(name: str) -> Callable[..., Any]:
    return in_python(function_of(name))


class _Method:
    """A command as a method, whose function is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, of: Trace | None, _: object = None) -> Any:
        function = _public(self._name)
        return function if of is None else MethodType(function, of)


for command in COMMANDS.values():
    if command.of == "trace":
        setattr(Trace, command.name, _Method(command.name))
Trace.select = in_python(select)


def __getattr__(name: str) -> Any:
    """Return a command that is not of one trace: ``diff``, ``compare`` …"""
    if name in COMMANDS and COMMANDS[name].of == "traceana":
        return _public(name)
    raise AttributeError(f"module 'traceana.api' has no attribute {name!r}")


open = in_python(open_trace)  # noqa: A001
# help() shows the public name.
open.__module__, open.__name__, open.__qualname__ = "traceana", "open", "open"
