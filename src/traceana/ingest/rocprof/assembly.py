"""The canonical tables of rocprof's rows, whichever file has them."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.ingest.cupti import with_process
from traceana.ingest.integrity import rebase, screen
from traceana.ingest.names import NameTable
from traceana.ingest.rocprof import activities, counters
from traceana.ingest.rocprof.csv_tables import COUNTER, Kind
from traceana.trace import Ledger

Rows = dict[Kind, pl.DataFrame]
"""The rows of each kind, as :func:`traceana.ingest.rocprof.activities.numbered` returns them."""
_MISSING: Final = (
    # what a run without this kind of table lacks, and the option of rocprofv3 that records it
    (Kind.KERNELS, "timeline of kernels (--kernel-trace)"),
    (Kind.COPIES, "copies (--memory-copy-trace)"),
    (Kind.CALLS, "HIP calls (--hip-trace)"),
    (Kind.AGENTS, "device properties (agent_info.csv)"),
)
_MOST_UNREAD: Final = 50
_KEY: Final = ("guid", "dispatch")


def assembled(rows: Rows, ledger: Ledger) -> tuple[dict[str, pl.DataFrame], int]:
    """Return the tables of ``rows`` but ``devices``, and the number of events.

    Counters have the row of their kernel where ``rows`` have both. ``ledger`` is the table of that
    name, complete but for what is counted here.
    """
    names = NameTable(ledger)
    calls, ranges = activities.calls(rows[Kind.CALLS])
    work = [
        activities.kernels(rows[Kind.KERNELS], names),
        activities.copies(rows[Kind.COPIES], names),
    ]
    for texts, table in ((rows[Kind.KERNELS]["name"], "activities"), (calls["name"], "calls")):
        ledger.add("unnamed", texts.null_count(), table=table, kept=True)
    frames = {
        "activities": with_process(pl.concat(work, how="diagonal"), calls),
        "calls": calls,
        "ranges": ranges,
    }
    events = sum(frame.height for frame in frames.values())
    tables, _ = rebase({n: screen(frame, n, ledger) for n, frame in frames.items()}, ledger)
    measured, values = _measured(rows, ledger)
    measurements = counters.table(measured, values, ledger)
    done = tables["activities"]
    named = done.with_columns(names.frame()["name"].gather(done["name_id"]))
    tables["counters"] = _with_activities(measurements, named)
    tables["activities"] = done.drop(_KEY)
    other = rows[Kind.OTHER].height
    ledger.add("unknown_category", other, table="-", detail="memory allocations, scratch, samples")
    tables["names"] = names.frame()
    if tables["activities"].is_empty():
        tables["names"] = measurements.select(pl.col("name").unique(maintain_order=True))
    tables["ledger"] = ledger.frame()
    return tables, events + measurements.height + other


def properties(rows: Rows) -> dict[str, Any]:
    """Return the tables that were read and what the run lacks, and the counters."""
    metrics = _metrics(rows)
    alone = rows[Kind.KERNELS].is_empty() and metrics
    missing = [what for kind, what in _MISSING if rows[kind].is_empty()][: 1 if alone else None]
    found: dict[str, Any] = {
        "tables": {kind.value: cells.height for kind, cells in rows.items() if cells.height}
    }
    if missing:
        found["not_recorded"] = missing
    return found | metrics


def _metrics(rows: Rows) -> dict[str, Any]:
    """Return the number of values of counters in ``rows``, and the counters that are not read."""
    wide = [rows[kind] for kind in (Kind.KERNELS, Kind.LAUNCHES)]
    named = [name for frame in wide for name in frame.columns if name.startswith(COUNTER)]
    long = rows[Kind.COUNTERS]["counter"].drop_nulls()
    count = len(long) + sum(frame[n].count() for frame in wide for n in frame.columns if n in named)
    metrics = [*long.unique(maintain_order=True), *(n.removeprefix(COUNTER) for n in named)]
    unread = [name for name in dict.fromkeys(metrics) if name not in counters.COLUMNS]
    found: dict[str, Any] = {"metric_rows": count} if metrics else {}
    return found | ({"metrics_not_read": unread[:_MOST_UNREAD]} if unread else {})


def _measured(rows: Rows, ledger: Ledger) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the measured dispatches, and their values by the number of the dispatch, ``row``."""
    measured, values = counters.dispatches(rows[Kind.COUNTERS], ledger)
    for kind in (Kind.KERNELS, Kind.LAUNCHES):
        kernels = rows[kind].with_columns(
            pl.int_range(measured.height, measured.height + pl.len(), dtype=pl.UInt32).alias("row")
        )
        of_kernels = counters.wide_values(kernels)
        if kind is Kind.LAUNCHES or of_kernels.height:
            measured = pl.concat([measured, kernels.select(measured.columns)])
            values = pl.concat([values, of_kernels.select(values.columns)])
    return measured, values


def _with_activities(table: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return ``counters`` with the row of the kernel of the same dispatch and name."""
    kernels = (
        work.with_row_index("activity")
        .filter(pl.col("dispatch").is_not_null())
        .select("activity", "name", *_KEY)
        .unique([*_KEY, "name"], keep="none")
    )
    keys = [*_KEY, "name"]
    joined = table.join(kernels, on=keys, how="left", maintain_order="left", nulls_equal=True)
    return joined.drop("row", *_KEY)
