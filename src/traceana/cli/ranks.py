"""``traceana ranks``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from traceana.cli.opening import noted
from traceana.cli.options import DeviceModel, Drawing, Rules, StepMarker, Tabling
from traceana.cli.output import Output
from traceana.cli.streams import is_quiet, message
from traceana.errors import ExitCode, RedirectWarning

if TYPE_CHECKING:
    from traceana.job.tasks import Done

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE...",
        help="The traces of a job's ranks: files, folders, recorded runs, saved bundles, and URLs "
        "of files, folders (ending with /) and patterns: s3://, gs://, az://, https://.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Processes that read. Default: by cores and memory.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Read with the workers of a Dask scheduler: tcp://host:port, or its scheduler file.",
    ),
]
Keep = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Where summaries are kept, to go on after an interruption. Default: the cache.",
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="i/N",
        help="Read only every Nth file from the ith on, and write summaries to --keep DIR.",
    ),
]
Merge = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Show the summaries that --shard wrote."),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Exit code 17 when a rank is missing, damaged or not read."),
]


_MOST_LINES: Final = 10


def ranks(
    tabling: Tabling,
    writing: Drawing,
    sources: Sources = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    keep: Keep = None,
    shard: Shard = None,
    merge: Merge = None,
    step_marker: StepMarker = None,
    device_model: DeviceModel = None,
    rules: Rules = None,
    strict: Strict = False,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.report.pages import ranks as pages

    given = sources or []
    if merge is not None and (given or shard is not None or keep is not None):
        raise typer.BadParameter("takes neither sources nor --shard, --keep", param_hint="--merge")
    if shard is not None and keep is None:
        raise typer.BadParameter("needs --keep DIR, which all shards share", param_hint="--shard")
    if scheduler is not None and workers is not None:
        raise typer.BadParameter(
            "is the number of this machine's processes", param_hint="--workers"
        )
    from traceana.job.sources import is_url

    output = Output(tabling, writing, reads=[Path(path) for path in given if not is_url(path)])
    if merge is not None:
        result = pages.of_shards(merge)
    elif shard is not None and keep is not None:
        from traceana.job.sources import sources as files_of
        from traceana.job.tasks import Reading

        reading = Reading(step_marker, device_model, None if rules is None else str(rules))
        with noted(RedirectWarning), progress() as done:
            count = pages.write_shard(
                files_of(given),
                shard,
                reading,
                keep,
                workers=workers,
                scheduler=scheduler,
                done=done,
            )
        message(f"shard {shard}: {count} summaries in {keep}; traceana ranks --merge {keep}")
        return ExitCode.OK
    else:
        with noted(RedirectWarning), progress() as done:
            result = pages.ranks(
                given,
                workers=workers,
                scheduler=scheduler,
                keep=keep,
                step_marker=step_marker,
                device_model=device_model,
                rules=rules,
                progress=done,
            )
    output.write(result)
    bad = pages.problems(result)
    list_bad(bad)
    none_read = not result.frame["kernels"].count()
    return ExitCode.DAMAGED_INPUT if none_read or (strict and bad) else ExitCode.OK


def list_bad(lines: Sequence[str]) -> None:
    """Print a line for each rank that is missing, damaged or not read; of many the first."""
    for line in lines[:_MOST_LINES]:
        message(line)
    if len(lines) > _MOST_LINES:
        message(f"{len(lines) - _MOST_LINES} more in the rows")


@contextmanager
def progress(title: str = "reading ranks") -> Iterator[Done]:
    """Show a bar with ``title`` while the block reads many files."""
    if is_quiet() or not sys.stderr.isatty():
        from traceana.readers.source import silent

        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        title,
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, files: bar.update(task, completed=done, total=files)
