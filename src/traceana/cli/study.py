"""``traceana study``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceana.cli.options import DeviceModel, Reading, StepMarker, Tabling, Writing
from traceana.cli.output import Output
from traceana.cli.streams import message
from traceana.errors import ExitCode
from traceana.study import Name

if TYPE_CHECKING:
    from traceana.study.study import Study

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
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png|.svg", help="Write a plot; needs traceana[plots]."),
]


def study(
    name: Which,
    tabling: Tabling,
    writing: Writing,
    folders: Folders = None,
    published: Published = False,
    plot: Plot = None,
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
    suffix = None if plot is None else _suffix(plot)
    if plot is not None:
        from traceana.report.plots.draw import require_matplotlib

        require_matplotlib()
        from traceana.files import check_free

        check_free(plot, force=writing.force)
    from traceana.cli.study_input import studied
    from traceana.report.pages.study import study as page
    from traceana.study.study import with_published

    found, left_out = studied(
        name, folders or [], Reading(step_marker=step_marker, device_model=device_model)
    )
    for why in left_out:
        message(f"skipped: {why}")
    if published:
        found = with_published(found)
    output.write(page(found))
    if found.result.frame.is_empty():
        why = "no runs, and the paper published a plot only" if published else "no matching runs"
        message(f"nothing to show: {why}")
        return ExitCode.EMPTY_SELECTION
    if plot is not None and suffix is not None:
        _draw(found, plot, suffix, force=writing.force)
    return ExitCode.OK


def _suffix(plot: Path) -> str:
    """Return the plot format of the suffix; raises ``typer.BadParameter``."""
    from traceana.report.plots.draw import FORMATS

    suffix = plot.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise typer.BadParameter(
            f"{plot}: unsupported suffix, use .png or .svg", param_hint="--plot"
        )
    return suffix


def _draw(found: Study, plot: Path, suffix: str, *, force: bool) -> None:
    from traceana.files import write_output
    from traceana.report.plots.draw import picture_file
    from traceana.report.plots.study_pictures import picture_of

    write_output(plot, picture_file(picture_of(found), suffix), force=force)
