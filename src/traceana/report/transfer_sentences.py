"""What stands out in a table of transfers, in sentences that say no more than its rows."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from traceana.analyze.transfers.links import HOST_DIRECTIONS
from traceana.report import human, words

Row = dict[str, Any]

MOST: Final = 3


def sentences(frame: pl.DataFrame) -> tuple[str, ...]:
    """Return a sentence on each row of copies over the host's link that has something to say.

    ``frame`` is of :func:`traceana.analyze.transfers.transfers` by direction. At most three, most
    time first: of rows whose copies are small, of pageable memory, or waited for.
    """
    rows = frame.filter(pl.col("direction").is_in(HOST_DIRECTIONS)).to_dicts()
    told = [(row, traits) for row in rows if (traits := _traits(row))]
    return tuple(_sentence(row, traits) for row, traits in told[:MOST])


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
    says = f"{copies} from {words.part(row['direction'])}".replace("from unified", "of unified")
    if row["mean_bytes"] is not None:
        says += f" of {human.size(row['mean_bytes'])}{' on average' * (row['count'] > 1)}"
    if row["bytes_per_s"] is not None:
        says += f" at {human.rate(row['bytes_per_s'])}"
    if row["peak_share"] is not None:
        says += f", {human.share(row['peak_share'])} of the peak of {row['link']}"
    if row["exposed_ns"] is not None:
        exposed, whole = human.duration(row["exposed_ns"]), human.duration(row["time_ns"])
        says += f", {exposed} of {whole} exposed"
    return f"{says}: {', '.join(traits)}"
