"""Cuts a recording to the steps that are selected of it, as a recording of its own.

The cut has all events from the step before them to the end of their work, so that it has the
figures of the selection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.columns.intervals import PER_DEVICE
from traceana.columns.nesting import Flags, from_rows
from traceana.timeline.steps import SELECTIONS
from traceana.trace import Cut, Ledger, Trace
from traceana.trace.schema import ROW, SCHEMA, TIME_COLUMNS

if TYPE_CHECKING:
    from traceana.trace import Tables

STEPS_BEFORE: Final = 1
"""Steps before the first selected one, whose work may run when it begins."""


def cut(trace: Trace) -> Trace:
    """Return a recording that has the figures of the selection ``trace``, and few other events.

    Without selected steps it has all events. Rows keep their times and order. The rows that were
    left out are counted in the ledger.
    """
    whole = trace.whole
    meta = whole.meta
    selection = {
        name: tuple(numbers)
        for name in SELECTIONS
        if (numbers := trace.meta.properties.get(f"selected_{name}")) is not None
    }
    made = Trace(meta, whole.tables).with_meta(cut=Cut(source=meta.source, **selection))
    if "steps" not in selection:
        return made
    steps = steps_of_cut(trace)
    begin, end = extent(trace, steps)
    kept = _kept_rows(whole.tables, steps, begin, end)
    return made.with_tables(**_filtered(whole.tables, kept))


def steps_of_cut(trace: Trace) -> Flags:
    """Return which rows of ``steps`` of the whole trace the cut of a selection of steps has."""
    steps = trace.whole.tables.steps.with_row_index("row").sort("start", maintain_order=True)
    chosen = pl.col("number").is_in(trace.tables.steps["number"].unique().implode())
    place = pl.int_range(pl.len())
    first, last = place.filter(chosen).min(), place.filter(chosen).max()
    of_process = ("rank", "process")
    near = place.is_between(first - STEPS_BEFORE, last).over(of_process)
    rows = steps.filter(near.fill_null(value=False))["row"]
    flags: Flags = np.zeros(steps.height, dtype=np.bool_)
    flags[rows.to_numpy()] = True
    return flags


def extent(trace: Trace, steps: Flags) -> tuple[int, int]:
    """Return the begin of the first of ``steps``, and the end of the work that follows the last, in
    ns of the trace. What a device waits for when it is idle last is known of the work that
    follows."""
    tables = trace.whole.tables
    begin, end = pl.col("start"), pl.col("start") + pl.col("duration")
    marked = tables.steps.filter(pl.Series(steps))
    work = tables.activities.filter(pl.col("kind") != "sync")
    rows = pl.Series(np.flatnonzero(steps), dtype=ROW)
    launched = work.filter(pl.col("step").is_in(rows.implode()))
    last = max(marked.select(end.max()).item(), launched.select(end.max()).item() or 0)
    following = work.filter(begin > last).sort("start").unique(PER_DEVICE, keep="first")
    return marked.select(begin.min()).item(), following.select(end.max()).item() or last


def _kept_rows(tables: Tables, steps: Flags, begin: int, end: int) -> dict[str, Flags]:
    """Return which rows of each table with times are kept: what happens in the time, and what that
    refers to, such as the call that launched work earlier."""
    kept: dict[str, Flags] = {}
    for name, times in TIME_COLUMNS.items():
        table = tables[name]
        if "duration" in table.columns:
            overlaps = (pl.col("start") <= end) & (pl.col("start") + pl.col("duration") >= begin)
        else:
            overlaps = pl.all_horizontal(pl.col(time).is_between(begin, end) for time in times)
        kept[name] = table.select(overlaps.fill_null(value=False)).to_series().to_numpy().copy()
    kept["steps"] = steps
    pending = set(kept) - {"steps"}
    while pending:
        name = pending.pop()
        rows = pl.Series(kept[name])
        for column, described in SCHEMA[name].columns.items():
            target = described.row_of
            if target not in kept or target == "steps":
                continue
            referred = tables[name][column].filter(rows).drop_nulls().unique().to_numpy()
            if not kept[target][referred].all():
                kept[target][referred] = True
                pending.add(target)
    return kept


def _filtered(tables: Tables, kept: dict[str, Flags]) -> dict[str, pl.DataFrame]:
    """Return the tables with the ``kept`` rows and their new row numbers, and the ledger."""
    ledger = Ledger()
    row = {
        name: pl.Series(np.cumsum(flags) - 1).cast(ROW, strict=False).set(~pl.Series(flags), None)
        for name, flags in kept.items()
    }
    filtered = {}
    for name, described in SCHEMA.items():
        table = tables[name]
        if name in kept:
            left_out = table.filter(~pl.Series(kept[name]))
            time = int(left_out["duration"].sum()) if "duration" in table.columns else None
            ledger.add("cut", left_out.height, table=name, time_ns=time)
            table = table.filter(pl.Series(kept[name]))
        elif name in ("counters", "operations"):
            activity = from_rows(table["activity"])
            table = table.filter(pl.Series(np.append(kept["activities"], True)[activity]))
        moved = [
            row[column.row_of].gather(table[key]).alias(key)
            for key, column in described.columns.items()
            if column.row_of in row
        ]
        filtered[name] = table.with_columns(moved)
    filtered["ledger"] = pl.concat([tables.ledger, ledger.frame()])
    return filtered
