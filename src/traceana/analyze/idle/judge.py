"""The cause of each gap, by the rules of docs/idle.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle.causes import (
    ALLOCATION,
    BEGIN,
    CAUSES,
    COPY,
    DRIVER,
    END,
    HOST,
    LAUNCH_LATENCY,
    NOT_RECORDED,
    QUEUED,
    SAME_LAUNCH,
    SYNCHRONIZATION,
    Cause,
)
from traceana.analyze.idle.doing import Doing, keys
from traceana.analyze.idle.threads import THREAD, spent
from traceana.analyze.idle.waits import awaited
from traceana.analyze.idle.weigh import weigh
from traceana.attribute.nesting import NONE, Ints, from_rows, to_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceana.analyze.idle.threads import Spent
    from traceana.trace import Trace

COLUMNS = ("cause", "explained", "call", "range", "op")


def judged(trace: Trace, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return ``gaps``, of :func:`traceana.analyze.idle.gaps.gaps`, with the cause of each.

    ``trace`` is whole. Further columns: ``cause``; ``explained``, how much of the gap the cause
    accounts for (ns); ``call``, ``range``, ``op``, rows of what the host was in: for work that had
    been launched when the device drained, of its launch.
    """
    launch = _Launches.of(trace, gaps)
    start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    otherwise = launch.otherwise(trace, gaps)
    until = np.where(otherwise == HOST, np.minimum(launch.begin, end), start)
    doing = Doing.of(trace, launch.threads)
    kinds = spent(trace, launch.threads)
    key = _thread(launch, doing, kinds, start, otherwise == HOST)

    cause, explained = otherwise.copy(), end - start
    moment, row = (start + until) // 2, np.full(len(start), NONE, dtype=np.int64)
    judge = np.flatnonzero((key != NONE) & np.isin(otherwise, (HOST, LAUNCH_LATENCY)))
    judge = judge[np.argsort(key[judge], kind="stable")]
    bounds = np.searchsorted(key[judge], np.arange(launch.threads.height + 1))
    for number in range(launch.threads.height):
        here = judge[bounds[number] : bounds[number + 1]]
        if not len(here):
            continue
        verdict = weigh(kinds[number], start[here], end[here], until[here], otherwise[here])
        cause[here], explained[here] = verdict.cause, verdict.explained
        moment[here], row[here] = verdict.moment, verdict.row

    by_host = (cause <= HOST) & (otherwise == HOST)
    asked = np.where(by_host, key, NONE)
    op = np.where(cause == HOST, NONE, doing.operator(asked, moment))
    annotation = doing.annotation(asked, moment)
    in_call = np.isin(cause, (ALLOCATION, SYNCHRONIZATION, COPY)) & by_host & (row != NONE)
    in_range = ((cause <= DRIVER) | by_host) & ~in_call & (row != NONE)
    launched = ~by_host & (otherwise < BEGIN)
    after = gaps["after"]
    return gaps.with_columns(
        pl.Series(np.array(CAUSES)[cause]).cast(Cause).alias("cause"),
        pl.Series(explained).alias("explained"),
        to_rows(np.where(in_call, row, np.where(launched, launch.call, NONE))).alias("call"),
        to_rows(
            np.where(in_range, row, np.where(launched, _of(trace, "range", after), annotation))
        ).alias("range"),
        to_rows(np.where(launched, _of(trace, "op", after), op)).alias("op"),
    )


def _of(trace: Trace, column: str, rows: pl.Series) -> Ints:
    return from_rows(trace.activities[column].gather(rows))


class _Launches:
    """The calls that launched the work after each gap, and the threads of those and before it."""

    def __init__(self, trace: Trace, after: pl.Series, before: pl.Series) -> None:
        columns = [trace.calls[column] for column in (*THREAD, "start", "duration")]
        behind, ahead = (
            pl.DataFrame([column.gather(rows) for column in columns]) for rows in (after, before)
        )
        both = pl.concat([behind.select(THREAD), ahead.select(THREAD)])
        known = pl.concat([after, before]).is_not_null()
        self.threads = both.filter(known).unique(maintain_order=True).with_row_index("key")
        self.call, self.call_before = from_rows(after), from_rows(before)
        self.begin: Ints = from_rows(behind["start"])
        self.returned: Ints = self.begin + from_rows(behind["duration"])
        self.key = np.where(self.call == NONE, NONE, keys(behind, self.threads))
        self.key_before = np.where(self.call_before == NONE, NONE, keys(ahead, self.threads))

    @classmethod
    def of(cls, trace: Trace, gaps: pl.DataFrame) -> _Launches:
        calls = trace.activities["call"]
        return cls(trace, calls.gather(gaps["after"]), calls.gather(gaps["before"]))

    def otherwise(self, trace: Trace, gaps: pl.DataFrame) -> npt.NDArray[np.int8]:
        """Return the cause of each gap where nothing that the host was in takes it."""
        start = gaps["start"].to_numpy()
        cause = np.where(self.begin >= start, HOST, LAUNCH_LATENCY).astype(np.int8)
        cause[self.call == NONE] = NOT_RECORDED
        cause[(self.call == self.call_before) & (self.call != NONE)] = SAME_LAUNCH
        cause[gaps["before"].is_null().to_numpy()] = BEGIN
        cause[gaps["after"].is_null().to_numpy()] = END
        launched = pl.Series(cause == LAUNCH_LATENCY)
        began = trace.activities["start"].gather(gaps["before"]).fill_null(0).to_numpy()
        cause[launched.to_numpy() & (self.returned <= began)] = QUEUED
        waiting = gaps.with_columns(pl.Series("launch", self.begin)).with_row_index("number")
        found = awaited(trace, waiting.filter(launched))
        cause[found["number"].to_numpy()] = found["cause"].to_numpy()
        return cause


def _thread(
    launch: _Launches,
    doing: Doing,
    kinds: Mapping[int, Mapping[int, Spent]],
    start: Ints,
    asked: npt.NDArray[np.bool_],
) -> Ints:
    """Return the thread to ask: the one that launches next, unless it was in nothing at ``start``.

    Then it had not begun, as one of autograd's, and the thread that launched last is asked.
    """
    other = (launch.key != launch.key_before) & (launch.key_before != NONE) & asked
    rows = np.flatnonzero(other)
    key, moment = launch.key[rows], start[rows]
    busy = (doing.operator(key, moment) != NONE) | (doing.annotation(key, moment) != NONE)
    for number in np.unique(key):
        here = key == number
        for one in kinds[number].values():
            at = one.first(moment[here])
            inside = at < len(one.start)
            begun = one.start[np.minimum(at, len(one.start) - 1)] <= moment[here]
            busy[here] |= inside & begun
    found = launch.key.copy()
    found[rows[~busy]] = launch.key_before[rows[~busy]]
    return found
