"""The cause of each gap, by the rules of docs/idle.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from traceana.analyze.idle.causes import (
    ALLOCATION,
    BEGIN,
    COPY,
    DRIVER,
    HOST,
    LAUNCH_LATENCY,
    NOT_RECORDED,
    QUEUED,
    SAME_LAUNCH,
    SYNCHRONIZATION,
    Cause,
)
from traceana.analyze.idle.doing import Doing
from traceana.analyze.idle.recorded import Recorded
from traceana.analyze.idle.spent import spent
from traceana.analyze.idle.waits import Waiting, Waits
from traceana.analyze.idle.weigh import weigh
from traceana.analyze.numbering import rows_of
from traceana.enrich.nesting import NONE, Ints, from_rows, to_rows

if TYPE_CHECKING:
    from traceana.trace import Trace


class Judge:
    """Finds the cause of each gap of a trace, device by device."""

    def __init__(self, trace: Trace) -> None:
        """Prepare what all gaps are looked up in; ``trace`` is whole."""
        self._activities = trace.activities.select("op", "range")
        self._recorded = recorded = Recorded.of(trace)
        self._waits = Waits(trace, recorded)
        launching = recorded.threads.among(recorded.threads.calls[recorded.launching])
        self._doing = Doing.of(trace, recorded.threads, launching)
        self._kinds = spent(trace, recorded.threads, launching)

    def judged(self, gaps: pl.DataFrame) -> pl.DataFrame:
        """Return ``gaps``, of :func:`traceana.analyze.idle.gaps.gaps`, each with its ``cause``.

        Further columns: ``explained``, how much of the gap the cause accounts for (ns);
        ``call``, ``range``, ``op``, rows of what the host was in: for work that had been launched
        when the device drained, of its launch.
        """
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        launch = _Launches(self._recorded, gaps)
        otherwise = launch.otherwise(self._recorded, self._waits, gaps)
        until = np.where(otherwise == HOST, np.minimum(launch.begin, end), start)
        key = self._thread(launch, start, otherwise == HOST)

        cause, explained = otherwise.copy(), end - start
        moment, row = (start + until) // 2, np.full(len(start), NONE, dtype=np.int64)
        judge = np.flatnonzero((key != NONE) & np.isin(otherwise, (HOST, LAUNCH_LATENCY)))
        for number, some in rows_of(key[judge]):
            here = judge[some]
            verdict = weigh(
                self._kinds[number], start[here], end[here], until[here], otherwise[here]
            )
            cause[here], explained[here] = verdict.cause, verdict.explained
            moment[here], row[here] = verdict.moment, verdict.row

        by_host = (cause <= HOST) & (otherwise == HOST)
        in_call = np.isin(cause, (ALLOCATION, SYNCHRONIZATION, COPY)) & by_host & (row != NONE)
        in_range = ((cause <= DRIVER) | by_host) & ~in_call & (row != NONE)
        launched = ~by_host & (otherwise < BEGIN)
        after = launch.after[launched]
        call, annotation, op = (np.full(len(start), NONE, dtype=np.int64) for _ in range(3))
        asked = np.where(cause == HOST, NONE, key)[by_host]
        op[by_host] = self._doing.operator(asked, moment[by_host])
        annotation[by_host] = self._doing.annotation(key[by_host], moment[by_host])
        for column, found in (("op", op), ("range", annotation)):
            found[launched] = from_rows(self._activities[column].gather(after))
        call[launched] = launch.call[launched]
        call[in_call], annotation[in_range] = row[in_call], row[in_range]
        return gaps.with_columns(
            pl.Series("cause", cause.astype(np.uint8)).cat.to(Cause),
            pl.Series("explained", explained),
            to_rows(call).alias("call"),
            to_rows(annotation).alias("range"),
            to_rows(op).alias("op"),
        )

    def _thread(self, launch: _Launches, start: Ints, asked: npt.NDArray[np.bool_]) -> Ints:
        """Return the thread to ask: the one that launches next, unless it was in nothing.

        Then it had not begun, as one of autograd's, and the thread that launched last is asked.
        """
        other = (launch.key != launch.key_before) & (launch.key_before != NONE) & asked
        rows = np.flatnonzero(other)
        key, moment = launch.key[rows], start[rows]
        busy = (self._doing.operator(key, moment) != NONE) | (
            self._doing.annotation(key, moment) != NONE
        )
        for number, here in rows_of(key):
            for one in self._kinds[number].values():
                at = one.first(moment[here])
                inside = at < len(one.start)
                begun = one.start[np.minimum(at, len(one.start) - 1)] <= moment[here]
                busy[here] |= inside & begun
        found = launch.key.copy()
        found[rows[~busy]] = launch.key_before[rows[~busy]]
        return found


class _Launches:
    """The calls that launched the work after each gap, and the threads of those and before it."""

    def __init__(self, recorded: Recorded, gaps: pl.DataFrame) -> None:
        self.before, self.after = (from_rows(gaps[column]) for column in ("before", "after"))
        self.call, before = (_taken(recorded.call, rows) for rows in (self.after, self.before))
        self.same = (self.call == before) & (before != NONE)
        calls = recorded.threads.calls
        self.key, self.key_before = (_taken(calls, rows) for rows in (self.call, before))
        self.begin = _taken(recorded.call_start, self.call)

    def otherwise(
        self, recorded: Recorded, waits: Waits, gaps: pl.DataFrame
    ) -> npt.NDArray[np.int8]:
        """Return the cause of each gap where nothing that the host was in takes it."""
        start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
        cause = np.where(self.begin >= start, HOST, LAUNCH_LATENCY).astype(np.int8)
        cause[self.call == NONE] = NOT_RECORDED
        cause[self.same] = SAME_LAUNCH
        told = from_rows(gaps["cause"].to_physical())
        cause[told != NONE] = told[told != NONE]
        rows = np.flatnonzero(cause == LAUNCH_LATENCY)
        if not len(rows):
            return cause
        before, call = self.before[rows], self.call[rows]
        front = before != NONE
        cause[rows[front & (recorded.call_end[call] <= recorded.start[before])]] = QUEUED
        some = Waiting(
            gaps["device"].item(0), start[rows], end[rows], before, self.after[rows], call
        )
        found, causes = waits.awaited(some)
        cause[rows[found]] = causes
        return cause


def _taken(values: Ints, rows: Ints) -> Ints:
    """Return the values of ``rows``, NONE of those that are NONE."""
    if not len(values):
        return np.full(len(rows), NONE, dtype=np.int64)
    return np.where(rows == NONE, NONE, values[rows])
