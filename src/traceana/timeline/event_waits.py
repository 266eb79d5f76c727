"""Waits for CUDA events: the waiting work, and the work after which the event was recorded.

Where CUPTI recorded the wait and its event, the work is known. Else ``device_waits.py`` infers it.
``ANY`` is an unknown stream, ``NO_WORK`` a stream without work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from traceana.enrich.nesting import NONE, Ints, take

if TYPE_CHECKING:
    from traceana.trace import Trace

STREAM_WAIT: Final = "Stream Wait Event"
"""The readers' name of CUPTI's record of a stream's wait for an event."""

WAIT_CALL: Final = r"^(?:cuda|cu|hip)StreamWaitEvent"
"""Calls that make a stream wait for an event."""

ANY, NO_WORK = -1, -2
NEVER: Final = np.iinfo(np.int64).min

_RECORD: Final = ["rank", "process", "event_correlation"]


def wait_records(trace: Trace, syncs: pl.DataFrame) -> pl.DataFrame:
    """Return the waits of streams for an event among ``syncs``, synchronization records.

    Further column: ``requested``, the start of the requesting call, else of the record (ns).
    """
    names = trace.names.select(pl.int_range(pl.len(), dtype=pl.UInt32).alias("name_id"), "name")
    wanted = names.filter(pl.col("name") == STREAM_WAIT)["name_id"]
    waits = syncs.filter(pl.col("name_id").is_in(wanted.implode()))
    called = trace.whole.calls["start"].gather(waits["call"])
    return waits.with_columns(called.fill_null(waits["start"]).alias("requested"))


