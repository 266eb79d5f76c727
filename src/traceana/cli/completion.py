"""Values that the shell completes: rules, figures, classes, and layers of the manifest.

A trace is not opened for them; its layers are those of the manifest beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer


def rules(incomplete: str) -> list[str]:
    """Return the ids of rules that complete ``incomplete``, the last of a list with commas."""
    from traceana.advise import RULES

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + one.id for one in RULES if one.id.startswith(last)]


def figures(incomplete: str) -> list[str]:
    """Return the figures that complete ``incomplete``, each with its equals sign."""
    from traceana.advise.gates import METRICS

    return [f"{one.name}=" for one in METRICS if one.name.startswith(incomplete)]


def scenarios(context: typer.Context, incomplete: str) -> list[str]:
    """Return the classes and layers that complete ``incomplete``, with ``no`` before it or not."""
    without = "no " if incomplete.startswith("no ") else ""
    begun = incomplete.removeprefix(without)
    return [without + one for one in _selectable(context) if one.startswith(begun)]


def _selectable(context: typer.Context) -> Iterator[str]:
    from traceana.errors import TraceanaError
    from traceana.trace.taxonomy import CATEGORIES

    yield from CATEGORIES
    for file in context.args:  # files: parameters are not filled in yet
        from traceana.model import find, read

        try:
            beside = find(Path(file))
            layers = [] if beside is None else [one.path for one in read(beside).layers]
        except TraceanaError:
            continue
        # Controls in a name would reach the terminal.
        yield from (f"layer:{layer}" for layer in layers if layer.isprintable())
