"""``study``: a published study with the user's runs, and the published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import polars as pl
from msgspec.structs import replace

from traceana.report.page import Block, Facts, Heading, Hidden, Page, Table
from traceana.report.pages.single_table import data_of, notes_of, ranked, with_values
from traceana.report.pages.study_pictures import picture_of
from traceana.report.result import CommandResult
from traceana.result import Arranged, arrange
from traceana.study import Name
from traceana.study.study import NETWORK, RUN, SOURCE, Study
from traceana.table import Column, names_of

SIDE_BY_SIDE: Final = (Name.FRAMEWORKS, Name.EPILOGUES, Name.SGEMM, Name.TRANSFERS)
"""Studies with a row per item: the columns before ``run`` identify it, those after it are its
figures, each with a column per run. The others have a row per run."""
SECTIONS: Final[Mapping[str, str]] = {
    "models": "Models of the step time, fitted by least squares",
    "switches": "Batch sizes at which the algorithm changes",
}
"""The titles of the further tables of studies."""

_STATUS: Final = "status"
LONGEST_TITLE: Final = 20
"""If a run's label is longer, the columns have the runs' numbers."""
SPARSE: Final = 0.5
"""If a smaller part of the cells of runs side by side has values, runs are listed in rows."""


def study(studied: Study) -> CommandResult:
    """Return the rows of a study; its page has the runs side by side."""
    return CommandResult.of(
        studied.result,
        partial(_page, studied),
        screenful=40,
        pictures=lambda: picture_of(studied),
        filterable=False,
    )


def _page(studied: Study, shown: Arranged) -> Page:
    frame = arrange(studied.result, sort=shown.sort).frame
    blocks: list[Block] = [Heading(studied.title)]
    if studied.conditions:
        blocks.append(Facts(tuple(("", line) for line in studied.conditions)))
    columns = [column for column in studied.result.columns if column.shown]
    published = SOURCE.name in frame.columns
    recorded = frame.filter(pl.col(SOURCE.name).is_null()) if published else frame
    if recorded.height:
        blocks += [
            _limited(block, shown.limit) for block in _recorded_runs(studied, recorded, columns)
        ]
    if published:
        ordered = sorted(columns, key=lambda column: column.name != RUN.name)
        printed = frame.filter(pl.col(SOURCE.name).is_not_null())
        for (paper,), rows in printed.group_by(SOURCE.name, maintain_order=True):
            blocks += [Heading(str(paper)), _table(rows, ordered)]
    for name, result in studied.sections.items():
        blocks += [Heading(SECTIONS[name]), _table(result.frame, result.columns)]
    source = {
        "study": studied.name.value,
        "title": studied.title,
        "conditions": list(studied.conditions),
        "missing": list(studied.missing),
    }
    notes = notes_of((*shown.notes, *studied.missing))
    return Page("study", (*blocks, *notes), data_of(shown, source, studied.sections))


def _limited(block: Block, limit: int | None) -> Block:
    """Return a table with its first ``limit`` rows; other blocks as they are."""
    if not isinstance(block, Table) or limit is None or block.frame.height <= limit:
        return block
    return replace(block, frame=block.frame.head(limit), hidden=Hidden(block.frame.height - limit))


def _recorded_runs(studied: Study, recorded: pl.DataFrame, columns: list[Column]) -> list[Block]:
    left_out = set()
    if recorded[NETWORK.name].n_unique() == 1 and recorded[NETWORK.name][0] is not None:
        # It is shown above the table.
        left_out.add(NETWORK.name)
    if _STATUS in recorded.columns and (recorded[_STATUS] == "ok").all():
        left_out.add(_STATUS)
    columns = [column for column in columns if column.name not in left_out]
    runs = recorded[RUN.name].unique(maintain_order=True).to_list()
    if studied.name not in SIDE_BY_SIDE:
        table = _table(recorded, columns)
        return [replace(table, dropped=(*table.dropped, RUN.name)) if len(runs) == 1 else table]
    keys = names_of(tuple(columns))
    keys = keys[: keys.index(RUN.name)]
    items = recorded.select(keys).unique(keep="first", maintain_order=True)
    if recorded.height < SPARSE * items.height * len(runs):
        rows = recorded.join(
            items.with_row_index("_item"), on=keys, nulls_equal=True, maintain_order="left"
        ).sort("_item", maintain_order=True)
        return [_table(rows, columns)]
    if max(map(len, runs)) <= LONGEST_TITLE:
        return [_side_by_side(recorded, columns, {run: run for run in runs})]
    numbered = {run: f"run {number}" for number, run in enumerate(runs, start=1)}
    legend = Facts(tuple((title, run) for run, title in numbered.items()))
    return [legend, _side_by_side(recorded, columns, numbered)]


def _side_by_side(
    recorded: pl.DataFrame, columns: list[Column], titles: Mapping[str, str]
) -> Table:
    """Return one row per item and one column per run and figure, grouped by figure.

    ``titles`` has the title of each run's columns.
    """
    at = names_of(tuple(columns)).index(RUN.name)
    keys = names_of(tuple(columns[:at]))
    wide = recorded.select(keys).unique(keep="first", maintain_order=True)
    of_runs = []
    for figure in with_values(recorded, columns[at + 1 :]):
        for run, run_title in titles.items():
            name = f"{run} {figure.name}"
            rows = recorded.filter(pl.col(RUN.name) == run).group_by(keys, maintain_order=True)
            value = pl.col(figure.name).drop_nulls()
            cell = value.sum() if recorded.schema[figure.name].is_integer() else value.first()
            some = rows.agg(pl.when(value.len() > 0).then(cell).alias(name))
            wide = wide.join(some, on=keys, how="left", nulls_equal=True, maintain_order="left")
            if wide[name].null_count() < wide.height:
                scale = figure.scale or figure.name
                of_runs.append(
                    replace(figure, name=name, title=run_title, scale=scale, group=figure.title)
                )
    shown = (*with_values(wide, columns[:at]), *of_runs)
    return Table(wide, shown, dropped=ranked(columns))


def _table(frame: pl.DataFrame, columns: Sequence[Column]) -> Table:
    return Table(frame, with_values(frame, columns), dropped=ranked(columns))
