"""What stands out in a table of transfers, in sentences that say no more than its rows."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.analyze.copies import HOST_DIRECTIONS
from traceana.report import human, words

Row = dict[str, Any]

MOST: Final = 3
LEAST_SHARE: Final = 0.01


def sentences(frame: pl.DataFrame) -> tuple[str, ...]:
    """Return a sentence on each row of copies over the host's link that has something to say.

    ``frame`` is of :func:`traceana.analyze.transfers.transfers` by direction. At most three, most
    time first: of rows whose copies are small, of pageable memory, or waited for, or that take most
    of the link's time with no kernel beside. Rows of under 1 % of that time say nothing.
    """
    rows = frame.filter(pl.col("direction").is_in(HOST_DIRECTIONS)).to_dicts()
    whole = sum(row["time_ns"] for row in rows)
    told = [
        (row, traits)
        for row in rows
        if row["time_ns"] >= LEAST_SHARE * whole
        and ((traits := _traits(row)) or _leads(row, whole))
    ]
    return tuple(_sentence(row, traits) for row, traits in told[:MOST])


def _leads(row: Row, whole: int) -> bool:
    exposed = row["exposed_ns"] or 0
    return bool(whole) and row["time_ns"] > whole / 2 and exposed > row["time_ns"] / 2


def _traits(row: Row) -> list[str]:
    found = []
    if row["small"]:
        found.append("small copies")
    if row["host_memory"] == "pageable":
        found.append("pageable memory")
    if row["waits"] == "yes":
        found.append("the host waits for each" if row["count"] > 1 else "the host waits for it")
    return found


def _sentence(row: Row, traits: list[str]) -> str:
    copies = human.counted(row["count"], "copy", "copies")
    says = f"{copies} {words.part(row['direction'])}"
    if row["mean_bytes"] is not None:
        says += f" of {human.size(row['mean_bytes'])}{' on average' * (row['count'] > 1)}"
    if row["bytes_per_s"] is not None:
        says += f" at {human.rate(row['bytes_per_s'])}"
    if row["peak_share"] is not None:
        says += f", {human.share(row['peak_share'])} of the peak of {row['link']}"
    if row["exposed_ns"] is not None:
        exposed, whole = human.duration(row["exposed_ns"]), human.duration(row["time_ns"])
        says += f", {exposed} of {whole} exposed"
    return f"{says}: {', '.join(traits)}" if traits else says
