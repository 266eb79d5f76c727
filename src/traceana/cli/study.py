"""``traceana study``, and its input: recorded runs, traces, files of timed algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from traceana.cli.opening import open_trace
from traceana.cli.options import DeviceModel, Drawing, Reading, StepMarker, Tabling
from traceana.cli.output import Output
from traceana.cli.streams import message
from traceana.errors import ExitCode
from traceana.study import Name

if TYPE_CHECKING:
    from traceana.flops.timed_algorithms import AlgorithmStudy
    from traceana.model import Manifest
    from traceana.runs import RecordedRun
    from traceana.study.recorded_runs import Recorded, Traced
    from traceana.study.scaling import Communication
    from traceana.study.study import Study

Which = Annotated[Name, typer.Argument(metavar="STUDY", help="The study.", show_default=False)]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER...]",
        help="Recorded runs, sweeps, or folders of them. Optional with --published.",
        show_default=False,
    ),
]
Published = Annotated[
    bool, typer.Option("--published", help="Add the values that the paper published.")
]
SweepFrom = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Read traces as trials, by part of their names: 'l{layer}_bs{batch}_{trial}'. For "
        "algorithms and batch.",
        show_default=False,
    ),
]


def study(
    name: Which,
    tabling: Tabling,
    writing: Drawing,
    folders: Folders = None,
    published: Published = False,
    sweep_from: SweepFrom = None,
    step_marker: StepMarker = None,
    device_model: DeviceModel = None,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    if not folders and not published:
        raise typer.BadParameter(
            "give folders of recorded runs, or --published", param_hint="FOLDER"
        )
    output = Output(tabling, writing, reads=folders or ())
    from traceana.report.pages.study import study as page
    from traceana.study.study import with_published

    if sweep_from is not None and (name not in OF_TRIALS or not folders):
        raise typer.BadParameter(
            f"reads traces for {' and '.join(OF_TRIALS)}", param_hint="--sweep-from"
        )
    if sweep_from is not None:
        found, left_out = of_trials(name, folders or [], sweep_from)
    else:
        found, left_out = studied(
            name, folders or [], Reading(step_marker=step_marker, device_model=device_model)
        )
    for why in left_out:
        message(f"skipped: {why}")
    if published:
        found = with_published(found)
    if found.result.frame.is_empty():
        why = "no runs, and the paper published a plot only" if published else "no matching runs"
        message(f"nothing to show: {why}")
        output.write_page(page(found))
        return ExitCode.EMPTY_SELECTION
    output.write(page(found))
    return ExitCode.OK


OF_STEPS: Final = (Name.BATCH, Name.RATIO, Name.SCALING)
OF_ALGORITHMS: Final = (Name.ALGORITHMS, Name.LAYERWISE)
OF_TRIALS: Final = (Name.ALGORITHMS, Name.BATCH)


def of_trials(name: Name, paths: Sequence[Path], pattern: str) -> tuple[Study, list[str]]:
    """Return the study ``name`` of the traces named by ``pattern``, and what was skipped.

    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.study.throughput import batch_study
    from traceana.study.timed_convolutions import trials_study
    from traceana.study.trials import as_runs, find_trials, kernel_times, read_trials

    found, others = find_trials(paths, pattern)
    left_out = []
    if others:
        named = "file without {} in its name" if others == 1 else "files without {} in their names"
        left_out.append(f"{others:,} {named.replace('{}', pattern)}")
    trials = read_trials(found, left_out.append)
    if name is Name.ALGORITHMS:
        return trials_study(trials), left_out
    return batch_study(as_runs(trials, kernel_times(trials))), left_out


def studied(name: Name, paths: Sequence[Path], reading: Reading) -> tuple[Study, list[str]]:
    """Return the study ``name`` of ``paths``, and the skipped inputs with reasons.

    Raises the errors of :mod:`traceana.errors`.
    """
    left_out: list[str] = []
    if name in OF_STEPS:
        return _of_steps(name, paths, reading), left_out
    if name in OF_ALGORITHMS:
        from traceana.study.timed_convolutions import algorithms_study, layerwise_study

        of = algorithms_study if name is Name.ALGORITHMS else layerwise_study
        measured, rest = _measured(paths)
        return of(measured, _traced(rest, left_out, reading)), left_out
    return _of_traces(name)(_traced(paths, left_out, reading)), left_out


