"""``traceana compare``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceana.cli.opening import exit_code, layer_manifest, open_trace
from traceana.cli.options import Reading, Tabling, Writing
from traceana.cli.output import Output
from traceana.errors import ExitCode

if TYPE_CHECKING:
    from traceana.compare import Comparison


class By(StrEnum):
    """What one row is."""

    SUMMARY = "summary"
    LAYER = "layer"
    CLASS = "class"
    ALGORITHM = "algorithm"
    KERNEL = "kernel"
    GEMM = "gemm"
    EPILOGUE = "epilogue"
    TRANSFER = "transfer"


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN RUN...",
        help="Two runs or more: traces, bundles, recorded runs, folders of ranks, or baselines.",
        show_default=False,
    ),
]
Grouping = Annotated[
    By,
    typer.Option(
        "--by",
        metavar="|".join(By),
        help="One row a layer, class, … of all runs. epilogue: bias and activations by library.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="What a run is called; once for each, in their order. Default: after its file.",
        show_default=False,
    ),
]
Step = Annotated[str | None, typer.Option(metavar="N,N-M", help="Only these steps, of all runs.")]
Device = Annotated[
    str | None, typer.Option(metavar="N,N|cpu", help="Only these devices, of all runs.")
]
Rank = Annotated[str | None, typer.Option(metavar="N,N-M", help="Only these ranks, of all runs.")]
Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Rules of classification (TOML) tried before our own."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit code 30 when a trace has integrity problems.")
]


def compare(
    runs: Runs,
    tabling: Tabling,
    writing: Writing,
    by: Grouping = By.SUMMARY,
    label: Labels = None,
    step: Step = None,
    device: Device = None,
    rank: Rank = None,
    rules: Rules = None,
    strict: Strict = False,
) -> ExitCode:
    """Two or more runs side by side: steps, layers, matrix products, bias and ReLU, copies.

    Layers are aligned as by diff. Figures are per step, warm-up left out, where all runs mark
    steps, else of whole recordings; ratios are to the first run. CSV, TSV, JSON and Parquet have
    one row a run and item, with both.
    """
    from traceana.compare.baselines import resolved
    from traceana.compare.comparison import Comparison
    from traceana.compare.many import Run, labels
    from traceana.compare.opened import recorded_batch

    if len(runs) < 2:
        raise typer.BadParameter(
            "one run cannot be compared: name two or more (report shows one)", param_hint="RUN"
        )
    if label is not None and (len(label) != len(runs) or len(set(label)) < len(label)):
        raise typer.BadParameter(
            f"{len(runs)} runs need as many different labels", param_hint="--label"
        )
    paths = [resolved(path) for path in runs]
    reading = Reading(step, device, rank, rules, None, None, strict)
    output = Output(tabling, writing, reads=paths, screenful=40)
    traces = [open_trace([path], reading) for path in paths]
    models = [layer_manifest([path], reading) for path in paths]
    codes = [exit_code(trace, reading) for trace in traces]
    failed = next((code for code in codes if code is not ExitCode.OK), ExitCode.OK)
    if ExitCode.NO_WORK in codes or ExitCode.NO_TIMELINE in codes:
        return failed
    batches = [recorded_batch(path) for path in paths]
    named = zip(label or labels(paths), traces, models, batches, strict=True)
    _show(output, Comparison(tuple(Run(*one) for one in named)), by)
    return failed


def _show(output: Output, found: Comparison, by: By) -> None:
    from traceana.analyze.result import Result
    from traceana.report.beside import beside

    facts = beside(found, by.value)
    table = facts.table
    wide = output.is_text and by is not By.SUMMARY
    output.show(
        "compare",
        Result(table.pivot() if wide else table.frame, {}, facts.notes),
        source=facts.source,
        beside=facts,
    )
