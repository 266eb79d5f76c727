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
    frame = arrange(found.result, sort=shown.sort).frame
    blocks: list[Block] = [Heading(found.title)]
    if found.conditions:
        blocks.append(Facts(tuple(("", line) for line in found.conditions)))
    columns = [column for column in found.result.columns if column.shown]
    published = SOURCE.name in frame.columns
    own = frame.filter(pl.col(SOURCE.name).is_null()) if published else frame
    if own.height:
        blocks += [_limited(block, shown.limit) for block in _own(found, own, columns)]
    if published:
        blocks += _printed(frame, columns)
    for name, result in found.sections.items():
        blocks += [Heading(SECTIONS[name]), _table(result.frame, result.columns)]
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


def _own(found: Study, own: pl.DataFrame, columns: list[Column]) -> list[Block]:
    left_out = set()
    if own[NETWORK.name].n_unique() == 1 and own[NETWORK.name][0] is not None:
        # It is shown above the table.
        left_out.add(NETWORK.name)
    if _STATUS in own.columns and (own[_STATUS] == "ok").all():
        left_out.add(_STATUS)
    columns = [column for column in columns if column.name not in left_out]
    runs = own[RUN.name].unique(maintain_order=True).to_list()
    if found.name not in SIDE_BY_SIDE:
        table = _table(own, columns)
        return [replace(table, dropped=(*table.dropped, RUN.name)) if len(runs) == 1 else table]
    keys = names_of(tuple(columns))
    keys = keys[: keys.index(RUN.name)]
    items = own.select(keys).unique(keep="first", maintain_order=True)
    if own.height < SPARSE * items.height * len(runs):
        rows = own.join(
            items.with_row_index("_item"), on=keys, nulls_equal=True, maintain_order="left"
        ).sort("_item", maintain_order=True)
        return [_table(rows, columns)]
    if max(map(len, runs)) <= LONGEST_TITLE:
        return [_side_by_side(own, columns, {run: run for run in runs})]
    numbered = {run: f"run {number}" for number, run in enumerate(runs, start=1)}
    legend = Facts(tuple((title, run) for run, title in numbered.items()))
    return [legend, _side_by_side(own, columns, numbered)]


def _side_by_side(own: pl.DataFrame, columns: list[Column], titles: Mapping[str, str]) -> Table:
    """Return one row per item and one column per run and figure, grouped by figure.

    ``titles`` has the title of each run's columns.
    """
    at = names_of(tuple(columns)).index(RUN.name)
    keys = names_of(tuple(columns[:at]))
    wide = own.select(keys).unique(keep="first", maintain_order=True)
    of_runs = []
    for figure in with_values(own, columns[at + 1 :]):
        for run, run_title in titles.items():
            name = f"{run} {figure.name}"
            rows = own.filter(pl.col(RUN.name) == run).group_by(keys, maintain_order=True)
            value = pl.col(figure.name).drop_nulls()
            one = value.sum() if own.schema[figure.name].is_integer() else value.first()
            some = rows.agg(pl.when(value.len() > 0).then(one).alias(name))
            wide = wide.join(some, on=keys, how="left", nulls_equal=True, maintain_order="left")
            if wide[name].null_count() < wide.height:
                scale = figure.scale or figure.name
                of_runs.append(
                    replace(figure, name=name, title=run_title, scale=scale, group=figure.title)
                )
    shown = (*with_values(wide, columns[:at]), *of_runs)
    return Table(wide, shown, dropped=ranked(columns))


def _printed(frame: pl.DataFrame, columns: list[Column]) -> list[Block]:
    """Return the published values by source, with one row per run and item."""
    ordered = sorted(columns, key=lambda column: column.name != RUN.name)
    published = frame.filter(pl.col(SOURCE.name).is_not_null())
    blocks: list[Block] = []
    for (source,), rows in published.group_by(SOURCE.name, maintain_order=True):
        blocks += [Heading(str(source)), _table(rows, ordered)]
    return blocks


def _table(frame: pl.DataFrame, columns: Sequence[Column]) -> Table:
    return Table(frame, with_values(frame, columns), dropped=ranked(columns))
