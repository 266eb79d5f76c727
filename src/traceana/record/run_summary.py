"""The output of ``traceana record``: a run's folder, step times and overhead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from traceana.plain_text import plain
from traceana.report.numbers import duration, level, size
from traceana.runs.run_files import LAYERS_FILE, SOURCE_FOLDER, Profiler, Status, StepTimes, Timing
from traceana.runs.run_folders import RecordedRun
from traceana.settings import OVERHEAD_LEVEL

_WIDEST: Final = 1.0
"""An interval of the overhead that is wider says nothing about it."""


def run_summary(recorded: RecordedRun) -> str:
    """Return the summary of one run: its folder, its steps, and the next command."""
    run, timing = recorded.run, recorded.timing()
    command = shlex.join(run.argv)
    if run.workload is not None:
        workload = run.workload
        command = f"{workload.framework} {workload.network}, batch {workload.batch}"
    profiler = "no profiler" if run.profiler is Profiler.NONE else run.profiler.value
    lines = [f"{command} ({profiler}) in {recorded.folder}"]
    if run.status is not Status.COMPLETE:
        lines.append(f"  {run.status}: {run.reason}")
    if run.traces:
        bytes_ = sum((recorded.folder / name).stat().st_size for name in run.traces)
        more = f" and {len(run.traces) - 1} more" if len(run.traces) > 1 else ""
        lines.append(f"  trace     {run.traces[0]}{more}, {size(bytes_)}")
    described = LAYERS_FILE if recorded.layers else "not described"
    if run.profiler is Profiler.JAX and not recorded.layers:
        described = "from the scopes of the trace: JAX has no modules to describe"
    lines.append(f"  layers    {described}")
    files = sum(path.is_file() for path in (recorded.folder / SOURCE_FOLDER).rglob("*"))
    # One of them is the listing.
    if files > 1:
        kept = "1 file" if files == 2 else f"{files - 1} files"
        lines.append(f"  source    {kept} kept (--no-source leaves them out)")
    if timing is not None:
        unprofiled, profiled = timing.without_profiler, timing.with_profiler
        if unprofiled is not None and unprofiled.steps_ns:
            line = f"  step      {_step(unprofiled)} {_how(unprofiled)} without a profiler"
            line += _before_and_after(unprofiled)
            if batch := timing.images_per_step:
                line += f", {duration(round((unprofiled.step_ns or 0) / batch))} per example"
            lines.append(line)
        if profiled is not None and profiled.steps_ns:
            lines.append(f"  step      {_step(profiled)} {_how(profiled)} with {run.profiler}")
        if unprofiled is not None and profiled is not None:
            overhead = "inconclusive: at least 3 steps per run needed"
            if timing.overhead_interval is not None:
                low, high = timing.overhead_interval
                bounds = f"{level(OVERHEAD_LEVEL)} interval {_percent(low)} to {_percent(high)} %"
                overhead = f"inconclusive ({bounds})"
                if high - low > _WIDEST:
                    overhead = "inconclusive: the steps vary too much"
                if timing.overhead is not None:
                    overhead = f"{_percent(timing.overhead)} % ({bounds})"
            lines.append(f"  overhead  {overhead}")
    lines += [f"  note      {note}" for note in run.notes]
    if run.traces:
        lines.append(f"next: traceana report {shlex.quote(str(recorded.folder))}")
    elif run.status is not Status.COMPLETE:
        lines.append("next: fix the cause, and record again with --force")
    return "".join(f"{plain(line)}\n" for line in lines)


def sweep_summary(folder: Path, runs: Sequence[RecordedRun], total: int) -> str:
    """Return a table of the runs of a sweep."""
    rows = [("", "step", "with profiler", "overhead", "")]
    for recorded in runs:
        run, timing = recorded.run, recorded.timing() or Timing()
        name = ", ".join(f"{axis} {value}" for axis, value in run.point.items())
        failure = "" if run.status is Status.COMPLETE else f"{run.status}: {run.reason}"
        unprofiled, profiled = timing.without_profiler, timing.with_profiler
        overhead = ""
        if unprofiled is not None and profiled is not None:
            overhead = "inconclusive"
            if timing.overhead is not None and timing.overhead_interval is not None:
                low, high = timing.overhead_interval
                overhead = f"{_percent(low)} to {_percent(high)} %"
        rows.append((name, _step(unprofiled), _step(profiled), overhead, failure))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [f"{len(runs)} of {total} runs in {folder}"]
    for name, *figures, failure in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        lines.append(f"  {'  '.join([f'{name:<{widths[0]}}', *cells, failure])}".rstrip())
    if len(runs) < total:
        lines.append("next: the same command with --resume")
    else:
        with_trace = next((recorded for recorded in runs if recorded.run.traces), None)
        if with_trace is not None:
            lines.append(f"next: traceana report {shlex.quote(str(with_trace.folder))}")
    return "".join(f"{plain(line)}\n" for line in lines)


def _how(times: StepTimes) -> str:
    return f"{'median' if times.synchronized else 'mean'} of {len(times.steps_ns)}"


def _step(times: StepTimes | None) -> str:
    return "" if times is None or times.step_ns is None else duration(round(times.step_ns))


def _before_and_after(times: StepTimes) -> str:
    """Return the times of the steps before the profiled ones and after them, which show a drift."""
    before = times.steps_before
    if not before or len(times.steps_ns) == before:
        return ""
    parts = (times.steps_ns[:before], times.steps_ns[before:])
    shown = [_step(replace(times, steps_ns=part)) for part in parts]
    return f" ({shown[0]} before, {shown[1]} after)"


def _percent(share: float) -> str:
    return f"{100 * share:+.0f}"
