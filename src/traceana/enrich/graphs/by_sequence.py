"""Sources of the work of replays in work that was launched by call, in equal sequences."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.enrich.graphs.replayed_work import NODE_KINDS, Found, Replays, pass_codes
from traceana.enrich.layers.repetition import Repetitions
from traceana.enrich.nesting import NONE, Flags, Ints, from_rows, take
from traceana.trace import Trace
from traceana.trace.schema import Direction

_PASSES: Final = len(Direction.categories) + 1
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "bytes")
_BY_WHOLE_SEQUENCE: Final = 0.95
_BY_SEQUENCE: Final = 0.9
"""Confidence. That of runs is multiplied by the part of the replay that has a source."""


def by_sequence(trace: Trace, replays: Replays, other: Trace, wanted: Flags) -> list[Found]:
    """Return sources in the work of ``other`` that no replay launched, in equal sequences.

    Both traces are searched as one, ``other`` behind ``trace``.
    """
    own = trace.activities.height
    same = other is trace
    searched = trace.activities if same else _behind(trace, other)
    offset = 0 if same else own
    layer = from_rows(other.activities["layer"])
    role = other.layers["role"].cast(pl.String)
    attributed = np.append((role != "unattributed").to_numpy(), False)[layer]
    if same:
        attributed[replays.rows] = False
    code = pass_codes(other.activities["direction"]) + 1
    known = np.full(searched.height, NONE, dtype=np.int64)
    known[offset:] = np.where(attributed, layer * _PASSES + code, NONE)
    asked = np.zeros(searched.height, dtype=np.bool_)
    asked[replays.rows[wanted]] = True
    whole = _whole(searched, known, asked, replays)
    at = np.where(whole == NONE, NONE, whole - offset)[replays.rows]
    found = Found(other, at, np.full(len(at), _BY_WHOLE_SEQUENCE))
    asked[replays.rows[at != NONE]] = False
    (row,) = Repetitions(searched).sources((known,), pl.Series(asked))
    runs = row[replays.rows]
    runs = np.where(runs == NONE, NONE, runs - offset)
    count = replays.calls.height
    met = np.bincount(replays.replay, weights=(runs != NONE) | (at != NONE), minlength=count)
    of = np.bincount(replays.replay, minlength=count)
    part = met / np.maximum(of, 1)
    return [found, Found(other, runs, _BY_SEQUENCE * part[replays.replay])]


def _whole(searched: pl.DataFrame, known: Ints, asked: Flags, replays: Replays) -> Ints:
    """Return the source of each ``asked`` activity in a sequence equal to its replay, or NONE.

    A replay is compared stream by stream, because the streams of a capture may have other numbers
    than those of a replay, with all work of the sources in the order of each stream. Where it
    occurs several times, an activity has a source if all occurrences have the same of ``known``.
    """
    symbol = (
        searched.select(pl.struct("name_id", *_SIZES).rank("dense").cast(pl.UInt32))
        .to_series()
        .to_numpy()
    )
    start = searched["start"].to_numpy()
    lane = (
        searched.select(pl.struct("rank", "device", "context", "stream").rank("dense"))
        .to_series()
        .to_numpy()
    )
    work = searched["kind"].is_in(NODE_KINDS).to_numpy()
    replayed = np.zeros(len(symbol), dtype=np.bool_)
    replayed[replays.rows] = True
    sources = np.flatnonzero(work & ~replayed)
    sources = sources[np.lexsort((start[sources], lane[sources]))]
    # A lane ends with a symbol that no activity has, so that no sequence continues in the next.
    text, row = _with_ends(symbol[sources], lane[sources], sources)
    found = np.full(len(symbol), NONE, dtype=np.int64)
    answers: dict[bytes, Ints] = {}
    for places in replays.each(start[replays.rows]):
        rows = replays.rows[places]
        if not asked[rows].any():
            continue
        for one in np.unique(lane[rows]):
            own = rows[lane[rows] == one]
            key = symbol[own].tobytes()
            if key not in answers:
                answers[key] = _occurrences(text, row, key, known)
            found[own] = np.where(asked[own], answers[key], NONE)
    return found


def _with_ends(symbol: npt.NDArray[Any], lane: Ints, rows: Ints) -> tuple[bytes, Ints]:
    ends = np.flatnonzero(np.diff(lane)) + 1
    return np.insert(symbol, ends, 0).tobytes(), np.insert(rows, ends, NONE)


def _occurrences(text: bytes, row: Ints, key: bytes, known: Ints) -> Ints:
    """Return the row of each symbol of ``key`` where it is first in ``text``, NONE if disputed."""
    size = len(key) // 4
    found = np.full(size, NONE, dtype=np.int64)
    agreed = np.ones(size, dtype=np.bool_)
    at = text.find(key)
    while at >= 0:
        if at % 4 == 0:
            here = row[at // 4 : at // 4 + size]
            if (found == NONE).all():
                found = here
            agreed &= take(known, here) == take(known, found)
        at = text.find(key, at + 1)
    return np.where(agreed & (take(known, found) != NONE), found, NONE)


def _behind(trace: Trace, other: Trace) -> pl.DataFrame:
    """Return the activities of ``trace`` and then those of ``other``, with name ids of one table.

    Names that ``trace`` lacks get ids beyond its own.
    """
    own = trace.names.select("name", pl.int_range(pl.len(), dtype=pl.UInt32).alias("id"))
    theirs = other.names.select("name").join(own, on="name", how="left", maintain_order="left")
    beyond = pl.int_range(pl.len(), dtype=pl.UInt32) + trace.names.height
    ids = theirs.select(pl.coalesce("id", beyond)).to_series()
    last, first = trace.activities["start"].max() or 0, other.activities["start"].min() or 0
    later = other.activities.with_columns(
        ids.gather(other.activities["name_id"]).alias("name_id"),
        pl.col("start") + (int(last) - int(first) + 1),  # type: ignore[arg-type]
    )
    return pl.concat([trace.activities, later])
