"""``study``: a published study with the user's runs, and the published values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from traceana.report.columns import declared, has_values, kind_of, scale_of, title_of
from traceana.report.page import Block, Facts, Heading, Hidden, Page, Table
from traceana.report.pages.single_table import columns_of, data_of, notes_of
from traceana.report.pages.study_pictures import picture_of
from traceana.report.result import CommandResult
from traceana.result import Arranged, arrange
from traceana.study import Name
from traceana.study.study import Study
from traceana.table import Column


class Layout(msgspec.Struct, frozen=True):
    """The columns of a table with one row per run, or, with ``figures``, one row per item.

    With ``figures``, ``columns`` identify the item, and each figure has one column per run.
    """

    columns: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    titles: Mapping[str, str] = msgspec.field(default_factory=lambda: {"direction": "pass"})


LAYOUTS: Final[Mapping[Name, Layout]] = {
    Name.BATCH: Layout(
        ("network", "run", "batch", "image_ns", "low_ns", "high_ns", "images_per_s", "step_ns",
         "steps", "timed", "status", "source"),
        ("timed", "step_ns", "steps", "source"),
        titles={"image_ns": "per image"},
    ),
    Name.RATIO: Layout(
        ("network", "batch", "device_kind", "run", "relative_speed", "images_per_s", "step_ns",
         "timed",
         "status", "reference", "source"),
        ("timed", "device_kind", "step_ns", "source"),
    ),
    Name.SCALING: Layout(
        ("network", "run", "scaling", "batch", "devices", "step_ns", "linear_ns",
         "logarithmic_ns", "images_per_s", "speedup", "efficiency", "communication_share",
         "exposed_share", "reduced_bytes", "of_parameters", "status", "source"),
        ("images_per_s", "exposed_share", "efficiency", "scaling", "linear_ns", "logarithmic_ns",
         "source"),
    ),
    Name.FRAMEWORKS: Layout(
        ("network", "layer", "type"),
        ("type", "other_ns", "optimizer_ns"),
        figures=("forward_ns", "backward_ns", "optimizer_ns", "other_ns", "time_ns"),
    ),
    Name.EPILOGUES: Layout(
        ("network", "operation", "direction"), figures=("time_ns", "library", "how", "calls"),
    ),
    Name.SGEMM: Layout(
        ("network", "gemm", "form"),
        ("mean_ns", "library"),
        figures=("time_ns", "calls", "mean_ns", "library"),
    ),
    Name.TRANSFERS: Layout(
        ("network", "direction"),
        figures=("count", "bytes", "bytes_per_s", "time_ns", "host_memory"),
        titles={"count": "calls"},
    ),
    Name.ALGORITHMS: Layout(
        ("network", "run", "direction", "batch", "algorithm", "time_ns", "low_ns", "high_ns",
         "fastest_ns", "workspace_bytes", "layers", "of_layers", "trials", "of_trials", "calls",
         "source"),
        ("calls", "fastest_ns", "source"),
    ),
    Name.LAYERWISE: Layout(
        ("network", "run", "batch", "layer", "direction", "algorithm", "time_ns",
         "executed_flops", "direct_flops", "workspace_bytes", "status", "source"),
        ("workspace_bytes", "direct_flops", "source"),
    ),
}  # fmt: skip

SECTIONS: Final[Mapping[str, str]] = {
    "models": "Models of the step time, fitted by least squares",
    "switches": "Batch sizes at which the algorithm changes",
}
"""The titles of the further tables of studies."""

RUN: Final = "run"
SOURCE: Final = "source"
_IN_HEADING: Final = "network"
"""A column with a single value is shown above the table."""
_STATUS: Final = "status"
LONGEST_TITLE: Final = 20
"""If a run's label is longer, the columns have the runs' numbers."""
SPARSE: Final = 0.5
"""If a smaller part of the cells of runs side by side has values, runs are listed in rows."""


def study(found: Study) -> CommandResult:
    """Return the rows of a study; its page has the runs side by side."""
    return CommandResult.of(
        found.result,
        partial(_page, found),
        screenful=40,
        pictures=lambda: picture_of(found),
        filterable=False,
    )


def _page(found: Study, shown: Arranged) -> Page:
    layout = LAYOUTS[found.name]
    frame = arrange(found.result, sort=shown.sort).frame
    blocks: list[Block] = [Heading(found.title)]
    if found.conditions:
        blocks.append(Facts(tuple(("", line) for line in found.conditions)))
    own = frame.filter(pl.col(SOURCE).is_null()) if SOURCE in frame.columns else frame
    if own.height:
        blocks += [_limited(one, shown.limit) for one in _own(own, layout)]
    blocks += _printed(frame, layout)
    for name, result in found.sections.items():
        blocks += [
            Heading(SECTIONS[name]),
            _table(result.frame, result.frame.columns, layout.titles),
        ]
    source = {
        "study": found.name.value,
        "title": found.title,
        "conditions": list(found.conditions),
        "missing": list(found.missing),
    }
    notes = notes_of((*shown.notes, *found.missing))
    return Page("study", (*blocks, *notes), data_of(shown, source, found.sections))


def _limited(block: Block, limit: int | None) -> Block:
    """Return a table with its first ``limit`` rows; other blocks as they are."""
    if not isinstance(block, Table) or limit is None or block.frame.height <= limit:
        return block
    return replace(block, frame=block.frame.head(limit), hidden=Hidden(block.frame.height - limit))


def _own(own: pl.DataFrame, layout: Layout) -> list[Block]:
    known = [column for column in layout.columns if column in own.columns]
    if own[_IN_HEADING].n_unique() == 1 and own[_IN_HEADING][0] is not None:
        known.remove(_IN_HEADING)
    if _STATUS in known and (own[_STATUS] == "ok").all():
        known.remove(_STATUS)
    if not layout.figures:
        single = (RUN,) if own[RUN].n_unique() == 1 else ()
        return [replace(_table(own, known, layout.titles), dropped=(*layout.dropped, *single))]
    items = own.select(known).unique(keep="first", maintain_order=True)
    if own.height < SPARSE * items.height * own[RUN].n_unique():
        rows = own.join(
            items.with_row_index("_item"), on=known, nulls_equal=True, maintain_order="left"
        ).sort("_item", maintain_order=True)
        columns = [*known, RUN, *layout.figures]
        return [replace(_table(rows, columns, layout.titles), dropped=layout.dropped)]
    runs = own[RUN].unique(maintain_order=True).to_list()
    if max(map(len, runs)) <= LONGEST_TITLE:
        return [_side_by_side(own, known, layout, {run: run for run in runs})]
    numbered = {run: f"run {number}" for number, run in enumerate(runs, start=1)}
    legend = Facts(tuple((title, run) for run, title in numbered.items()))
    return [legend, _side_by_side(own, known, layout, numbered)]


def _side_by_side(
    own: pl.DataFrame, keys: list[str], layout: Layout, titles: Mapping[str, str]
) -> Table:
    """Return one row per item and one column per run and figure, grouped by figure.

    ``titles`` has the title of each run's columns.
    """
    wide = own.select(keys).unique(keep="first", maintain_order=True)
    columns = list(columns_of(wide, keys, titles=layout.titles))
    for figure in layout.figures:
        if not has_values(own[figure], declared(figure)):
            continue
        for run, run_title in titles.items():
            name = f"{run} {figure}"
            rows = own.filter(pl.col(RUN) == run).group_by(keys, maintain_order=True)
            value = pl.col(figure).drop_nulls()
            one = value.sum() if own.schema[figure].is_integer() else value.first()
            some = rows.agg(pl.when(value.len() > 0).then(one).alias(name))
            wide = wide.join(some, on=keys, how="left", nulls_equal=True, maintain_order="left")
            if wide[name].null_count() < wide.height:
                title = layout.titles.get(figure, title_of(figure))
                columns.append(
                    Column(
                        name,
                        kind_of(figure),
                        title=run_title,
                        scale=scale_of(figure) or figure,
                        group=title,
                    )
                )
    return Table(wide, tuple(columns), dropped=layout.dropped)


def _printed(frame: pl.DataFrame, layout: Layout) -> list[Block]:
    """Return the published values by source, with one row per run and item."""
    if SOURCE not in frame.columns:
        return []
    columns = [RUN, *(name for name in (*layout.columns, *layout.figures) if name != RUN)]
    published = frame.filter(pl.col(SOURCE).is_not_null())
    blocks: list[Block] = []
    for (source,), rows in published.group_by(SOURCE, maintain_order=True):
        shown = [name for name in columns if name != SOURCE]
        blocks += [
            Heading(str(source)),
            replace(_table(rows, shown, layout.titles), dropped=layout.dropped),
        ]
    return blocks


def _table(frame: pl.DataFrame, columns: list[str], titles: Mapping[str, str]) -> Table:
    return Table(frame, columns_of(frame, columns, titles=titles))
