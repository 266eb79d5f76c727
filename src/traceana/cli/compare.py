"""``traceana compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.opening import exit_code, open_trace
from traceana.cli.options import (
    AsRecorded,
    DeviceModel,
    Drawing,
    Reading,
    Rules,
    StepMarker,
    Tabling,
    by_option,
)
from traceana.cli.output import Output
from traceana.cli.streams import message
from traceana.errors import ExitCode
from traceana.vocabulary.option_words import CompareBy

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN RUN...",
        help="Two or more runs: traces, bundles, recorded runs, folders of ranks, saved baselines. "
        "A sweep, or a folder of recorded runs, expands to its runs.",
    ),
]
By = Annotated[
    CompareBy,
    by_option(CompareBy, "One row per layer, class, …; epilogue: bias and activations by library."),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="Name of a run; once for each, in order. Default: from its file name.",
    ),
]
Models = Annotated[
    list[Path] | None,
    typer.Option(
        "--model",
        metavar="FILE",
        help="Layer manifest; once for all runs, or once for each. Default: beside each trace.",
    ),
]
Maps = Annotated[
    list[Path] | None,
    typer.Option(
        "--map",
        metavar="FILE",
        help="Layer pairs to force between the first run and another, as in diff; once for all "
        "others, or once for each. Needs --by layer.",
    ),
]
Step = Annotated[str | None, typer.Option(metavar="N,N-M", help="Only these steps, in all runs.")]
Device = Annotated[
    str | None, typer.Option(metavar="N,N|cpu", help="Only these devices, in all runs.")
]
Rank = Annotated[str | None, typer.Option(metavar="N,N-M", help="Only these ranks, in all runs.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit code 17 when a trace has integrity problems.")
]


def compare(
    runs: Runs,
    tabling: Tabling,
    writing: Drawing,
    by: By = "summary",
    label: Labels = None,
    model: Models = None,
    pairs: Maps = None,
    step: Step = None,
    device: Device = None,
    rank: Rank = None,
    step_marker: StepMarker = None,
    device_model: DeviceModel = None,
    rules: Rules = None,
    as_recorded: AsRecorded = False,
    strict: Strict = False,
) -> ExitCode:
    """Run the command; :mod:`traceana.commands` has its help."""
    from traceana.comparison.compared_run import Run
    from traceana.comparison.run_inputs import recorded_batch, resolved, runs_in
    from traceana.comparison.run_tables import Comparison
    from traceana.plain_text import as_unicode
    from traceana.report.pages.compare import side_by_side as page
    from traceana.runs import missing_runs

    if pairs and by != "layer":
        raise typer.BadParameter("needs --by layer", param_hint="--map")
    given = [resolved(path) for path in runs]
    listed = runs_in(given)
    paths = list(listed.paths)
    for why in listed.left_out:
        message(f"skipped: {why}")
    for note in missing_runs(given):
        message(note)
    if len(paths) < 2:
        raise typer.BadParameter(
            "needs two or more runs; for one, use traceana report", param_hint="RUN"
        )
    if label is not None and (len(label) != len(paths) or len(set(label)) < len(label)):
        raise typer.BadParameter(
            f"give {len(paths)} different labels, one per run", param_hint="--label"
        )
    readings = [
        Reading(
            step=step,
            device=device,
            rank=rank,
            step_marker=step_marker,
            device_model=device_model,
            rules=rules,
            model=manifest,
            as_recorded=as_recorded,
            strict=strict,
        )
        for manifest in _each(model, len(paths), "--model")
    ]
    maps = [None, *_each(pairs, len(paths) - 1, "--map")]
    output = Output(tabling, writing, reads=paths)
    traces = [
        open_trace([path], reading, number=number, of=len(paths))
        for number, (path, reading) in enumerate(zip(paths, readings, strict=True))
    ]
    models = [trace.manifest for trace in traces]
    codes = [exit_code(trace, reading) for trace, reading in zip(traces, readings, strict=True)]
    failed = next((code for code in codes if code is not ExitCode.OK), ExitCode.OK)
    if ExitCode.EMPTY_SELECTION in codes:
        return failed
    batches = [recorded_batch(path) for path in paths]
    named = zip(
        [as_unicode(name) for name in label or listed.labels],
        traces,
        models,
        batches,
        maps,
        strict=True,
    )
    output.write(page(Comparison(tuple(Run(*parts) for parts in named)), by=by))
    return failed


def _each(files: list[Path] | None, count: int, option: str) -> list[Path | None]:
    """Return one file per run for ``count`` runs; a single file applies to all."""
    if not files:
        return [None] * count
    if len(files) not in (1, count):
        raise typer.BadParameter(f"give one for all, or {count}: one per run", param_hint=option)
    return [*files] * (count // len(files))