def _of_steps(name: Name, paths: Sequence[Path], reading: Reading) -> Study:
    from traceana.runs import find_runs
    from traceana.study.scaling import scaling_study
    from traceana.study.throughput import batch_study, ratio_study

    found = find_runs(paths)
    runs = [_recorded(run, _manifest(run)) for run in found]
    if name is Name.BATCH:
        return batch_study(runs)
    if name is Name.RATIO:
        return ratio_study(runs)
    exchanged = [_communication(run, one, reading) for run, one in zip(found, runs, strict=True)]
    return scaling_study(runs, exchanged)


def _of_traces(name: Name) -> Callable[[Sequence[Traced]], Study]:
    from traceana.study.trace_tables import (
        epilogues_study,
        frameworks_study,
        sgemm_study,
        transfers_study,
    )

    studies: Mapping[Name, Callable[[Sequence[Traced]], Study]] = {
        Name.FRAMEWORKS: frameworks_study,
        Name.EPILOGUES: epilogues_study,
        Name.SGEMM: sgemm_study,
        Name.TRANSFERS: transfers_study,
    }
    return studies[name]


def _manifest(run: RecordedRun) -> Manifest | None:
    from traceana.model import read

    return None if run.layers is None else read(run.layers)


def _recorded(run: RecordedRun, manifest: Manifest | None) -> Recorded:
    from traceana.files import as_unicode
    from traceana.study.recorded_runs import recorded

    return recorded(as_unicode(str(run.folder)), run.run, run.environment(), run.timing(), manifest)


def _communication(run: RecordedRun, known: Recorded, reading: Reading) -> Communication | None:
    """Return the collective communication of a run; None for one rank or without a trace."""
    from traceana.analyze.communication import communication
    from traceana.study.scaling import communicated

    if known.devices == 1 or known.failure or not run.run.traces:
        return None
    return communicated(communication(open_trace([run.folder], reading)).frame)


def _traced(paths: Sequence[Path], left_out: list[str], reading: Reading) -> list[Traced]:
    """Return the runs with their traces; other paths are traces."""
    from traceana.ingest.inputs import Kind, kind_of
    from traceana.runs import find_runs

    found: list[Traced] = []
    for path in paths:
        if path.exists() and kind_of(path) not in (Kind.RUN, Kind.RUNS):
            found.append(_without_run(path, reading))
            continue
        for run in find_runs([path]):
            if run.complete and run.run.traces:
                found.append(_of_run(run, reading))
            else:
                why = run.run.reason or "no trace"
                left_out.append(f"{run.folder}: {why}")
    return found


def _of_run(run: RecordedRun, reading: Reading) -> Traced:
    from traceana.study.recorded_runs import Traced

    model = _manifest(run)
    return Traced(_recorded(run, model), open_trace([run.folder], reading), model)


def _without_run(path: Path, reading: Reading) -> Traced:
    """Return a trace without a recorded-run folder, such as a published one."""
    from traceana.comparison.run_inputs import labels
    from traceana.study.recorded_runs import Recorded, Traced

    trace = open_trace([path], reading)
    model = trace.manifest
    names = trace.tables.devices["name"].drop_nulls().to_list()
    known = Recorded(
        folder=labels([path])[0],
        framework=trace.meta.framework,
        network=None if model is None else model.network,
        device_kind="CPU" if trace.on_cpu else "GPU",
        device_name=names[0] if names and not trace.on_cpu else None,
    )
    return Traced(known, trace, model)


def _measured(paths: Sequence[Path]) -> tuple[list[AlgorithmStudy], list[Path]]:
    """Return the files of timed algorithms among ``paths``, and the other paths."""
    from traceana.errors import NotFoundError, UnknownFormatError
    from traceana.flops.timed_algorithms import read

    found, rest = [], []
    for path in paths:
        try:
            if path.is_file():
                found.append(read(path))
                continue
        except (UnknownFormatError, NotFoundError):
            # The file is opened as a trace, which reports unrecognized formats. It may be longer
            # than any file of timed algorithms.
            pass
        rest.append(path)
    return found, rest
