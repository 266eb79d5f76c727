"""All the gaps of a trace with their causes, and when its devices worked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from traceana.analyze.idle.causes import Cause
from traceana.analyze.idle.gaps import gaps, recording
from traceana.analyze.idle.host import host_time
from traceana.analyze.idle.judge import Judge
from traceana.analyze.idle.lanes import Lane, lanes
from traceana.analyze.idle.windows import measured_of, step_windows, windows
from traceana.analyze.intervals import Busy, union
from traceana.trace.schema import CPU_DEVICE

if TYPE_CHECKING:
    from traceana.trace import Trace

COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "device": pl.Int32,
    "start": pl.Int64,
    "end": pl.Int64,
    "before": pl.UInt32,
    "after": pl.UInt32,
    "cause": Cause,
    "explained": pl.Int64,
    "call": pl.UInt32,
    "range": pl.UInt32,
    "op": pl.UInt32,
}


@dataclass(frozen=True, slots=True)
class Moments:
    """The gaps of the selected devices, in the whole recording, and when the devices worked.

    ``gaps`` has :data:`COLUMNS`, by device and time; row numbers are those of the whole trace.
    ``lanes`` are of the devices; ``hosts`` is when the hosts computed, in traces of the CPU.
    ``windows``, ``steps`` and ``measured`` are the windows that are looked at, those of the
    selected steps and of them the measured (:mod:`traceana.analyze.idle.windows`).
    """

    gaps: pl.DataFrame
    lanes: Sequence[Lane]
    hosts: Busy
    windows: pl.DataFrame
    steps: pl.DataFrame
    measured: pl.DataFrame


def moments(trace: Trace) -> Moments:
    """Return the gaps of the devices that ``trace`` has work of."""
    whole = trace.whole
    bounds = recording(whole)
    steps = step_windows(trace)
    looked_at = windows(trace, bounds, steps)
    places = dict.fromkeys(looked_at.select("rank", "device").iter_rows())
    found = lanes(whole, places)
    limits = {rank: (begin, finish) for rank, begin, finish in bounds.iter_rows()}
    parts = []
    if found:
        judge = Judge(whole)
        parts = [
            judge.judged(gaps(lane, *limits[lane.place[0]], _first_step(whole, lane)))
            for lane in found
        ]
    hosts = {}
    for rank, device in places:
        if device == CPU_DEVICE:
            host = host_time(whole, rank, *limits[rank])
            hosts[rank, device] = host.busy
            parts.append(host.gaps)
    gaps_of_all = pl.concat(
        [pl.DataFrame(schema=COLUMNS), *(part.select(*COLUMNS) for part in parts)]
    )
    measured = measured_of(trace, steps)
    return Moments(gaps_of_all, found, Busy(hosts), looked_at, steps, measured)


def _first_step(whole: Trace, lane: Lane) -> int | None:
    """Return when the step began that launched the first work of ``lane``."""
    step = whole.activities["step"][int(lane.row[0])]
    return None if step is None else int(whole.steps["start"][step])


def busy(found: Moments) -> Busy:
    """Return when each device did any work."""
    devices = {lane.place: union(lane.start, lane.end) for lane in found.lanes}
    return Busy({**devices, **found.hosts.by_place})
