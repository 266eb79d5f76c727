"""``compare``: two or more runs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import polars as pl
from msgspec.structs import replace

from traceana.comparison.compared_run import loaded
from traceana.comparison.run_tables import Comparison, basis
from traceana.report import display_names, numbers
from traceana.report.cells import texts
from traceana.report.charts.colours import series_colours
from traceana.report.page import Axis, Block, Facts, Heading, Page, Panels, Table
from traceana.report.pages.bars import grouped_bars
from traceana.report.pages.single_table import (
    data_of,
    hidden_of,
    notes_of,
    ranked,
    source_of,
    with_values,
    without_unknown,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, arrange
from traceana.table import Kind, names_of
from traceana.trace import Trace

if TYPE_CHECKING:
    from traceana.comparison.run_inputs import Given, Pairs
    from traceana.comparison.run_tables import Table as OfRuns
    from traceana.runs.layer_manifest import Manifest
    from traceana.vocabulary.option_words import CompareBy

MOST_CLASSES: Final = 12


def compare(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str] | Trace,
    *others: Given,
    by: CompareBy = "summary",
    models: Sequence[Manifest | None] | None = None,
    pairs: Sequence[Pairs | None] | None = None,
) -> CommandResult:
    """Return several runs side by side, one row per run, or per run and item of ``by``.

    Ratios are to the first run. The runs are given one by one, or as one sequence or mapping.
    Traces given by path are opened, with the layer manifest beside them. In a sequence of paths, or
    as the only path, a sweep or a folder of recorded runs is replaced by its runs. The keys of a
    mapping label the runs; otherwise they are labelled by the options in which they differ, or by
    their files. ``models`` are the runs' layer manifests; ``pairs`` force pairs of layers of the
    first run and each of the others (:mod:`traceana.comparison.run_inputs`). Raises ``ValueError``
    for fewer than two runs, or another number of models or pairs, and the errors of
    :mod:`traceana.errors`.
    """
    given = [runs, *others] if others or isinstance(runs, Trace) else runs
    return side_by_side(Comparison(loaded(given, models, pairs)), by=by)  # type: ignore[arg-type]


def side_by_side(comparison: Comparison, *, by: CompareBy = "summary") -> CommandResult:
    """Return one row per run, or per run and item of ``by``; the page has runs side by side."""
    table = comparison.by(by)
    summed = table if by == "summary" else comparison.by("summary")
    notes = tuple(dict.fromkeys((*table.notes, *summed.notes)))
    make = partial(_page, comparison, by, table, summed.frame)

    return CommandResult.of(
        Result(table.frame, {}, notes, table.columns),
        make,
        screenful=40,
        pictures=lambda: [picture(comparison, "class" if by == "summary" else by)],
        summary=comparison,
        filterable=False,
    )


def _page(
    comparison: Comparison, by: CompareBy, table: OfRuns, summary: pl.DataFrame, shown: Arranged
) -> Page:
    blocks: list[Block] = [Facts(tuple(_legend(summary)))]
    if by == "summary":
        blocks.append(_summary(shown))
        blocks.append(Heading("Time by class"))
        classes = comparison.by("class")
        blocks.append(_side_by_side(classes, _wide(classes, limit=MOST_CLASSES)))
    else:
        blocks.append(_side_by_side(table, _wide(table, shown.sort, shown.limit)))
    facts = ("devices", "libraries", "steps", "batch")
    runs = [
        {"run": run.label, **source_of(run.trace), **{name: row[name] for name in facts}}
        for run, row in zip(comparison.runs, summary.to_dicts(), strict=True)
    ]
    source = {
        "by": by,
        "runs": runs,
        "ratio_of": table.time if basis(comparison.runs).ratios else None,
    }
    return Page("compare", (*blocks, *notes_of(shown.notes)), data_of(shown, source))


def _legend(summary: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the number and label of each run, and its file, devices, framework and steps."""
    for number, row in enumerate(summary.to_dicts(), start=1):
        file = PurePath(row["file"]).name
        parts = ["" if file.startswith(row["run"]) else file]
        parts += [row[key] for key in ("devices", "framework")]
        parts.append(display_names.libraries(row["libraries"] or ""))
        steps = row["steps"]
        parts.append("no steps marked" if steps is None else numbers.counted(steps, "step"))
        parts.append(f"batch {row['batch']:,}" if row["batch"] else "")
        yield f"{number} {row['run']}", " · ".join(part for part in parts if part)


