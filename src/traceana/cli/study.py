"""``traceana study``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceana.cli.options import DeviceModel, Drawing, Reading, StepMarker, Tabling
from traceana.cli.output import Output
from traceana.cli.streams import message
from traceana.errors import ExitCode
from traceana.study import Name

Which = Annotated[
    Name, typer.Argument(metavar="|".join(Name), help="The study.", show_default=False)
]
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
    """Reproduce a published study from recorded runs: its table and plot.

    frameworks: step time by layer. epilogues: bias and ReLU by library. algorithms, layerwise:
    convolution algorithms by batch size, by layer. scaling: speedup by number of devices. batch:
    time per image by batch size. sgemm: GEMM time by kernel. transfers: copies. ratio: relative
    speed by network.
    """
    if not folders and not published:
        raise typer.BadParameter(
            "give folders of recorded runs, or --published", param_hint="FOLDER"
        )
    output = Output(tabling, writing, reads=folders or ())
    from traceana.cli.study_input import OF_TRIALS, of_trials, studied
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
