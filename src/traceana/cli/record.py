"""``traceana record``."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from traceana.cli.interrupt import end_by_signal
from traceana.cli.streams import is_quiet, message, note
from traceana.errors import ExitCode
from traceana.record import Framework

if TYPE_CHECKING:
    from traceana.record.recording import Request
    from traceana.record.sweep import SubjectOptions
    from traceana.runs import RecordedRun

SEPARATOR = "--"


class Choice(StrEnum):
    """The profilers; ``auto`` is the profiler of the training framework."""

    AUTO = "auto"
    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    NSYS = "nsys"
    NONE = "none"


class RecordCommand(TyperCommand):
    """A command with its own options, the options of a workload, and a script's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the first ``--`` among the arguments, because the script's command follows it."""
        if SEPARATOR in args:
            first = args.index(SEPARATOR)
            args = [*args[:first], SEPARATOR, *args[first:]]
        return super().parse_args(ctx, args)


# Unknown options are passed to the workload, which checks them.
TYPER_OPTIONS: Final[dict[str, Any]] = {
    "cls": RecordCommand,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": False},
}
"""Arguments of ``typer.command`` for this command."""

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND...]",
        help="A training command, after --; or options of a workload, with --framework.",
    ),
]


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The recorded command and its window of steps."""

    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the run."),
    ]
    framework: Annotated[
        Framework | None,
        typer.Option(
            metavar="pytorch|keras|jax",
            help="Train one of the repository's networks: --network NAME and other options "
            "(python -m workloads.pytorch --help) are passed to the workload.",
        ),
    ] = None
    profiler: Annotated[
        list[Choice] | None,
        typer.Option(
            metavar="|".join(Choice),
            help="Default: auto, the profiler of the framework.",
        ),
    ] = None
    warm_up: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Warm-up steps before recording. Default: 5, workloads 2."
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Steps to record. Default: 10, workloads 3."),
    ] = None
    stop: Annotated[
        bool,
        typer.Option(
            "--stop", help="End the script after the recorded and timed steps. Default: sweeps."
        ),
    ] = False
    exit_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Time for the process to exit after its last recorded step (with --stop, or "
            "without a profiler) before it is killed. Default: 60.",
        ),
    ] = None
    no_baseline: Annotated[
        bool,
        typer.Option(
            "--no-baseline",
            help="Time no steps without the profiler: the recorded ones follow the warm-up.",
        ),
    ] = False
    baseline_run: Annotated[
        bool,
        typer.Option(
            "--baseline-run",
            help="Time the steps in a run of their own, without the profiler, before the recorded "
            "one: the command runs twice.",
        ),
    ] = False
    no_lines: Annotated[
        bool,
        typer.Option("--no-lines", help="Record no lines of the program's own files."),
    ] = False
    no_source: Annotated[
        bool,
        typer.Option("--no-source", help="Keep no copies of the files whose lines are recorded."),
    ] = False
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="One run per value, as in batch=1,2,4..512; several axes are combined.",
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted sweep.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the run that -o names.")] = False


def record(options: RecordOptions, words: Words = None) -> int:
    """Run the command; :mod:`traceana.commands` has its help."""
    subject = _subject_options(options, words or [])
    if options.sweep:
        return _record_sweep(options, subject)
    if options.resume:
        raise typer.BadParameter("continues a sweep: add --sweep", param_hint="--resume")
    from traceana.record.partial_folder import check_free
    from traceana.record.recording import record as record_run
    from traceana.record.run_summary import run_summary

    check_free(options.output, force=options.force)
    if subject.stop:
        note("the program ends after the recorded and timed steps (--stop)")
    try:
        recorded = record_run(subject.at({}), options.output, _request(options, subject))
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            raise
        message(f"interrupted by {signal.Signals(interrupt.args[0]).name}: nothing was recorded")
        return end_by_signal(interrupt.args[0])
    if not is_quiet():
        typer.echo(run_summary(recorded), nl=False, err=True)
    return _end_as(recorded)


def _end_as(recorded: RecordedRun) -> int:
    """Return the exit status of the recorded command; this process ends by the same signal.

    Without a status, as of a command that was killed here, it is the code for the run.
    """
    status = recorded.run.exit_status
    if status is None:
        return _code([recorded])
    return end_by_signal(-status) if status < 0 else status


