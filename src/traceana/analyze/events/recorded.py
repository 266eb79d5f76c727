"""Waits for an event whose record is known: the work in front of that record was waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceana.analyze.events.ended import Ended
from traceana.analyze.events.keys import NO_WORK, take
from traceana.enrich.nesting import NONE, Ints

if TYPE_CHECKING:
    from traceana.trace import Trace

_RECORD = ["rank", "process", "event_correlation"]


def recorded_work(trace: Trace, waits: pl.DataFrame, on: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each of ``waits`` the work that its event is behind.

    ``waits`` are synchronization records with ``asked``, when their call began; ``on`` is the key
    of each event's stream (:func:`traceana.analyze.events.keys.event_keys`), ``key`` and
    ``launched`` are the stream of each piece of work, and when its launch began.

    That is the last launched on the event's stream before the call that recorded it; without that
    call before the one that waits. ``NO_WORK`` where nothing was launched there before, ``ANY``
    where the stream of the event is not known (:mod:`traceana.analyze.events.keys`).
    """
    wanted = waits["event_correlation"].drop_nulls().unique()
    calls = trace.whole.calls.select("rank", "process", "correlation", "start")
    records = calls.filter(pl.col("correlation").is_in(wanted.implode()))
    recorded = waits.select(_RECORD).join(
        records.rename({"correlation": "event_correlation"}).unique(_RECORD, keep="first"),
        on=_RECORD, how="left", nulls_equal=True, maintain_order="left",
    )["start"]  # fmt: skip
    index = np.argsort(launched, kind="stable")
    order = Ended.of(key[index], launched[index], launched[index])
    # A call that launches and one that records do not begin at once.
    place = order.last(np.maximum(on, 0), recorded.fill_null(waits["asked"]).to_numpy() - 1)
    found = take(index, take(order.order, place))
    return np.select([on < 0, found == NONE], [on, NO_WORK], found)


def awaited(told: Ints, when: Ints, work: Ints, key: Ints, launched: Ints) -> Ints:
    """Return for each piece of work what its stream was told to wait for since the one before.

    ``told`` is the key of the stream that waits, ``when`` it was told to, and ``work`` of
    :func:`recorded_work`. Of several the one that ended last counts, NONE where there is none. Rows
    of the work that is waited for are in the order of its end; ``key`` and ``launched`` are of the
    work that may have been told to wait.
    """
    result = np.full(len(key), NONE, dtype=np.int64)
    order = np.lexsort((launched, key))
    moments, rank = np.unique(np.concatenate((launched, when)), return_inverse=True)
    merged = (key * len(moments) + rank[: len(key)])[order]
    at = np.searchsorted(merged, told * len(moments) + rank[len(key) :], side="left")
    known = (at < len(order)) & (told >= 0) & (work >= 0)
    first = order[at[known]]
    same = key[first] == told[known]
    np.maximum.at(result, first[same], work[known][same])
    return result
