"""What a report of several runs is given, and their columns side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.comparison.run_tables import comparable
from traceana.report import human
from traceana.report.columns import Shown, column_of, show, tells
from traceana.report.kinds import Kind, kind_of
from traceana.report.source import source_of
from traceana.report.text import plain

if TYPE_CHECKING:
    from traceana.comparison.compare import By, Comparison
    from traceana.comparison.compared_run import Run
    from traceana.comparison.run_tables import Table

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "layer": ("layer", "type"),
    "class": ("category", "part"),
    "algorithm": ("category", "algorithm", "pass"),
    "kernel": ("name",),
    "gemm": ("gemm", "form", "precision", "library"),
    "epilogue": ("operation", "direction", "how"),
    "transfer": ("direction", "host_memory"),
}
"""The columns that name an item in a table of text."""

DROPPED_ITEMS: Final = frozenset({"type", "library"})
DROPPED: Final = ("type", "to_first", "library")
"""What a narrow terminal goes without before runs stand below each other, first what goes first:
figures, and those of :data:`DROPPED_ITEMS` among the columns that name an item. The library of a
figure is what its table is about."""

SUMMARY: Final = (
    *("run", "wall_ns", "to_first", "image_ns", "image_to_first", "step_kernels", "step_launches"),
    *("step_copies", "idle_share", "flops_per_s"),
)
_CALLED: Final = {
    "step_ns": "time",
    "time_ns": "time",
    "step_calls": "calls",
    "step_count": "copies",
    "count": "copies",
    "step_bytes": "bytes",
    "bytes_per_s": "throughput",
    "step_forward_ns": "forward",
    "step_backward_ns": "backward",
    "step_optimizer_ns": "optimizer",
    "step_other_ns": "other",
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other",
    "confidence": "sure",
    "host_memory": "memory",
    "wall_ns": "step",
    "image_ns": "per image",
    "to_first": "ratio",
    "image_to_first": "ratio",
    "step_kernels": "kernels",
    "step_launches": "launches",
    "step_copies": "copies",
    "idle_share": "idle",
    "flops_per_s": "FLOP/s",
}


@dataclass(frozen=True, slots=True)
class Beside:
    """Several runs: ``source`` is for the JSON's ``meta``, ``summary`` has a row a run.

    ``table`` is that of ``by``, whose rows are shown side by side; that of the summary has none,
    and ``classes`` stand below it. ``notes`` are those of both.
    """

    by: str
    source: Mapping[str, Any]
    summary: pl.DataFrame
    table: Table
    classes: Table | None
    notes: tuple[str, ...]


def beside(found: Comparison, by: By) -> Beside:
    """Return what a report shows of ``found``."""
    table = found.by(by)
    summed = table if by == "summary" else found.by("summary")
    summary = summed.frame
    source = {
        "by": by,
        "runs": [
            _source(run, row) for run, row in zip(found.runs, summary.to_dicts(), strict=True)
        ],
        "ratio_of": table.time if comparable(found.runs) else None,
    }
    classes = found.by("class") if by == "summary" else None
    notes = tuple(dict.fromkeys((*table.notes, *summed.notes)))
    return Beside(by, source, summary, table, classes, notes)


def _source(run: Run, row: Mapping[str, Any]) -> dict[str, Any]:
    told = ("devices", "libraries", "steps", "batch")
    return {"run": run.label, **source_of(run.trace), **{key: row[key] for key in told}}


def legend(facts: Beside) -> list[str]:
    """Return a line a run: its number and label, and what it is."""
    lines = []
    for number, row in enumerate(facts.summary.to_dicts(), start=1):
        file = PurePath(row["file"]).name
        told = ["" if file.startswith(row["run"]) else file]
        told += [row[key] for key in ("devices", "framework", "libraries")]
        told.append(
            "no steps marked" if row["steps"] is None else human.counted(row["steps"], "step")
        )
        told.append(f"batch {row['batch']:,}" if row["batch"] else "")
        named = " · ".join(plain(one) for one in told if one)
        lines.append(f"{number} {plain(row['run'])}: {named}")
    return lines


def summary_columns(frame: pl.DataFrame) -> list[Shown]:
    """Return the columns of the summary that tell something."""
    alike = frame["batch"].n_unique() == 1
    wanted = [one for one in SUMMARY if not (alike and one == "image_to_first")]
    numbered = pl.format("{} {}", pl.int_range(1, pl.len() + 1), "run")
    shown = _called(frame.with_columns(numbered.alias("run")), wanted)
    if not frame["steps"].null_count():
        return shown
    return [replace(one, title="recording") if one.title == "step" else one for one in shown]


def item_columns(wide: pl.DataFrame, by: str) -> list[Shown]:
    """Return the columns that name the items of ``wide``, a table with its runs side by side."""
    return _called(wide, KEYS[by])


def _called(frame: pl.DataFrame, columns: Sequence[str]) -> list[Shown]:
    """Return those of ``columns`` that tell something, as they are called beside each other."""
    kept = [one for one in columns if tells(frame[one])]
    return [
        replace(column, title=_CALLED.get(name, column.title))
        for name, column in zip(kept, show(frame, {}, kept), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class OfRun:
    """The columns of one run; ``figures`` names what each is."""

    title: str
    figures: tuple[str, ...]
    columns: tuple[Shown, ...]

    def without(self, figure: str) -> OfRun:
        """Return the run without the column of ``figure``."""
        kept = [at for at, name in enumerate(self.figures) if name != figure]
        return OfRun(
            self.title,
            tuple(self.figures[at] for at in kept),
            tuple(self.columns[at] for at in kept),
        )


def run_columns(table: Table, wide: pl.DataFrame) -> list[OfRun]:
    """Return the columns of each run, whose title is its number and label.

    Columns that say nothing are left out, but for the times that ratios are of, and so is the
    first run's ratio to itself. All times have one unit.
    """
    times = [one for one in table.figures if kind_of(one) is Kind.TIME]
    columns = [table.column(run, figure) for run in table.runs for figure in times]
    unit = human.time_unit(value for column in columns for value in wide[column])
    found = []
    for number, run in enumerate(table.runs, start=1):
        values = {one: wide[table.column(run, one)] for one in table.figures}
        kept = [
            one
            for one in table.figures
            if one == table.time
            or (tells(values[one].alias(one)) and (number > 1 or one != "to_first"))
        ]
        shown = tuple(_column(one, values[one], unit) for one in kept)
        found.append(OfRun(f"{number} {plain(run)}", tuple(kept), shown))
    return found


def _column(figure: str, values: pl.Series, unit: human.Unit) -> Shown:
    column = column_of(values.alias(figure), unit if kind_of(figure) is Kind.TIME else None)
    return replace(column, title=_CALLED.get(figure, figure))
