"""``traceana study``, and its input: recorded runs, traces, files of timed algorithms."""

from __future__ import annotations

from collections.abc import Sequence
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
    from traceana.runs.layer_manifest import Manifest
    from traceana.study.study import Study

Which = Annotated[Name, typer.Argument(metavar="STUDY", help="The study.")]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER...]",
        help="Recorded runs, sweeps, or folders of them. Optional with --published.",
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
    from msgspec.structs import replace

    from traceana.report.pages.study import study as page
    from traceana.runs import missing_runs
    from traceana.study.study import with_published

    if sweep_from is not None and (name not in OF_TRIALS or not folders):
        raise typer.BadParameter(
            f"reads traces for {' and '.join(OF_TRIALS)}", param_hint="--sweep-from"
        )
    if sweep_from is not None:
        result, left_out = of_trials(name, folders or [], sweep_from)
    else:
        result, left_out = studied(
            name, folders or [], Reading(step_marker=step_marker, device_model=device_model)
        )
        result = replace(result, missing=(*missing_runs(folders or ()), *result.missing))
    for why in left_out:
        message(f"skipped: {why}")
    if published:
        result = with_published(result)
    if result.result.frame.is_empty():
        why = "no runs, and the paper published a plot only" if published else "no matching runs"
        message(f"nothing to show: {why}")
        output.write_page(page(result))
        return ExitCode.EMPTY_SELECTION
    output.write(page(result))
    return ExitCode.OK


OF_STEPS: Final = (Name.BATCH, Name.RATIO, Name.SCALING)
OF_ALGORITHMS: Final = (Name.ALGORITHMS, Name.LAYERWISE)
OF_TRIALS: Final = (Name.ALGORITHMS, Name.BATCH)


def of_trials(name: Name, paths: Sequence[Path], pattern: str) -> tuple[Study, list[str]]:
    """Return the study ``name`` of the traces named by ``pattern``, and what was skipped.

    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.study.step_times import batch_study
    from traceana.study.timed_convolutions import trials_study
    from traceana.study.trials import as_runs, find_trials, kernel_times, read_trials

    files, others = find_trials(paths, pattern)
    left_out = []
    if others:
        named = "file without {} in its name" if others == 1 else "files without {} in their names"
        left_out.append(f"{others:,} {named.replace('{}', pattern)}")
    trials = read_trials(files, left_out.append)
    if name is Name.ALGORITHMS:
        return trials_study(trials), left_out
    return batch_study(as_runs(trials, kernel_times(trials))), left_out


def studied(name: Name, paths: Sequence[Path], reading: Reading) -> tuple[Study, list[str]]:
    """Return the study ``name`` of ``paths``, and the skipped inputs with reasons.

    Raises the errors of :mod:`traceana.errors`.
    """
    from traceana.analyze.communication import communication
    from traceana.comparison.run_inputs import labels
    from traceana.errors import NotFoundError, UnknownFormatError
    from traceana.flops.timed_algorithms import AlgorithmStudy, read
    from traceana.plain_text import as_unicode
    from traceana.readers.inputs import Kind, kind_of
    from traceana.runs import RecordedRun, find_runs
    from traceana.runs.layer_manifest import read as read_manifest
    from traceana.study.recorded_runs import Recorded, Traced, recorded
    from traceana.study.step_times import batch_study, communicated, ratio_study, scaling_study
    from traceana.study.timed_convolutions import convolution_study
    from traceana.study.trace_tables import traced_study
    from traceana.whatif.program import without_profiler

    def read_run(run: RecordedRun) -> tuple[Recorded, Manifest | None]:
        model = None if run.layers is None else read_manifest(run.layers)
        folder = as_unicode(str(run.folder))
        return recorded(folder, run.run, run.environment(), run.timing(), model), model

    left_out: list[str] = []
    if name in OF_STEPS:
        folders = find_runs(paths)
        runs = [read_run(run)[0] for run in folders]
        if name is not Name.SCALING:
            return (batch_study if name is Name.BATCH else ratio_study)(runs), left_out
        exchanged = [
            communicated(communication(open_trace([source.folder], reading)).frame)
            if run.devices > 1 and not run.failure and source.run.traces
            else None
            for source, run in zip(folders, runs, strict=True)
        ]
        return scaling_study(runs, exchanged), left_out
    measured: list[AlgorithmStudy] = []
    traced: list[Traced] = []
    for path in paths:
        if name in OF_ALGORITHMS and path.is_file():
            try:
                measured.append(read(path))
                continue
            except (UnknownFormatError, NotFoundError):
                # The file is opened as a trace, which reports unrecognized formats. It may be
                # longer than any file of timed algorithms.
                pass
        if path.exists() and kind_of(path) not in (Kind.RUN, Kind.RUNS):
            # A trace without the folder of a recorded run, such as a published one.
            trace = without_profiler(open_trace([path], reading))
            devices = trace.tables.devices["name"].drop_nulls().to_list()
            alone = Recorded(
                folder=labels([path])[0],
                framework=trace.meta.framework,
                network=None if trace.manifest is None else trace.manifest.network,
                device_kind="CPU" if trace.on_cpu else "GPU",
                device_name=devices[0] if devices and not trace.on_cpu else None,
            )
            traced.append(Traced(alone, trace, trace.manifest))
            continue
        for recording in find_runs([path]):
            if recording.complete and recording.run.traces:
                run, model = read_run(recording)
                trace = without_profiler(open_trace([recording.folder], reading))
                traced.append(Traced(run, trace, model))
            else:
                left_out.append(f"{recording.folder}: {recording.run.reason or 'no trace'}")
    if name in OF_ALGORITHMS:
        return convolution_study(name, measured, traced), left_out
    return traced_study(name, traced), left_out
