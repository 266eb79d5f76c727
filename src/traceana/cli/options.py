"""The options that verbs share. A verb takes a group of them as one parameter (see ``verb``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from traceana.choices import Inconclusive
from traceana.report.render import Format

TraceFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="A trace of any format, a recorded run, a saved bundle, or the files (or folder) of "
        "one run's ranks.",
        show_default=False,
    ),
]


StepMarker = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX|RANGE",
        help="The ranges that are steps: their text without its number, or a regular expression "
        "that it matches.",
        show_default=False,
    ),
]


OnInconclusive = Annotated[
    Inconclusive,
    typer.Option(
        metavar="pass|fail",
        help="What a gate does where nothing is decided: too few or too noisy steps, a figure "
        "that the trace does not hold.",
    ),
]


DeviceModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The device of a trace that names none, for peaks and links: 'Tesla V100-SXM2'.",
        show_default=False,
    ),
]


def by_option(choices: Any, text: str) -> Any:
    """Return the option ``--by``, which takes one of ``choices``."""
    return typer.Option("--by", metavar="|".join(get_args(choices)), help=text)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the input is read, and how much of it is looked at."""

    step: Annotated[
        str | None,
        typer.Option(metavar="N,N-M", help="Only these steps, by their numbers in the trace."),
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
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Extra classification rules (TOML), checked first."),
    ] = None
    counters: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="What Nsight Compute measured of the same program: ncu --csv --page raw.",
        ),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The model's layers as traceana.describe writes them. Default: the one beside "
            "the trace, if any.",
            show_default=False,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 30 when the trace has integrity problems."),
    ] = False


@dataclass(frozen=True, slots=True)
class Writing:
    """Where the output goes."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here, not to stdout."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace the file that -o names.")] = False


@dataclass(frozen=True, slots=True)
class Tabling:
    """How a table comes out."""

    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            metavar="|".join(known.value for known in Format),
            help="Default: by the suffix of -o, else table. parquet needs -o.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Show N rows, 0 for all. Default: what fits a screen in a table, else all.",
            show_default=False,
        ),
    ] = None
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Sort by a column; COLUMN:asc, COLUMN:desc."),
    ] = None
