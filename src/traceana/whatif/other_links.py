"""Factors of collectives over a faster link, or of more ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from traceana.analyze.classes import category_of, classified
from traceana.analyze.collective_messages import messages
from traceana.errors import NoSuchSelectionError
from traceana.whatif.factors import Factors

if TYPE_CHECKING:
    from traceana.enrich.nesting import Flags
    from traceana.trace import Trace
    from traceana.whatif.factors import Floats

_FEWEST_SIZES: Final = 3
"""Of messages; two points are always on a line."""


def over_another_link(trace: Trace, chosen: Flags, ratio: float) -> Factors:
    """Return the factors of the ``chosen`` collectives over a link with ``ratio`` times the
    bandwidth.

    The shortest time of its function and message size is a collective's own; the rest is waiting
    for other ranks, which stays. Of its own time the part in proportion to the message goes with
    the bandwidth: by a fit of a latency and a bandwidth to three message sizes or more; without
    one, none of it at one end of the interval and all of it at the other. Raises
    :class:`~traceana.errors.NoSuchSelectionError` without collectives.
    """
    rows = _collectives(trace, chosen)
    ends = [1 - part + part / ratio for part in _parts(rows)]
    return _factors(trace, rows, ends)


def with_ranks(trace: Trace, chosen: Flags, ranks: int) -> Factors:
    """Return the factors of the ``chosen`` collectives with ``ranks`` ranks, each with the same
    work.

    The part in proportion to the message goes with the bytes that each rank moves in a ring, the
    latency with the logarithm of the number of ranks (a tree) or with the number (a ring). Raises
    :class:`~traceana.errors.NoSuchSelectionError` without collectives, and where the number of
    ranks is not recorded.
    """
    rows = _collectives(trace, chosen)
    # In an nsys report of several processes or devices only these say how many there are.
    there = trace.meta.world_size or rows.select("rank", "device").n_unique()
    before = rows["ranks"].cast(pl.Float64).fill_null(float(there)).to_numpy()
    if not (before > 1).all():
        raise NoSuchSelectionError("the number of ranks of the collectives is not recorded")
    moved = ((ranks - 1) / ranks) / ((before - 1) / before)
    tree, ring = math.log2(ranks) / np.log2(before), (ranks - 1) / (before - 1)
    ends = [
        (1 - part) * latency + part * moved for part in _parts(rows) for latency in (tree, ring)
    ]
    return _factors(trace, rows, ends)


def _collectives(trace: Trace, chosen: Flags) -> pl.DataFrame:
    """Return the collectives among the ``chosen`` activities that carry a message: ``row``,
    ``rank``, ``device``, ``duration``, ``collective``, ``bytes``, ``ranks``, and ``own``, the
    shortest time of those of the same function, bytes and ranks."""
    found = trace.activities.with_row_index("row").filter(
        category_of(trace.activities, trace).cast(pl.String) == "collective"
    )
    found = classified(found, trace).drop("category")
    found = found.with_columns(messages(found, trace)).filter("carries")
    found = found.filter(pl.Series(chosen).gather(found["row"]))
    if found.is_empty():
        raise NoSuchSelectionError("no collectives in the trace")
    like = ("collective", "bytes", "ranks")
    return found.select(
        *("row", "rank", "device", "duration", *like),
        pl.col("duration").min().over(like).cast(pl.Float64).alias("own"),
    )


def _parts(rows: pl.DataFrame) -> list[Floats]:
    """Return for each of ``rows`` which part of its own time goes with its message: one estimate,
    or the ends of what is possible."""
    sizes = rows.unique(["collective", "bytes", "ranks"]).drop_nulls("bytes")
    fits: dict[tuple[str | None, int | None], tuple[float, float]] = {}
    for key, group in sizes.group_by("collective", "ranks"):
        if group["bytes"].n_unique() >= _FEWEST_SIZES:
            slope, latency = np.polyfit(group["bytes"].to_numpy(), group["own"].to_numpy(), 1)
            fits[key] = max(float(latency), 0.0), max(float(slope), 0.0)
    least, most = np.zeros(rows.height), np.ones(rows.height)
    for at, (name, ranks, size) in enumerate(rows.select("collective", "ranks", "bytes").rows()):
        latency, slope = fits.get((name, ranks), (0.0, 0.0))
        if size and latency + slope * size > 0:
            least[at] = most[at] = slope * size / (latency + slope * size)
    return [least] if (least == most).all() else [least, most]


def _factors(trace: Trace, rows: pl.DataFrame, ends: list[Floats]) -> Factors:
    """Return the factors of ``rows`` whose own time takes between ``ends`` as long."""
    time, own = rows["duration"].clip(1).to_numpy(), rows["own"].to_numpy()
    least, most = (1 - own / time * (1 - end(ends, axis=0)) for end in (np.min, np.max))
    return Factors.of_rows(trace, rows["row"].cast(pl.Int64).to_numpy(), least, most)
