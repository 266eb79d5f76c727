"""``transfers``: copies by direction, and collectives by message size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceana.analyze.copies import HOST_DIRECTIONS
from traceana.report import names, numbers
from traceana.report.page import Chart, Notes, Page
from traceana.report.pages.pictures import above, bandwidths
from traceana.report.pages.single_table import table_page
from traceana.result import Arranged, Result

if TYPE_CHECKING:
    from traceana.choices import TransfersBy
    from traceana.trace import Trace

Row = dict[str, Any]

COLUMNS: Final = (
    *("direction", "host_memory", "count", "bytes", "mean_bytes", "time_ns", "exposed_ns"),
    *("bytes_per_s", "median_bytes_per_s", "peak_share", "blocking"),
    *("step_count", "step_bytes", "step_share"),
)
DROPPED: Final = (
    *("step_count", "median_bytes_per_s", "step_bytes", "step_share", "blocking"),
    *("mean_bytes", "peak_share", "host_memory", "bytes"),
)
SIZES: Final = (
    *("direction", "host_memory", "size", "count", "time_ns", "exposed_ns", "bytes_per_s"),
)
SIZES_DROPPED: Final = ("bar", "exposed_ns", "host_memory")
COLLECTIVES: Final = (
    *("collective", "message_bytes", "ranks", "count", "time_ns", "mean_ns", "share"),
    *("exposed_ns", "algbw_bytes_per_s", "busbw_bytes_per_s"),
)
COLLECTIVES_DROPPED: Final = ("share", "mean_ns", "ranks")

MOST_NOTES: Final = 3
LEAST_SHARE: Final = 0.01
"""Rows below this share of the copy time over the host link have no note."""


def transfers(trace: Trace, *, by: TransfersBy = "direction", collectives: bool = False) -> Result:
    """Return one row per direction and kind of host memory, and per item of ``by``.

    With ``collectives`` there is one row per collective and message size.
    """
    if collectives:
        from traceana.analyze.communication import by_message

        return by_message(trace).with_page(partial(_collectives, trace), screenful=40)
    from traceana.analyze import transfers as analysis

    make = partial(_sizes, trace) if by == "size" else partial(_page, trace, by)
    found = analysis.transfers(trace, by)

    def pictures() -> list[Chart]:
        sizes = found if by == "size" else analysis.transfers(trace, "size")
        return bandwidths(sizes.frame)

    return found.with_page(make, screenful=40, pictures=above(pictures))


def _collectives(trace: Trace, shown: Arranged) -> Page:
    return table_page(
        "transfers",
        shown,
        trace,
        columns=COLLECTIVES,
        dropped=COLLECTIVES_DROPPED,
        titles={"share": "of collectives"},
    )


def _sizes(trace: Trace, shown: Arranged) -> Page:
    return table_page("transfers", shown, trace, columns=SIZES, dropped=SIZES_DROPPED, bars="count")


def _page(trace: Trace, by: TransfersBy, shown: Arranged) -> Page:
    if by != "direction":
        return table_page("transfers", shown, trace, columns=(by, *COLUMNS), dropped=DROPPED)
    copies = Notes(tuple(copy_notes(shown.frame)))
    return table_page(
        "transfers",
        shown,
        trace,
        columns=COLUMNS,
        dropped=DROPPED,
        facts=(copies,) if copies.rows else (),
    )


def copy_notes(frame: pl.DataFrame) -> list[tuple[str, str]]:
    """Return notes, with label and text, on rows of ``frame`` with costly copies.

    ``frame`` is that of :func:`transfers` by direction. There are at most three notes, most time
    first, on copies over the host link that are small, from or to pageable memory or blocking, or
    that take most of the copy time, exposed.
    """
    rows = frame.filter(pl.col("direction").is_in(HOST_DIRECTIONS)).to_dicts()
    whole = sum(row["time_ns"] for row in rows)
    found = [
        (row, traits)
        for row in rows
        if row["time_ns"] >= LEAST_SHARE * whole
        and ((traits := _traits(row)) or _leads(row, whole))
    ]
    return [_note(row, traits) for row, traits in found[:MOST_NOTES]]


def _leads(row: Row, whole: int) -> bool:
    exposed = row["exposed_ns"] or 0
    return bool(whole) and row["time_ns"] > whole / 2 and exposed > row["time_ns"] / 2


def _traits(row: Row) -> list[str]:
    found = []
    if row["small"]:
        found.append("small copies")
    if row["host_memory"] == "pageable":
        found.append("pageable memory")
    if row["blocking"] == "yes":
        found.append("blocking calls" if row["count"] > 1 else "blocking call")
    return found


def _note(row: Row, traits: list[str]) -> tuple[str, str]:
    copies = numbers.counted(row["count"], "copy", "copies")
    if row["mean_bytes"] is not None:
        copies += f" of {numbers.size(row['mean_bytes'])}{' on average' * (row['count'] > 1)}"
    if row["bytes_per_s"] is not None:
        copies += f" at {numbers.rate(row['bytes_per_s'])}"
    if row["peak_share"] is not None:
        copies += f" ({numbers.share(row['peak_share'])} of the {row['link']} peak)"
    parts = [copies]
    if row["exposed_ns"] is not None:
        exposed, whole = (numbers.duration(row[name]) for name in ("exposed_ns", "time_ns"))
        parts.append(f"{exposed} of {whole} exposed")
    return names.part(row["direction"]), ", ".join((*parts, *traits))