def _subject_options(options: RecordOptions, words: list[str]) -> SubjectOptions:
    from traceana.errors import RecordingError
    from traceana.record.programs import find_workloads
    from traceana.record.sweep import SubjectOptions
    from traceana.runs.run_files import Profiler

    cut = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    workload_options, command = words[:cut], words[cut + 1 :]
    swept = any(axis.startswith("framework=") for axis in options.sweep or ())
    trains = options.framework is not None or swept
    if trains and command:
        raise typer.BadParameter("takes no command after --", param_hint="--framework")
    if not trains and workload_options:
        raise typer.BadParameter(
            f"{workload_options[0]}: put -- before a command, or give the --framework of a workload"
        )
    if not trains and not command:
        raise typer.BadParameter("give a --framework, or a command after --")
    if options.baseline_run and options.no_baseline:
        raise typer.BadParameter("times steps: remove --no-baseline", param_hint="--baseline-run")
    if trains and options.stop:
        raise typer.BadParameter("is for scripts: a workload exits by itself", param_hint="--stop")
    chosen = list(dict.fromkeys(options.profiler or [Choice.AUTO]))
    if len(chosen) > 1 and Choice.NSYS in chosen:
        raise RecordingError(
            f"--profiler {' and '.join(chosen)}: both need CUPTI, which supports one client; "
            "select one"
        )
    if len(chosen) > 1:
        raise typer.BadParameter("select one", param_hint="--profiler")
    return SubjectOptions(
        command=tuple(command),
        framework=options.framework,
        options=tuple(workload_options),
        home=find_workloads() if trains else None,
        profiler=None if chosen[0] is Choice.AUTO else Profiler(chosen[0]),
        warm_up=options.warm_up,
        steps=options.steps,
        stop=options.stop or bool(options.sweep),
        timed=not options.no_baseline and not options.baseline_run,
        lines=not options.no_lines,
        source=not options.no_source,
    )


def _request(options: RecordOptions, subject: SubjectOptions) -> Request:
    from traceana.record.child_process import EXIT_TIMEOUT
    from traceana.record.recording import Request

    # A network of the repository is made to be run twice.
    run_twice = options.baseline_run or not (options.no_baseline or subject.command)
    return Request(
        baseline=run_twice,
        options=subject.argv,
        exit_timeout=options.exit_timeout or EXIT_TIMEOUT,
        progress=note,
    )


def _record_sweep(options: RecordOptions, subject: SubjectOptions) -> ExitCode:
    from traceana.record.run_summary import sweep_summary
    from traceana.record.sweep import SweepRequest, parse_axis, points, record_sweep
    from traceana.runs import Point

    axes = tuple(parse_axis(text) for text in options.sweep or ())
    wanted = SweepRequest(
        axes,
        points(axes),
        subject.argv,
        "auto" if subject.profiler is None else subject.profiler.value,
        force=options.force,
        resume=options.resume,
    )
    total = len(wanted.points)

    def before(number: int, point: Point) -> None:
        note(f"{point.folder} ({number + 1} of {total})")

    made: list[RecordedRun] = []
    try:
        for run in record_sweep(
            lambda point: subject.at(point.values),
            options.output,
            wanted,
            _request(options, subject),
            before,
        ):
            made.append(run)
            if run.run.status == "interrupted":
                break
    finally:
        if made and not is_quiet():
            typer.echo(sweep_summary(options.output, made, total), nl=False, err=True)
    return _code(made)


def _code(made: list[RecordedRun]) -> ExitCode:
    """Return the exit code of ``record``: out of memory is a result of a sweep, not a failure."""
    from traceana.record.recording import OUT_OF_MEMORY
    from traceana.runs import Status

    if any(recorded.run.status is Status.INTERRUPTED for recorded in made):
        return ExitCode.INTERRUPTED
    failed = [recorded for recorded in made if recorded.run.status is Status.FAILED]
    if any(recorded.run.reason != OUT_OF_MEMORY or len(made) == 1 for recorded in failed):
        return ExitCode.RECORDING_FAILED
    return ExitCode.OK
