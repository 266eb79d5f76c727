"""What each run is called in a study: as little as tells it from the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import PurePath
from typing import Final

from traceana.study.recorded import Recorded

_NO_VARIANT: Final = frozenset({"network", "batch", "device", "processes", "steps", "warm_up"})
"""Options with columns of their own, and those that change no figure."""

Cell = Callable[[Recorded], Hashable]


def labels(runs: Sequence[Recorded], cell: Cell) -> list[str]:
    """Return a name for each of ``runs``: those of one name are points of one series.

    It is the framework; its version, where several of one framework are there; ``CPU`` or ``GPU``
    where both are; and the options that runs of one framework differ in. Runs that still are of one
    name and one ``cell`` of the table (its network, batch …) are told apart by their folders.
    """
    places = {run.place for run in runs}
    versions: dict[str | None, set[str | None]] = defaultdict(set)
    given: dict[tuple[str | None, str], set[object]] = defaultdict(set)
    for run in runs:
        versions[run.framework].add(run.version)
        for name in {name for one in runs for name in one.options} - _NO_VARIANT:
            given[run.framework, name].add(run.options.get(name))
    names = []
    for run in runs:
        parts = [run.framework or PurePath(run.folder).name]
        if len(versions[run.framework]) > 1 and run.version:
            parts[0] += f" {run.version}"
        parts += [run.place] if len(places) > 1 else []
        differing = sorted(name for name in run.options if len(given[run.framework, name]) > 1)
        parts += [f"{name.replace('_', '-')} {_value(run.options[name])}" for name in differing]
        names.append(", ".join(parts))
    for part in (_parent, _own):
        names = _told_apart(runs, names, cell, part)
    return names


def _told_apart(
    runs: Sequence[Recorded],
    names: Sequence[str],
    cell: Cell,
    part: Callable[[Recorded], str],
) -> list[str]:
    """Return ``names``, with ``part`` behind those that stand for two runs of one cell."""
    cells = Counter((name, cell(run)) for run, name in zip(runs, names, strict=True))
    twice = {name for (name, _), count in cells.items() if count > 1}
    return [
        f"{name} ({part(run)})" if name in twice and part(run) else name
        for run, name in zip(runs, names, strict=True)
    ]


def _parent(run: Recorded) -> str:
    return PurePath(run.folder).parent.name


def _own(run: Recorded) -> str:
    return PurePath(run.folder).name


def _value(value: object) -> str:
    if value is None:
        return "default"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