def keys_of(syncs: pl.DataFrame, keys: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream or context of each record.

    :data:`ANY` where it is not recorded or its number is ambiguous, :data:`NO_WORK` where nothing
    ran on it. ``columns`` identify it in ``syncs`` and in ``keys``; a record's device can be wrong.
    """
    several = pl.len() > 1
    known = keys.group_by(columns).agg(pl.when(several).then(ANY).otherwise(pl.col("key").first()))
    found = syncs.select(columns).join(
        known, on=list(columns), how="left", nulls_equal=True, maintain_order="left"
    )
    return (
        found.select(
            pl.when(pl.col(columns[-1]).is_null())
            .then(ANY)
            .otherwise(pl.col(known.columns[-1]).fill_null(NO_WORK))
            .cast(pl.Int64)
        )
        .to_series()
        .to_numpy()
    )


def event_keys(waits: pl.DataFrame, streams: pl.DataFrame, *columns: str) -> Ints:
    """Return the key of the stream on which the event of each of ``waits`` was recorded."""
    of_events = waits.with_columns(pl.col("event_stream").alias("stream"))
    return keys_of(of_events, streams, *columns)


def recorded_work(trace: Trace, waits: pl.DataFrame, on: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each of ``waits`` the work after which its event was recorded.

    ``waits`` are synchronization records with ``requested``; ``on`` is the key of each event's
    stream (:func:`event_keys`); ``key`` and ``launched`` are the stream of each piece of work and
    the start of its launch.

    It is the last work launched on the event's stream before the call that recorded the event, or,
    where that call is not in the trace, before the waiting call. ``NO_WORK`` where nothing was
    launched there before, ``ANY`` where the stream of the event is unknown.
    """
    if waits.is_empty():
        return np.zeros(0, dtype=np.int64)
    wanted = waits["event_correlation"].drop_nulls().unique()
    calls = trace.whole.calls.select("rank", "process", "correlation", "start")
    records = calls.filter(pl.col("correlation").is_in(wanted.implode()))
    recorded = waits.select(_RECORD).join(
        records.rename({"correlation": "event_correlation"}).unique(_RECORD, keep="first"),
        on=_RECORD, how="left", nulls_equal=True, maintain_order="left",
    )["start"]  # fmt: skip
    index = np.argsort(launched, kind="stable")
    order = Ended.of(key[index], launched[index], launched[index])
    # A launching call and a recording call never start at the same time.
    position = order.last(np.maximum(on, 0), recorded.fill_null(waits["requested"]).to_numpy() - 1)
    found = take(index, take(order.order, position))
    return np.select([on < 0, found == NONE], [on, NO_WORK], found)


def awaited(waiting: Ints, when: Ints, work: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each work the one that its stream waited for since the work before it.

    ``waiting`` is the key of the waiting stream, ``when`` the time of the request, and ``work`` of
    :func:`recorded_work`. Of several waits the work that ended last counts; NONE without a wait.
    The awaited work is numbered in the order of its end; ``key`` and ``launched`` are of the
    possibly waiting work.
    """
    result = np.full(len(key), NONE, dtype=np.int64)
    if not len(waiting):
        return result
    order = np.lexsort((launched, key))
    times, rank = np.unique(np.concatenate((launched, when)), return_inverse=True)
    merged = (key * len(times) + rank[: len(key)])[order]
    at = np.searchsorted(merged, waiting * len(times) + rank[len(key) :], side="left")
    known = (at < len(order)) & (waiting >= 0) & (work >= 0)
    first = order[at[known]]
    same = key[first] == waiting[known]
    np.maximum.at(result, first[same], work[known][same])
    return result


class Ended(msgspec.Struct, frozen=True):
    """An index of work by key (a stream, a device) and end. Lookups of columns, O(log n) each."""

    order: Ints
    """Rows, by key and end."""
    key: Ints
    end: Ints
    _merged: Ints
    _rank: Ints
    _tree: Ints
    """The earliest launch below each node of a balanced tree over ``order``."""

    @classmethod
    def of(cls, key: Ints, end: Ints, launched: Ints) -> Ended:
        """Return the index of rows given as columns in the order of their end; ``key`` >= 0."""
        order = np.argsort(key, kind="stable")
        first = np.append(True, end[1:] != end[:-1])[: len(end)]
        rank = end[first]
        merged = key[order] * (len(rank) + 1) + (np.cumsum(first) - 1)[order]
        size = 1 << len(order).bit_length()
        tree = np.full(2 * size, np.iinfo(np.int64).max, dtype=np.int64)
        tree[size : size + len(order)] = launched[order]
        level = size
        while level > 1:
            half = level // 2
            tree[half:level] = np.minimum(
                tree[level : 2 * level : 2], tree[level + 1 : 2 * level : 2]
            )
            level = half
        return cls(order, key[order], end[order], merged, rank, tree)

    def last(self, key: Ints, until: Ints) -> Ints:
        """Return the position in ``order`` of the last of ``key`` that ended by ``until``."""
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        position = self._after(key, until) - 1
        return np.where((position >= 0) & (self.key[position] == key), position, NONE)

    def last_launched(self, key: Ints, after: Ints, until: Ints, before: Ints) -> Ints:
        """Return the row of the last work that ended in (``after``, ``until``].

        Only work launched before ``before`` counts; NONE without such work.
        """
        if not len(self.order):
            return np.full(len(key), NONE, dtype=np.int64)
        size = len(self._tree) // 2
        node = self._after(key, until) + size
        found = np.zeros(len(node), dtype=np.int64)
        while (node > 1).any():
            # Before a right child come its left sibling, and the nodes before their parent.
            sibling = np.where(node & 1, node - 1, 0)
            hit = (sibling > 0) & (self._tree[sibling] < before)
            found = np.where(hit, sibling, found)
            node = np.where(hit, 0, node >> 1)
        while ((found > 0) & (found < size)).any():
            below = (found > 0) & (found < size)
            right = np.where(below, 2 * found + 1, 1)
            found = np.where(below, np.where(self._tree[right] < before, right, right - 1), found)
        position = np.maximum(found - size, 0)
        known = (found > 0) & (position >= self._after(key, after))
        return np.where(known, self.order[position], NONE)

    def _after(self, key: Ints, until: Ints) -> Ints:
        """Return the position after all smaller keys and the work of ``key`` ended by ``until``."""
        rank = np.searchsorted(self._rank, until, side="right")
        return np.searchsorted(self._merged, key * (len(self._rank) + 1) + rank, side="left")


def distinct_of(ordered: Ints) -> Ints:
    """Return the distinct values of a sorted array; much faster than hashing them."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
