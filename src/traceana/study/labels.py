"""What each run is called in a study: as little as tells it from the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import PurePath
from typing import Final

from traceana.study.recorded import Recorded

TIMED: Final = frozenset({"network", "batch", "processes"})
"""Facts that have columns of their own in a table of whole steps."""
_SAID_OTHERWISE: Final = frozenset({"device", "steps", "warm_up"})
"""``place`` says it, or it changes no figure."""

Cell = Callable[[Recorded], Hashable]


def labels(runs: Sequence[Recorded], cell: Cell, columns: frozenset[str] = TIMED) -> list[str]:
    """Return a name for each of ``runs``: those of one name are points of one series.

    It is the framework; its version, where several of one framework are there; ``CPU`` or ``GPU``
    where both are; and the options that runs of one framework differ in. Runs that still are of one
    name and one ``cell`` of the table (its network, batch …) are told apart by their folders.
    ``columns`` are facts that the table tells itself.
    """
    facts = [_facts(run, columns) for run in runs]
    places = {run.place for run in runs}
    versions: dict[str | None, set[str | None]] = defaultdict(set)
    given: dict[tuple[str | None, str], set[object]] = defaultdict(set)
    known = {name for own in facts for name in own}
    for run, own in zip(runs, facts, strict=True):
        versions[run.framework].add(run.version)
        for name in known:
            given[run.framework, name].add(own.get(name))
    names = []
    for run, own in zip(runs, facts, strict=True):
        parts = [run.framework or PurePath(run.folder).name]
        if len(versions[run.framework]) > 1 and run.version:
            parts[0] += f" {run.version}"
        parts += [run.place] if len(places) > 1 else []
        differing = sorted(name for name in own if len(given[run.framework, name]) > 1)
        parts += [f"{name.replace('_', '-')} {_value(own[name])}" for name in differing]
        names.append(", ".join(parts))
    return _told_apart(runs, names, cell)


def _facts(run: Recorded, columns: frozenset[str]) -> dict[str, object]:
    """Return the options of ``run`` with its batch and devices, without ``columns``."""
    facts = {**run.options, "batch": run.batch, "processes": run.devices}
    return {name: facts[name] for name in facts.keys() - columns - _SAID_OTHERWISE}


def _told_apart(runs: Sequence[Recorded], names: Sequence[str], cell: Cell) -> list[str]:
    """Return ``names``; those that stand for two runs of one cell with as much of their folder as
    tells these apart."""
    cells = [(name, cell(run)) for run, name in zip(runs, names, strict=True)]
    counts = Counter(cells)
    twice = {name for (name, _), count in counts.items() if count > 1}
    found = list(names)
    for part in (_parent, _own, _both):
        found = [
            f"{name} ({part(run)})" if name in twice else name
            for run, name in zip(runs, names, strict=True)
        ]
        told = Counter((name, at) for name, (_, at) in zip(found, cells, strict=True))
        if max(told.values(), default=0) == 1:
            break
    return found


def _parent(run: Recorded) -> str:
    return PurePath(run.folder).parent.name


def _own(run: Recorded) -> str:
    return PurePath(run.folder).name


def _both(run: Recorded) -> str:
    return f"{_parent(run)}/{_own(run)}"


def _value(value: object) -> str:
    if value is None:
        return "default"
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