def _summary(shown: Arranged) -> Table:
    frame = shown.frame
    alike = frame["batch"].n_unique() == 1
    stepped = frame["steps"].null_count() == 0
    columns = tuple(
        column if column.name != "wall_ns" or stepped else replace(column, title="recording")
        for column in with_values(frame, shown.columns)
        if not (alike and column.name == "image_to_first")
    )
    numbered = pl.format("{} {}", pl.int_range(1, pl.len() + 1), "run")
    frame = frame.with_columns(numbered.alias("run"))
    return Table(frame, columns, dropped=ranked(shown.columns), hidden=hidden_of(shown))


def _wide(table: OfRuns, sort: str | None = None, limit: int | None = None) -> Arranged:
    """Return one row per item; ``sort`` is a column of the rows, of the first run."""
    wide = table.pivot()
    if sort is not None:
        name, colon, order = sort.partition(":")
        of_first = (table.column(table.runs[0], column) for column in (f"{name}_ns", name))
        chosen = next((column for column in of_first if column in wide.columns), name)
        exists = chosen in wide.columns or f"{chosen}_ns" in wide.columns
        sort = f"{chosen}{colon}{order}" if exists else None
    return arrange(Result(wide, columns=table.pivoted()), sort=sort, limit=limit)


def _side_by_side(table: OfRuns, shown: Arranged) -> Table:
    """Return the rows of ``shown`` with the figures of each run as a group of columns.

    Columns without values are omitted, except for times, and so is the ratio of the first run to
    itself.
    """
    frame = without_unknown(shown.frame)
    times = {table.column(run, table.time) for run in table.runs}
    valued = {column.name for column in with_values(frame, shown.columns)}
    valued.discard(table.column(table.runs[0], "to_first"))
    columns = tuple(column for column in shown.columns if column.name in times | valued)
    return Table(frame, columns, dropped=ranked(shown.columns), hidden=hidden_of(shown))


MOST_ITEMS: Final = 16
_PICTURE_TITLES: Final[Mapping[str, str]] = {"gemm": "GEMM", "epilogue": "bias and activation"}


def picture(comparison: Comparison, by: CompareBy) -> Panels:
    """Return the wall time of the runs, above the time of their largest items."""
    runs = comparison.by("summary").frame
    stepped = runs["steps"].null_count() == 0
    colours = series_colours(runs["run"])
    walls = runs.select("wall_ns", item="run", series="run")
    title, axis = "Step time" if stepped else "Recording", Axis("wall time", Kind.TIME)
    charts = [grouped_bars(walls, title, "wall_ns", axis, colours)]
    table = comparison.by(by)
    frame = table.frame.filter(pl.col(table.time) > 0)
    if frame.height:
        keys = [column for column in table.columns if column.shown]
        names = names_of(tuple(keys))
        items = frame.group_by("item").agg(pl.col(table.time).sum(), pl.col(names).first())
        items = items.sort(table.time, "item", descending=[True, False])
        top = items.head(MOST_ITEMS)
        if names[0] == "category":
            called = [
                " ".join(filter(None, (display_names.class_of(category, part), *passes)))
                for category, part, *passes in top.select(names).iter_rows()
            ]
        else:
            # The form of a GEMM stands alone here: plain, not "no" of a column "batched".
            kinds = [Kind.PART if key.kind is Kind.BATCHED else key.kind for key in keys]
            parts = [texts(kind, top[name]) for kind, name in zip(kinds, names, strict=True)]
            called = [" ".join(filter(None, row)) for row in zip(*parts, strict=True)]
        summed = (
            top.with_columns(pl.Series("called", called, pl.String))
            .select("item", "called")
            .join(frame, on="item", maintain_order="left")
            .group_by(item="called", series="run", maintain_order=True)
            .agg(pl.col(table.time).sum())
        )
        title = f"Time by {_PICTURE_TITLES.get(by, by)}"
        if others := items.height - top.height:
            title += f" ({numbers.counted(others, 'other')} left out)"
        axis = Axis("time per step" if stepped else "time", Kind.TIME)
        charts.append(grouped_bars(summed, title, table.time, axis, colours))
    return Panels(f"{numbers.counted(runs.height, 'run')} side by side", tuple(charts), columns=1)
