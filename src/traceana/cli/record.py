"""``traceana record``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from traceana.errors import ExitCode
from traceana.record import Framework

if TYPE_CHECKING:
    from traceana.record.recording import Request
    from traceana.record.sweep import SubjectOptions
    from traceana.runs import RecordedRun

SEPARATOR = "--"


class Choice(StrEnum):
    """The profilers; ``auto`` is that of the training framework."""

    AUTO = "auto"
    TORCH = "torch"
    TENSORFLOW = "tensorflow"
    JAX = "jax"
    NSYS = "nsys"
    NONE = "none"


class RecordCommand(TyperCommand):
    """A command that separates its own options, those of a workload, and a script's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the first ``--`` among the arguments: the script's command follows it."""
        if SEPARATOR in args:
            first = args.index(SEPARATOR)
            args = [*args[:first], SEPARATOR, *args[first:]]
        return super().parse_args(ctx, args)


# Other options are the workload's, which checks them.
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
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class What:
    """The recorded command and its window of steps."""

    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder of the run.", show_default=False
        ),
    ]
    framework: Annotated[
        Framework | None,
        typer.Option(
            metavar="pytorch|keras|jax",
            help="Train one of the repository's networks: --network NAME and its other options "
            "(python -m workloads.pytorch --help lists them) go to the workload unchanged.",
        ),
    ] = None
    profiler: Annotated[
        list[Choice] | None,
        typer.Option(
            metavar="|".join(Choice),
            help="Default: auto, the profiler of the framework.",
            show_default=False,
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
        bool, typer.Option("--stop", help="Exit the script after the recorded steps.")
    ] = False
    exit_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Time for the process to exit after its last recorded step (with --stop, or "
            "without a profiler) before it is killed. Default: 60.",
            show_default=False,
        ),
    ] = None
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline",
            help="Run the command without the profiler first, to time its steps.",
        ),
    ] = True
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="One run per value, as in batch=1,2,4..512; several axes are combined.",
            show_default=False,
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted sweep.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the run that -o names.")] = False


def record(what: What, words: Words = None) -> ExitCode:
    """Record a training script, or a network of the repository, under a profiler.

    The folder has the trace, the layer manifest, the environment, and step times with and without
    the profiler; every command opens it. See docs/record.md.
    """
    asked = _asked(what, words or [])
    if not what.sweep:
        if what.resume:
            raise typer.BadParameter("continues a sweep: add --sweep", param_hint="--resume")
        return _record_one(what, asked)
    return _record_sweep(what, asked)


def _asked(what: What, words: list[str]) -> SubjectOptions:
    from traceana.errors import ProfilerConflictError
    from traceana.record.sweep import SubjectOptions
    from traceana.record.workload import find_workloads
    from traceana.runs.run_files import Profiler

    cut = words.index(SEPARATOR) if SEPARATOR in words else len(words)
    options, command = words[:cut], words[cut + 1 :]
    swept = any(axis.startswith("framework=") for axis in what.sweep or ())
    trains = what.framework is not None or swept
    if trains and command:
        raise typer.BadParameter("takes no command after --", param_hint="--framework")
    if not trains and options:
        raise typer.BadParameter(
            f"{options[0]}: put -- before a command, or give the --framework of its workload"
        )
    if not trains and not command:
        raise typer.BadParameter("give a --framework, or a command after --")
    if trains and what.stop:
        raise typer.BadParameter("is for scripts: a workload exits by itself", param_hint="--stop")
    chosen = list(dict.fromkeys(what.profiler or [Choice.AUTO]))
    if len(chosen) > 1 and Choice.NSYS in chosen:
        raise ProfilerConflictError(
            f"--profiler {' and '.join(chosen)}: both need CUPTI, which supports one: choose one"
        )
    if len(chosen) > 1:
        raise typer.BadParameter("choose one", param_hint="--profiler")
    return SubjectOptions(
        command=tuple(command),
        framework=what.framework,
        options=tuple(options),
        home=find_workloads() if trains else None,
        profiler=None if chosen[0] is Choice.AUTO else Profiler(chosen[0]),
        warm_up=what.warm_up,
        steps=what.steps,
        stop=what.stop,
    )


def _request(what: What, asked: SubjectOptions) -> Request:
    from traceana.record.child_process import EXIT_TIMEOUT
    from traceana.record.recording import Request

    return Request(
        baseline=what.baseline,
        options=asked.argv,
        exit_timeout=what.exit_timeout or EXIT_TIMEOUT,
        progress=_say,
    )


def _record_one(what: What, asked: SubjectOptions) -> ExitCode:
    from traceana.record.partial_folder import check_free
    from traceana.record.recording import record as record_one
    from traceana.record.summary import run_summary

    check_free(what.output, force=what.force)
    made = record_one(asked.at({}), what.output, _request(what, asked))
    typer.echo(run_summary(made), nl=False)
    return _code([made])


def _record_sweep(what: What, asked: SubjectOptions) -> ExitCode:
    from traceana.record.summary import sweep_summary
    from traceana.record.sweep import SweepRequest, parse_axis, points, record_sweep
    from traceana.runs import Point

    axes = tuple(parse_axis(text) for text in what.sweep or ())
    wanted = SweepRequest(
        axes,
        points(axes),
        asked.argv,
        "auto" if asked.profiler is None else asked.profiler.value,
        force=what.force,
        resume=what.resume,
    )
    total = len(wanted.points)

    def before(number: int, point: Point) -> None:
        _say(f"{point.folder} ({number + 1} of {total})")

    made: list[RecordedRun] = []
    try:
        for run in record_sweep(
            lambda point: asked.at(point.values),
            what.output,
            wanted,
            _request(what, asked),
            before,
        ):
            made.append(run)
            if run.run.status == "interrupted":
                break
    finally:
        if made:
            typer.echo(sweep_summary(what.output, made, total), nl=False)
    return _code(made)


def _code(made: list[RecordedRun]) -> ExitCode:
    """Return the exit code of ``record``: out of memory is a result of a sweep, not a failure."""
    from traceana.record.recording import OUT_OF_MEMORY
    from traceana.runs import Status

    if any(one.run.status is Status.INTERRUPTED for one in made):
        return ExitCode.INTERRUPTED
    failed = [one for one in made if one.run.status is Status.FAILED]
    if any(one.run.reason != OUT_OF_MEMORY or len(made) == 1 for one in failed):
        return ExitCode.RECORDING_FAILED
    return ExitCode.OK


def _say(text: str) -> None:
    from traceana.report.text import plain

    typer.echo(f"traceana: {plain(text)}", err=True)
