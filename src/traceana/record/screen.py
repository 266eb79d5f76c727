"""What ``traceana record`` prints at its end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from traceana.report.human import duration, size
from traceana.report.text import plain
from traceana.runs.model import LAYERS_FILE, Profiler, Run, Status, StepTimes, Timing
from traceana.runs.read import RecordedRun


def of_run(recorded: RecordedRun) -> str:
    """Return the lines about one run: where it is, its steps, and what to do next."""
    run, timing = recorded.run, recorded.timing()
    lines = [f"{_head(run)} in {recorded.folder}"]
    if run.status is not Status.COMPLETE:
        lines.append(f"  {run.status}: {run.reason}")
    if run.traces:
        bytes_ = sum((recorded.folder / name).stat().st_size for name in run.traces)
        more = f" and {len(run.traces) - 1} more" if len(run.traces) > 1 else ""
        lines.append(f"  trace     {run.traces[0]}{more}, {size(bytes_)}")
    lines.append(f"  layers    {LAYERS_FILE if recorded.layers else 'none'}")
    if timing is not None:
        lines += [f"  step      {text}" for text in _steps(run, timing)]
    lines += [f"  note      {note}" for note in run.notes]
    if run.traces:
        lines.append(f"next: traceana report {shlex.quote(str(recorded.folder))}")
    elif run.status is not Status.COMPLETE:
        lines.append("next: mend it, and record it again with --force")
    return "".join(f"{plain(line)}\n" for line in lines)


def of_sweep(folder: Path, made: Sequence[RecordedRun], total: int) -> str:
    """Return a table of the runs of a sweep."""
    rows = [("", "step", "with profiler", "")]
    for recorded in made:
        run, timing = recorded.run, recorded.timing() or Timing()
        name = ", ".join(f"{axis} {value}" for axis, value in run.point.items())
        died = "" if run.status is Status.COMPLETE else f"{run.status}: {run.reason}"
        without, beside = _step(timing.without_profiler), _step(timing.with_profiler)
        rows.append((name, without, f"{beside}{_share(timing)}", died))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"{len(made)} of {total} runs in {folder}"]
    for name, without, beside, died in rows:
        cells = f"{name:<{widths[0]}}  {without:>{widths[1]}}  {beside:>{widths[2]}}  {died}"
        lines.append(f"  {cells}".rstrip())
    if len(made) < total:
        lines.append("next: the same command with --resume")
    else:
        whole = next((one for one in made if one.run.traces), None)
        if whole is not None:
            lines.append(f"next: traceana report {shlex.quote(str(whole.folder))}")
    return "".join(f"{plain(line)}\n" for line in lines)


def _head(run: Run) -> str:
    what = shlex.join(run.argv)
    if run.workload is not None:
        one = run.workload
        what = f"{one.framework} {one.network}, batch {one.batch}"
    by = "no profiler" if run.profiler is Profiler.NONE else run.profiler.value
    return f"{what} ({by})"


def _steps(run: Run, timing: Timing) -> list[str]:
    plain_, beside = timing.without_profiler, timing.with_profiler
    found = []
    if plain_ is not None and plain_.steps_ns:
        images = timing.images_per_step
        each = f", {duration(round((plain_.step_ns or 0) / images))} an image" if images else ""
        found.append(f"{_step(plain_)} {_how(plain_)} without a profiler{each}")
    if beside is not None and beside.steps_ns:
        found.append(f"{_step(beside)} {_how(beside)} with {run.profiler}{_share(timing)}")
    return found


def _how(times: StepTimes) -> str:
    return f"{'median' if times.synchronized else 'mean'} of {len(times.steps_ns)}"


def _step(times: StepTimes | None) -> str:
    return "" if times is None or times.step_ns is None else duration(round(times.step_ns))


def _share(timing: Timing) -> str:
    return "" if timing.overhead is None else f" ({100 * timing.overhead:+.0f} %)"
