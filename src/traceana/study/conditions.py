"""On what runs were measured, and how: the lines under a study's title."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traceana.study.recorded import WITH, Recorded

_UNNAMED = "a machine that is not named"
"""Beside others that are: their names are not those of all runs."""


def conditions(runs: Sequence[Recorded], *, timed: bool = True) -> tuple[str, ...]:
    """Return machines and software of ``runs``, and where ``timed`` how; no line is empty.

    Figures that are not of the steps' own times are of the traces.
    """
    named = any(run.on for run in runs)
    machines = _listed(run.on or (_UNNAMED if named else None) for run in runs)
    libraries = _listed(
        f"{name} {version}" for run in runs for name, version in run.libraries.items()
    )
    software = _listed(
        run.framework + (f" {run.version}" if run.version else "") for run in runs if run.framework
    )
    networks = _listed(run.network for run in runs) if timed else _with_batches(runs)
    first = " · ".join(part for part in (networks, machines, software, libraries) if part)
    how = _timing(runs) if timed else "times as the profiler has them" if runs else ""
    return tuple(line for line in (first, how) if line)


def _timing(runs: Sequence[Recorded]) -> str:
    timed = [run for run in runs if run.steps_ns]
    if not timed:
        return ""
    least, most = (pick(len(run.steps_ns) for run in timed) for pick in (min, max))
    steps = f"{least}" if least == most else f"{least} to {most}"
    kinds = {"median" if run.exact else "mean" for run in timed}
    beside = {run.timed == WITH for run in timed}
    how = "with the profiler running" if beside == {True} else "without a profiler"
    if len(beside) > 1:
        how += ", some with it running (column timed)"
    noun = "step" if most == 1 else "steps"
    return f"{' or '.join(sorted(kinds))} of {steps} {noun} {how}, warm-up left out"


def _with_batches(runs: Sequence[Recorded]) -> str:
    batches: dict[str, list[str]] = {}
    for run in runs:
        if run.network is not None:
            own = batches.setdefault(run.network, [])
            own += [str(run.batch)] if run.batch and str(run.batch) not in own else []
    return ", ".join(
        f"{network} at batch {', '.join(own)}" if own else network
        for network, own in batches.items()
    )


def _listed(texts: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))
