"""Options shared by commands, and the values that the shell completes for them.

A command takes a group as one parameter (see ``command``).

Values that the shell completes: rules, figures, classes, and layers of the manifest. A trace is not
opened for them; its layers are read from the manifest beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from traceana.report.render import Format

TraceFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="A trace, recorded run, saved bundle, or the files (or folder) of one run's ranks; "
        "- reads standard input.",
    ),
]


Anonymize = Annotated[
    bool,
    typer.Option(
        "--anonymize",
        help="Replace the names of files, modules, ranges and hosts by numbered ones, for a bug "
        "report; kernels, shapes and all figures stay.",
    ),
]

AsRecorded = Annotated[
    bool,
    typer.Option(
        "--as-recorded",
        help="Times as the profiler recorded them. Default: of the program without the "
        "profiler's cost, where that is known.",
    ),
]


StepMarker = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX|RANGE",
        help="Ranges that mark steps: their name without the step number, or a regular expression.",
    ),
]


DeviceModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="GPU model, for traces that do not record it: 'Tesla V100-SXM2'. Selects its peaks.",
    ),
]


Rules = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Extra classification rules (TOML), checked first."),
]


def by_option(choices: Any, text: str) -> Any:
    """Return the option ``--by``, which takes one of ``choices``."""
    return typer.Option("--by", metavar="|".join(get_args(choices)), help=text)


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading and selecting the input."""

    step: Annotated[
        str | None,
        typer.Option(metavar="N,N-M", help="Only these steps, by number in the trace."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="N,N|cpu", help="Only these devices."),
    ] = None
    rank: Annotated[
        str | None,
        typer.Option(metavar="N,N-M", help="Only these ranks of a distributed run."),
    ] = None
    step_marker: StepMarker = None
    device_model: DeviceModel = None
    rules: Rules = None
    counters: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Counters of the same program: ncu --csv --page raw, nvprof --metrics, rocprof.",
        ),
    ] = None
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For CUDA graphs: a recording of the capture, or of the network without graphs. "
            "Replays get its layers.",
        ),
    ] = None
    inductor_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For torch.compile: TORCHINDUCTOR_CACHE_DIR of the recorded process. Generated "
            "kernels get the layers whose operators they fuse. Default: that of the recorded run.",
        ),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Layer manifest, as traceana.describe writes it. Default: beside the trace.",
        ),
    ] = None
    as_recorded: AsRecorded = False
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 17 when the trace has integrity problems."),
    ] = False


@dataclass(frozen=True, slots=True)
class Writing:
    """Output file."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of stdout."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the file that -o names.")] = False
    open: Annotated[
        bool, typer.Option("--open", help="Open the file that -o names, as a desktop does.")
    ] = False


@dataclass(frozen=True, slots=True)
class Drawing(Writing):
    """Output file, and a file of the pictures."""

    force: Annotated[
        bool, typer.Option("--force", help="Replace the files that -o and --plot name.")
    ] = False
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png|.svg", help="Write the pictures to FILE; needs the extra html."
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Tabling:
    """Format, length and order of a table."""

    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            metavar="|".join(form.value for form in Format),
            help="Default: from the suffix of -o, else table. parquet needs -o.",
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Show N rows, 0 for all. Default: one screen in a table, all otherwise.",
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Sort by a column or its title; COLUMN:asc, COLUMN:desc."
        ),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…|all",
            help="Show these columns of the table, by title or name; all: every one, whatever the "
            "width.",
        ),
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Only rows with this value: 'class == GEMM', 'name ~ winograd', 'time > 2 ms'.",
        ),
    ] = None


def rules(incomplete: str) -> list[str]:
    """Return the ids of rules that complete ``incomplete``, the last of a list with commas."""
    from traceana.advise import RULES

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + rule.id for rule in RULES if rule.id.startswith(last)]


def figures(incomplete: str) -> list[str]:
    """Return the figures that complete ``incomplete``, each with its equals sign."""
    from traceana.advise.gates import METRICS

    return [f"{metric.name}=" for metric in METRICS if metric.name.startswith(incomplete)]


def scenarios(context: typer.Context, incomplete: str) -> list[str]:
    """Return the words, names and layers that complete ``incomplete``, with ``no`` before it or
    not."""
    without = "no " if incomplete.startswith("no ") else ""
    begun = incomplete.removeprefix(without)
    return [without + word for word in _selectable(context) if word.startswith(begun)]


def _selectable(context: typer.Context) -> Iterator[str]:
    from traceana.cli.completion import UNSAFE
    from traceana.errors import TraceanaError
    from traceana.whatif.scenario import NAMED, WORDS

    # A space would have to be quoted.
    yield from (word for word in (*WORDS, *NAMED) if " " not in word)
    # Parameters are filled in only where the value follows the option's equals sign.
    for file in [*context.args, *(context.params.get("files") or ())]:
        from traceana.runs.layer_manifest import find, read

        try:
            beside = find(Path(file))
            layers = [] if beside is None else [layer.path for layer in read(beside).layers]
        except TraceanaError:
            continue
        # Controls in a name would reach the terminal, and the shell would run a command in it.
        yield from (
            f"layer:{layer}" for layer in layers if layer.isprintable() and not UNSAFE & {*layer}
        )
