"""``compare``: two or more runs side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.comparison.compared_run import loaded
from traceana.comparison.run_tables import Comparison, basis
from traceana.report import display_names, numbers
from traceana.report.cells import texts
from traceana.report.charts.colours import series_colours
from traceana.report.columns import declared, has_values, kind_of, scale_of, title_of
from traceana.report.page import Axis, Block, Facts, Heading, Page, Panels, Table
from traceana.report.pages.bars import grouped_bars
from traceana.report.pages.single_table import (
    columns_of,
    data_of,
    hidden_of,
    notes_of,
    source_of,
    without_unknown,
)
from traceana.report.result import CommandResult
from traceana.result import Arranged, Result, arrange
from traceana.table import Column, Kind

if TYPE_CHECKING:
    from traceana.comparison.compared_run import Run
    from traceana.comparison.run_inputs import Given, Pairs
    from traceana.comparison.run_tables import Table as OfRuns
    from traceana.runs.layer_manifest import Manifest
    from traceana.vocabulary.option_words import CompareBy

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "layer": ("layer", "type"),
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name",),
    "gemm": ("gemm", "form", "precision", "library"),
    "epilogue": ("operation", "direction", "how"),
    "transfer": ("direction", "host_memory"),
}
"""The columns that identify an item."""

DROPPED: Final = ("type", "to_first", "library")
SUMMARY: Final = (
    *("run", "wall_ns", "to_first", "image_ns", "image_to_first", "step_kernels", "step_launches"),
    *("step_copies", "idle_share", "flops_per_s"),
)
SUMMARY_DROPPED: Final = ("step_copies", "step_launches", "step_kernels", "image_ns")
MOST_CLASSES: Final = 12

_TITLES: Final = {
    "step_ns": "time",
    "time_ns": "time",
    "step_calls": "calls",
    "step_count": "calls",
    "count": "calls",
    "step_bytes": "bytes",
    "step_forward_ns": "forward",
    "step_backward_ns": "backward",
    "step_optimizer_ns": "optimizer",
    "step_other_ns": "other",
    "confidence": "match",
    "host_memory": "memory",
    "wall_ns": "step",
    "image_ns": "per image",
    "to_first": "ratio",
    "image_to_first": "ratio",
    "step_kernels": "kernels",
    "step_launches": "launches",
    "step_copies": "copies",
    "idle_share": "idle",
}


def compare(
    runs: Sequence[Given] | Mapping[str, Given] | str | os.PathLike[str],
    *,
    by: CompareBy = "summary",
    models: Sequence[Manifest | None] | None = None,
    pairs: Sequence[Pairs | None] | None = None,
) -> CommandResult:
    """Return several runs side by side, one row per run, or per run and item of ``by``.

    Ratios are to the first run.
    Traces given by path are opened, with the layer manifest beside them. In a sequence of paths, or
    as the only path, a sweep or a folder of recorded runs is replaced by its runs. The keys of a
    mapping label the runs; otherwise they are labelled by the options in which they differ, or by
    their files. ``models`` are the runs' layer manifests; ``pairs`` force pairs of layers of the
    first run and each of the others (:mod:`traceana.comparison.run_inputs`). Raises ``ValueError``
    for fewer than two runs, or another number of models or pairs, and the errors of
    :mod:`traceana.errors`.
    """
    return side_by_side(Comparison(loaded(runs, models, pairs)), by=by)


def side_by_side(found: Comparison, *, by: CompareBy = "summary") -> CommandResult:
    """Return one row per run, or per run and item of ``by``; the page has runs side by side."""
    table = found.by(by)
    summed = table if by == "summary" else found.by("summary")
    notes = tuple(dict.fromkeys((*table.notes, *summed.notes)))
    make = partial(_page, found, by, table, summed.frame)

    return CommandResult.of(
        Result(table.frame, {}, notes),
        make,
        screenful=40,
        pictures=lambda: [picture(found, "class" if by == "summary" else by)],
        summary=found,
        filterable=False,
    )


def _page(
    found: Comparison, by: CompareBy, table: OfRuns, summary: pl.DataFrame, shown: Arranged
) -> Page:
    blocks: list[Block] = [Facts(tuple(_legend(summary)))]
    if by == "summary":
        blocks.append(_summary(shown))
        blocks.append(Heading("Time by class"))
        classes = found.by("class")
        blocks.append(_side_by_side(classes, "class", _wide(classes, limit=MOST_CLASSES)))
    else:
        blocks.append(_side_by_side(table, by, _wide(table, shown.sort, shown.limit)))
    source = {
        "by": by,
        "runs": [
            _source(run, row) for run, row in zip(found.runs, summary.to_dicts(), strict=True)
        ],
        "ratio_of": table.time if basis(found.runs).ratios else None,
    }
    return Page("compare", (*blocks, *notes_of(shown.notes)), data_of(shown, source))


def _source(run: Run, row: Mapping[str, Any]) -> dict[str, Any]:
    own = ("devices", "libraries", "steps", "batch")
    return {"run": run.label, **source_of(run.trace), **{key: row[key] for key in own}}


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
    wanted = [one for one in SUMMARY if not (alike and one == "image_to_first")]
    numbered = pl.format("{} {}", pl.int_range(1, pl.len() + 1), "run")
    titles = dict(_TITLES)
    if frame["steps"].null_count():
        titles["wall_ns"] = "recording"
    frame = frame.with_columns(numbered.alias("run"))
    columns = columns_of(frame, wanted, titles=titles)
    return Table(frame, columns, dropped=SUMMARY_DROPPED, hidden=hidden_of(shown))


def _wide(table: OfRuns, sort: str | None = None, limit: int | None = None) -> Arranged:
    """Return one row per item; ``sort`` is a column of the rows, of the first run."""
    wide = table.pivot()
    if sort is not None:
        name, colon, order = sort.partition(":")
        of_first = (table.column(table.runs[0], one) for one in (f"{name}_ns", name))
        found = next((one for one in of_first if one in wide.columns), name)
        known = found in wide.columns or f"{found}_ns" in wide.columns
        sort = f"{found}{colon}{order}" if known else None
    return arrange(Result(wide), sort=sort, limit=limit)


def _side_by_side(table: OfRuns, by: str, shown: Arranged) -> Table:
    """Return the rows of ``shown`` with the figures of each run as a group of columns.

    Columns without values are omitted, except for times, and so is the ratio of the first run to
    itself.
    """
    frame = without_unknown(shown.frame)
    titles = {**_TITLES, **({"direction": "pass"} if by == "epilogue" else {})}
    columns = list(columns_of(frame, KEYS[by], titles=titles))
    for number, run in enumerate(table.runs, start=1):
        for figure in table.figures:
            name = table.column(run, figure)
            if figure == table.time or (
                has_values(frame[name], declared(figure)) and (number > 1 or figure != "to_first")
            ):
                title = _TITLES.get(figure, title_of(figure))
                scale = "time" if scale_of(figure) else figure
                columns.append(
                    Column(name, kind_of(figure), title=title, scale=scale, group=f"{number} {run}")
                )
    return Table(frame, tuple(columns), dropped=DROPPED, hidden=hidden_of(shown))


MOST_ITEMS: Final = 16
_PICTURE_TITLES: Final[Mapping[str, str]] = {"gemm": "GEMM", "epilogue": "bias and activation"}


def picture(found: Comparison, by: CompareBy) -> Panels:
    """Return the wall time of the runs above that of the items with most time in all runs."""
    runs = found.by("summary").frame
    stepped = runs["steps"].null_count() == 0
    colours = series_colours(runs["run"])
    walls = runs.select("wall_ns", item="run", series="run")
    title, axis = "Step time" if stepped else "Recording", Axis("wall time", Kind.TIME)
    charts = [grouped_bars(walls, title, "wall_ns", axis, colours)]
    table = found.by(by)
    frame = table.frame.filter(pl.col(table.time) > 0)
    if frame.height:
        items = frame.group_by("item").agg(pl.col(table.time).sum(), pl.col(KEYS[by]).first())
        items = items.sort(table.time, "item", descending=[True, False])
        top = items.head(MOST_ITEMS)
        if KEYS[by][0] == "category":
            called = [
                " ".join(filter(None, (display_names.class_of(category, part), *passes)))
                for category, part, *passes in top.select(KEYS[by]).iter_rows()
            ]
        else:
            # The form of a GEMM stands alone here: plain, not "no" of a column "batched".
            kinds = {key: Kind.PART if key == "form" else kind_of(key) for key in KEYS[by]}
            parts = [texts(kind, top[key]) for key, kind in kinds.items()]
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
